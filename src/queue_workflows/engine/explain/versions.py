"""Why a job waits for a worker that knows it: none alive does, and which version of the app did last."""

from __future__ import annotations

from typing import Any, Final

from queue_workflows.engine.explain.history import Reason, moment
from queue_workflows.engine.registry.node_modules import UNKNOWN_MODULE
from queue_workflows.engine.registry.tasks import UNKNOWN_TASK
from queue_workflows.repositories.explain.explain_job import Circumstances, name_to_know
from queue_workflows.repositories.sql.families import INGEST
from queue_workflows.repositories.workers.code import KnowingWorkers

_WHAT: Final = {UNKNOWN_TASK: "task", UNKNOWN_MODULE: "node module"}


def nobody_knows(there: Circumstances) -> Reason | None:
    """That workers of its queue live, and none of them knows the job; None where that is not so."""
    knowing, name = there.knowing, name_to_know(there.job)
    if knowing is None or name is None or knowing.knowing or not knowing.workers:
        return None
    code = UNKNOWN_TASK if there.family is INGEST else UNKNOWN_MODULE
    return Reason(code, text_of(code, name, knowing), data_of(knowing) | {"name": name})


def text_of(code: str, name: str | None, knowing: KnowingWorkers) -> str:
    """Which workers know it now, and which version did last."""
    what = f"the {_WHAT[code]} {name!r}"
    if knowing.knowing:
        begins = "within a minute"
        if knowing.resting == knowing.knowing:
            begins = "once on again: what may know it is paused or off"
        return (
            f"a worker that does not know {what} put it aside; {_workers(knowing)} may know it,"
            f" and take it {begins}"
        )
    return f"no worker alive knows {what}{_before(knowing)}: start one that does, it then runs at once"


def _workers(knowing: KnowingWorkers) -> str:
    if knowing.workers == 1:
        return "the only one alive"
    return f"{knowing.knowing} of {knowing.workers} that are alive"


def _before(knowing: KnowingWorkers) -> str:
    if not knowing.was_known:
        return ", and none is remembered that did"
    which = "one that says no version" if knowing.app_version is None else f"app {knowing.app_version}"
    return f"; {which} did until {moment(knowing.until)}"


def data_of(knowing: KnowingWorkers) -> dict[str, Any]:
    """Which workers know a name, and which version did last, for programs."""
    return {
        "workers_alive": knowing.workers,
        "workers_knowing": knowing.knowing,
        "workers_resting": knowing.resting,
        "app_version": knowing.app_version,
        "known_until": knowing.until,
    }
