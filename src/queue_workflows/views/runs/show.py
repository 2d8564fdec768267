"""One run: its nodes with what each is at, and what operators did to it."""

from __future__ import annotations

import shlex
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from queue_workflows.engine.watch.run_reader import RunReader
from queue_workflows.engine.watch.run_view import RunOverview
from queue_workflows.repositories.audit_log import AuditRepository
from queue_workflows.repositories.sql.connection import Handle

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
    return asdict(shown.run) | {"audit": audit}


def command_of(run_id: uuid.UUID) -> str:
    """The command that draws it."""
    return shlex.join(["qwf", "run", "show", str(run_id)])
