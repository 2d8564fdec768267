"""What a claimed row may hold that no worker can handle; its job is ended as failed, and its worker goes on.

The tables refuse such rows as they are inserted, by the limits of `fields`. What is here is for rows that
were there before, or came past that. A payload or a moment is read when somebody asks for it, and is refused
then, by `sql/claimed_job`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final

from queue_workflows.errors import PayloadError, UnusableRow
from queue_workflows.repositories.claims.end import Ending, error_entry
from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.claimed_job import ClaimedIngestJob, ClaimedJob, ClaimedNodeJob
from queue_workflows.states import JobStatus

_Check = Callable[[str, Any], Any]
# By job, the column that keeps it from beginning, and why.
Faults = Mapping[int, UnusableRow]

_seconds: Final = partial(check.seconds_or_none, zero=True)
# What is looked at before a job begins: a worker hands it on to the database, to a lock or to a timer.
_OF_ALL: Final[Mapping[str, _Check]] = {
    "limit_key": lambda _, key: check.limit_key(key),
    "host_lock": check.host_lock,
    "timeout_s": _seconds,
    "stall_timeout_s": _seconds,
}
_CHECKS: Final[Mapping[type[ClaimedJob], Mapping[str, _Check]]] = {
    ClaimedIngestJob: {"task_name": check.text, **_OF_ALL},
    ClaimedNodeJob: {
        **dict.fromkeys(("node_id", "kind", "node_module", "plugin", "required_model"), check.text),
        **_OF_ALL,
    },
}
# All columns of a job at once, in the order of its checks.
_GETTERS: Final = {kind: attrgetter(*checks) for kind, checks in _CHECKS.items()}


def faults_of(jobs: Sequence[ClaimedJob]) -> Faults:
    """By their ids, the jobs that cannot begin, each with the column and the reason."""
    if not jobs:
        return {}
    kind = next(base for base in type(jobs[0]).__mro__ if base in _GETTERS)
    # Many jobs say the same, and most say nothing: each value is looked at once.
    columns = zip(*set(map(_GETTERS[kind], jobs)), strict=True)
    suspects = [
        (name, checked)
        for (name, checked), values in zip(_CHECKS[kind].items(), columns, strict=True)
        if not _are_sound(name, checked, set(values))
    ]
    faults: dict[int, UnusableRow] = {}
    for name, checked in suspects:
        for job in jobs:
            if job.id not in faults and (fault := _fault(name, checked, getattr(job, name))) is not None:
                faults[job.id] = fault
    return faults


def failures_of(jobs: Sequence[ClaimedJob], faults: Faults) -> list[Ending]:
    """The ends of jobs that can never begin."""
    return [
        Ending(job.fence, JobStatus.FAILED, error=_entry(faults[job.id]), counts=True)
        for job in jobs
        if job.id in faults
    ]


def _entry(fault: UnusableRow) -> str:
    return error_entry("unusable_row", fault.message, error_type=type(fault).__name__, column=fault.path)


def _are_sound(name: str, checked: _Check, values: Iterable[Any]) -> bool:
    return all(_fault(name, checked, value) is None for value in values)


def _fault(name: str, checked: _Check, value: Any) -> UnusableRow | None:
    if value is None:
        return None
    try:
        checked(name, value)
    except PayloadError as refused:
        return UnusableRow(name, refused.message)
    return None
