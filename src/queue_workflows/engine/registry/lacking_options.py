"""Claimed jobs that lack what their task says of all its jobs: a key of a limit, or a lock of the machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from queue_workflows.engine.registry.ingest_task import IngestTask
from queue_workflows.errors import PayloadError, UnusableRow
from queue_workflows.repositories.claims.declared_options import Options
from queue_workflows.repositories.claims.unusable_rows import Faults
from queue_workflows.repositories.sql import checks

Tasks = Mapping[str, IngestTask[..., Any]]


def lacking(jobs: Sequence[Any], tasks: Tasks) -> list[Any]:
    """The jobs that may lack something; `tasks` are those that say anything."""
    return [
        job
        for job in jobs
        if (task := tasks.get(job.task_name)) is not None
        and ((job.limit_key is None and task.has_key) or (job.host_lock is None and task.has_lock))
    ]


def options_of(jobs: Sequence[Any], tasks: Tasks) -> tuple[list[Options], Faults]:
    """What these jobs should have; one with a key that cannot be made of its arguments may not run."""
    found: list[Options] = []
    faults: dict[int, UnusableRow] = {}
    for job in jobs:
        task = tasks[job.task_name]
        try:
            key = job.limit_key or checks.limit_key_or_none(task.key_of(job.args))
        except PayloadError as refused:
            faults[job.id] = UnusableRow("limit_key", refused.message)
            continue
        lock = job.host_lock or task.defaults.get("host_lock")
        if (key, lock) != (job.limit_key, job.host_lock):
            found.append(Options(job.fence, key, lock))
    return found, faults
