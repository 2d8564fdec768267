"""Why a durable function waits: it is asleep, waits for an event, or for jobs that it spawned."""

from __future__ import annotations

from typing import Any, Final

from queue_workflows.engine.explain.history import Reason, moment
from queue_workflows.models import DurableStep
from queue_workflows.repositories.durable.waits import ASLEEP, CHILDREN, EVENT
from queue_workflows.repositories.explain.explain_job import Circumstances
from queue_workflows.states import StepKind, StepStatus

_KINDS: Final = {ASLEEP: StepKind.SLEEP, EVENT: StepKind.EVENT, CHILDREN: StepKind.CHILDREN}
# Of so many events each is named.
_NAMED: Final = 5


def parked(there: Circumstances) -> Reason:
    """By the steps that wait; a hold of that reason without one is told by itself."""
    job, reason = there.job, str(there.job.hold_reason)
    data = {"hold_reason": reason, "hold_key": job.hold_key, "run_at": job.run_at}
    waits = [one for one in there.steps if one.status == StepStatus.WAITING]
    since = min((one.started_at for one in waits if one.kind == _KINDS[reason]), default=None)
    begun = "" if since is None else f" since {moment(since)}"
    data |= {"since": since}
    if reason == ASLEEP:
        return Reason(reason, f"it is asleep until {moment(job.run_at)}{begun}", data)
    if reason == CHILDREN:
        left = there.children
        which = "the jobs that it spawned" if left is None else f"{left.open} of {left.all} children"
        counts = {} if left is None else {"open": left.open, "children": left.all}
        return Reason(reason, f"it waits for {which}{begun}", data | counts)
    return _event(there, [one for one in waits if one.kind == StepKind.EVENT], begun, data)


def _event(there: Circumstances, waits: list[DurableStep], begun: str, data: dict[str, Any]) -> Reason:
    names = [str(one.waits_for) for one in waits] or [str(there.job.hold_key)]
    named = ", ".join(map(repr, names[:_NAMED])) + (" and others" if len(names) > _NAMED else "")
    ends = [one.wake_at for one in waits if one.wake_at is not None]
    until = f", until {moment(min(ends))} at the latest" if ends else ""
    text = f"it waits for the event {named}{begun}{until}: `qwf event emit {names[0]}` would wake it"
    return Reason(EVENT, text, data | {"events": names})
