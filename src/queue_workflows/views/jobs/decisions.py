"""What cancelling and retrying would make of jobs, and what it made of them, as operators read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import psycopg

from queue_workflows.engine.operate.many_jobs import RUN_OVER, Verb, decide_named
from queue_workflows.errors import UnknownJob
from queue_workflows.models import WorkflowNodeJob
from queue_workflows.repositories.explain.explain_job import ExplainingRepository, Job
from queue_workflows.repositories.jobs.nodes import NodeJobRepository
from queue_workflows.repositories.reports.job_listing import JobFilter
from queue_workflows.repositories.runs.operator_verbs import ENGINE_MODE
from queue_workflows.repositories.runs.runs import RunRepository
from queue_workflows.repositories.sql.families import Family
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
    for name, row in _rows(connection, jobs).items():
        left = _run_of_left(connection, verb, row)
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
    answers = {
        name: BECAME[became[name]] + _once(verb, row)
        if name in became
        else _not(verb, row, _run_of_left(connection, verb, row))
        for name, row in rows.items()
    }
    return Decided(answers, frozenset(became))


def meant(verb: Verb, said: JobFilter) -> JobFilter:
    """What a filter means for a verb, which applies to some statuses only."""
    return replace(said, status=said.status or USUALLY[verb])


def applies(verb: Verb, status: str) -> bool:
    """Whether jobs in this status can be cancelled, or retried."""
    return (status in JOB_TERMINAL) == (verb is Verb.RETRY)


def _rows(connection: psycopg.Connection[Any], jobs: Sequence[tuple[Family, int]]) -> dict[str, Job]:
    known, rows = ExplainingRepository(connection), {}
    for family, job_id in jobs:
        row = known.job(family, job_id)
        if row is None:
            raise UnknownJob(name_of(family, job_id))
        rows[name_of(family, job_id)] = row
    return rows


def _run_of_left(connection: psycopg.Connection[Any], verb: Verb, row: Job) -> str | None:
    """Why a node's run would not go on with it, if that is so."""
    if verb is not Verb.RETRY or not isinstance(row, WorkflowNodeJob):
        return None
    run = RunRepository(connection).fetch(row.run_id)
    if run is None:
        return None
    if run.status in RUN_TERMINAL:
        what, when = f"its run {run.id} is {run.status}", ""
    elif run.cancel_requested_at is not None:
        what, when = f"its run {run.id} is being cancelled", ", once it is over"
    elif NodeJobRepository(connection).counted([row.id]):
        what, when = f"its run {run.id} has counted its end", ", once it is over"
    else:
        return None
    how = f"`qwf run retry {run.id}`" if run.mode == ENGINE_MODE else "retry the run, or start it again"
    return f"{what} and {_NO_RUN}: {how}{when}"


def _not(verb: Verb, row: Job, left: str | None) -> str:
    return f"not {DONE[verb]}, {left or f'it is {row.status}'}"


def _once(verb: Verb, row: Job) -> str:
    """For one that begins at most once and has begun, so that only a retry lets it begin again."""
    had_begun = row.begun_generation == row.generation
    return _ONCE if verb is Verb.RETRY and had_begun else ""
