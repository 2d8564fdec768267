"""One job: all that is stored of it, and what was done to it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg

from queue_workflows.engine.explain.job import title_of
from queue_workflows.errors import UnknownJob
from queue_workflows.models import AuditLog, DurableStep
from queue_workflows.repositories.audit_log import AuditRepository
from queue_workflows.repositories.durable.listing import StepListing
from queue_workflows.repositories.explain.explain_job import Circumstances, ExplainingRepository, Job
from queue_workflows.repositories.sql.families import Family
from queue_workflows.views.jobs.names import name_of
from queue_workflows.views.jobs.steps import json_of_steps
from queue_workflows.views.json_values import named


@dataclass(frozen=True, slots=True)
class Done:
    """An entry of the audit log about the job."""

    at: datetime
    actor: str
    action: str
    reason: str | None
    details: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class StoredJob:
    """A job's row by its columns, the errors of its attempts among them, and what operators did to it."""

    name: str
    title: str
    columns: Mapping[str, Any]
    audit: Sequence[Done]
    steps: Sequence[DurableStep] = ()

    @property
    def errors(self) -> Sequence[Mapping[str, Any]]:
        """What ended its attempts, the oldest first."""
        errors: Sequence[Mapping[str, Any]] = self.columns["errors"]
        return errors


def stored_job(connection: psycopg.Connection[Any], family: Family, job_id: int) -> StoredJob:
    """All that is stored of a job, or `UnknownJob`."""
    row = ExplainingRepository(connection).job(family, job_id)
    if row is None:
        raise UnknownJob(name_of(family, job_id))
    done = AuditRepository(connection).of(family.title, str(job_id))
    return _stored(family, row, done, StepListing(connection).of(family.name, job_id))


def stored_of(there: Circumstances) -> StoredJob:
    """What `stored_job` says of a job, from its circumstances where these have been read."""
    return _stored(there.family, there.job, there.done_to_it, there.steps)


def _stored(family: Family, row: Job, done: Sequence[AuditLog], steps: Sequence[DurableStep]) -> StoredJob:
    columns = {column: getattr(row, column) for column in row.__table__.columns.keys()}  # noqa: SIM118
    audit = [Done(one.at, one.actor, one.action, one.reason, one.details) for one in done]
    return StoredJob(name_of(family, row.id), title_of(row), columns, audit, steps)


def json_of(job: StoredJob) -> dict[str, Any]:
    """What `qwf job show --json` prints."""
    names = ("at", "actor", "action", "reason", "details")
    audit = [{name: getattr(one, name) for name in names} for one in job.audit]
    row = named(job.columns, without=("id",))
    return {"job": job.name} | row | {"audit": audit, "steps": json_of_steps(job.steps)}


def command_of(name: str) -> str:
    """The command that shows a job."""
    return shlex.join(["qwf", "job", "show", name])
