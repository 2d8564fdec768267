"""Why a hook of a run that belongs to one host does not run."""

from __future__ import annotations

from typing import Any, Final

from queue_workflows.config import HOOKS_QUEUE as QUEUE
from queue_workflows.engine.explain.history import Reason
from queue_workflows.models import WorkflowNodeJob
from queue_workflows.repositories.explain.explain_job import Circumstances
from queue_workflows.repositories.jobs.hooks import ANY_HOST
from queue_workflows.repositories.workers.obedience import Standing

# Why a hook is on hold: the host that its key names has another directory, or none.
NOT_SHARED: Final = "not_shared"


def host_of(there: Circumstances) -> str | None:
    """The host that a hook belongs to, with all of its run; None for what any worker may claim."""
    job, run = there.job, there.run
    if job.queue != QUEUE or not isinstance(job, WorkflowNodeJob) or run is None:
        return None
    host = job.pinned_host or run.pinned_host
    return None if host == ANY_HOST else host


def of_its_host(there: Circumstances) -> list[Standing]:
    """The workers that may claim the job."""
    host = host_of(there)
    return [one for one in there.workers if host in (None, one.host_label)]


def not_shared(there: Circumstances, host: str, data: dict[str, Any], *, looked_at: str) -> Reason:
    """That a host which claimed the job does not see the directory of its run."""
    run = there.run.id if there.run is not None else ""
    text = (
        f"the directory of its run is shared, and {host} does not see it: mount the directory `runs` of"
        f" QWF_DATA_DIR there as on the host where the run began. A host that sees it goes on, looked at"
        f" again {looked_at}; where it is lost, `qwf run unpin {run}` lets the run begin another"
    )
    return Reason(NOT_SHARED, text, data | {"host": host, "run_id": run})


def host_gone(there: Circumstances, host: str) -> Reason:
    """That no worker of its host lives."""
    run = there.run.id if there.run is not None else ""
    why = f"its run began on {host}, where its files are"
    if there.run is not None and there.run.set_up_by not in (None, run):
        run = there.run.set_up_by
        why = f"its tree was set up on {host} by run:{run}"
    why += ", and no worker of hooks lives there"
    text = f"{why}: start one, or `qwf run unpin {run}` lets it go on elsewhere"
    return Reason("host_gone", text, {"host": host, "run_id": run})
