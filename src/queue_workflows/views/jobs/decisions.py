"""What cancelling and retrying would make of jobs, and what it made of them, as operators read it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import psycopg

from queue_workflows.engine.operate.many_jobs import RUN_OVER, Verb, decide_named
from queue_workflows.errors import UnknownJob
from queue_workflows.repositories.jobs.nodes import NodeJobRepository
from queue_workflows.repositories.jobs.picked import PickedJob, PickedJobRepository
from queue_workflows.repositories.reports.job_listing import JobFilter
from queue_workflows.repositories.runs.operator_verbs import ENGINE_MODE
from queue_workflows.repositories.sql.families import BY_NAME, Family
from queue_workflows.states import JOB_TERMINAL, RUN_TERMINAL, JobStatus
from queue_workflows.views.jobs.names import name_of

# What a filter means that names no status.
USUALLY: Final = {
    Verb.CANCEL: tuple(status.value for status in JobStatus if status not in JOB_TERMINAL),
    Verb.RETRY: (JobStatus.FAILED.value,),
}
DONE: Final = {Verb.CANCEL: "cancelled", Verb.RETRY: "retried"}
_ONCE: Final = ", and begins again though it is at_most_once: see what its last attempt has done"
_NO_RUN: Final = "would not go on with it"
BECAME: Final = {
    "cancelled": "cancelled",
    "running": "asked to stop",
    "retried": "retried",
    RUN_OVER: f"left alone; the run {_NO_RUN}: `qwf run retry` runs again what failed in a run",
}


@dataclass(frozen=True, slots=True)
class Decided:
    """By each job's name what became of it, or would, and to which of them the verb applied."""

    answers: dict[str, str]
    applied: frozenset[str]

    @property
    def is_all(self) -> bool:
        """Whether no job was left as it was."""
        return len(self.applied) == len(self.answers)


def foretell(connection: psycopg.Connection[Any], verb: Verb, jobs: Sequence[tuple[Family, int]]) -> Decided:
    """What would become of these jobs; `UnknownJob` if one is not there."""
    answers, applied = {}, set()
    rows = _rows(connection, jobs)
    counted = _counted(connection, verb, rows.values())
    for name, row in rows.items():
        left = _run_of_left(verb, row, counted)
        if left is None and applies(verb, row.status):
            answers[name] = f"would be {DONE[verb]}{_once(verb, row)}"
            applied.add(name)
        else:
            answers[name] = _not(verb, row, left)
    return Decided(answers, frozenset(applied))


def decide(
    connection: psycopg.Connection[Any],
    verb: Verb,
    jobs: Sequence[tuple[Family, int]],
    *,
    actor: str,
    reason: str | None,
) -> Decided:
    """Decide on jobs by name; `UnknownJob` if one is not there, and then none is touched."""
    rows = _rows(connection, jobs)
    words = decide_named(connection, verb, jobs, actor=actor, reason=reason)
    became = {f"{family}:{job_id}": word for (family, job_id), word in words.items()}
    # What was left alone is told as it is by now: its run may have ended before the lock was had.
    rows |= _found(connection, [job for job in jobs if name_of(*job) not in became])
    counted = _counted(connection, verb, (row for name, row in rows.items() if name not in became))
    answers = {
        name: BECAME[became[name]] + _once(verb, row)
        if name in became
        else _not(verb, row, _run_of_left(verb, row, counted))
        for name, row in rows.items()
    }
    return Decided(answers, frozenset(became))


def meant(verb: Verb, said: JobFilter) -> JobFilter:
    """What a filter means for a verb, which applies to some statuses only."""
    return replace(said, status=said.status or USUALLY[verb])


def applies(verb: Verb, status: str) -> bool:
    """Whether jobs in this status can be cancelled, or retried."""
    return (status in JOB_TERMINAL) == (verb is Verb.RETRY)


def _rows(connection: psycopg.Connection[Any], jobs: Sequence[tuple[Family, int]]) -> dict[str, PickedJob]:
    """How each stands, by its name; one that is not there is a mistake, before any is touched."""
    found = _found(connection, jobs)
    names = [name_of(*job) for job in jobs]
    for name in names:
        if name not in found:
            raise UnknownJob(name)
    return {name: found[name] for name in names}


def _found(connection: psycopg.Connection[Any], jobs: Sequence[tuple[Family, int]]) -> dict[str, PickedJob]:
    by_family: dict[str, list[int]] = {}
    for family, job_id in jobs:
        by_family.setdefault(family.name, []).append(job_id)
    picked = PickedJobRepository(connection)
    return {
        name_of(BY_NAME[name], job_id): row
        for name, ids in by_family.items()
        for job_id, row in picked.jobs(BY_NAME[name], ids).items()
    }


def _counted(connection: psycopg.Connection[Any], verb: Verb, rows: Iterable[PickedJob]) -> Collection[int]:
    """Which node jobs have an end that their run has counted; asked for where they might be retried."""
    nodes = [row.id for row in rows if row.run_id is not None]
    return NodeJobRepository(connection).counted(nodes) if verb is Verb.RETRY and nodes else ()


def _run_of_left(verb: Verb, row: PickedJob, counted: Collection[int]) -> str | None:
    """Why a node's run would not go on with it, if that is so."""
    if verb is not Verb.RETRY or row.run_id is None:
        return None
    if row.run_status in RUN_TERMINAL:
        what, when = f"its run {row.run_id} is {row.run_status}", ""
    elif row.is_run_cancelled:
        what, when = f"its run {row.run_id} is being cancelled", ", once it is over"
    elif row.id in counted:
        what, when = f"its run {row.run_id} has counted its end", ", once it is over"
    else:
        return None
    how = (
        f"`qwf run retry {row.run_id}`" if row.run_mode == ENGINE_MODE else "retry the run, or start it again"
    )
    return f"{what} and {_NO_RUN}: {how}{when}"


def _not(verb: Verb, row: PickedJob, left: str | None) -> str:
    return f"not {DONE[verb]}, {left or f'it is {row.status}'}"


def _once(verb: Verb, row: PickedJob) -> str:
    """For one that begins at most once and has begun, so that only a retry lets it begin again."""
    return _ONCE if verb is Verb.RETRY and row.has_begun else ""
