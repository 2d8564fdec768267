"""One run: its nodes with what each is at, and what operators did to it."""

from __future__ import annotations

import shlex
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from queue_workflows.engine.watch.run_reader import RunReader
from queue_workflows.engine.watch.run_view import NodeOverview, RunOverview
from queue_workflows.repositories.audit_log import AuditRepository
from queue_workflows.repositories.sql.connection import Handle
from queue_workflows.views.json_values import named

if TYPE_CHECKING:
    from queue_workflows.models import AuditLog

_AUDIT: Final = ("at", "actor", "action", "reason", "details")


@dataclass(frozen=True, slots=True)
class ShownRun:
    """A run, and the latest acts on it."""

    run: RunOverview
    audit: tuple[AuditLog, ...]
    # What has read it, and can look closer.
    reader: RunReader


def shown_run(conn: Handle, run_id: uuid.UUID, *, acts: Sequence[AuditLog] | None = None) -> ShownRun:
    """The run as it is now; `UnknownRun` if there is none. The acts on it are read unless they are known."""
    reader = RunReader(run_id)
    seen = reader.look(conn)
    if acts is None:
        acts = AuditRepository(conn).of("run", str(run_id))
    return ShownRun(seen, tuple(acts), reader)


def json_of(shown: ShownRun) -> dict[str, Any]:
    """What `qwf run show RUN --json` prints."""
    audit = [{name: getattr(one, name) for name in _AUDIT} for one in shown.audit]
    return run_json(shown.run) | {"audit": audit}


def run_json(run: RunOverview) -> dict[str, Any]:
    """A run with its nodes, in the order of its document."""
    told = named(asdict(run), without=("id", "nodes", "hold", "poisoned"))
    held = {"hold_reason": run.hold, "poisoned_events": list(run.poisoned)}
    return {"run": run.id} | told | held | {"nodes": [_node_json(node) for node in run.nodes]}


def _node_json(node: NodeOverview) -> dict[str, Any]:
    told = named(asdict(node), without=("id", "hold", "worker", "activities"))
    at_work = [{"worker_id": one.worker} | named(asdict(one), without=("worker",)) for one in node.activities]
    held = {"hold_reason": node.hold, "worker_id": node.worker, "activities": at_work}
    return {"node": node.id} | told | held


def command_of(run_id: uuid.UUID) -> str:
    """The command that draws it."""
    return shlex.join(["qwf", "run", "show", str(run_id)])
