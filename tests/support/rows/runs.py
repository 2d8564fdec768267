"""Runs of documents for tests, and a worker that is a function: it ends what it claims as it is told."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any

import psycopg

from queue_workflows.engine.runs.dispatcher import Dispatcher
from queue_workflows.errors import ConfigurationError
from queue_workflows.repositories import NodeJobRepository, RunRepository
from queue_workflows.repositories.claims.end import Ending, error_entry
from queue_workflows.repositories.sql.claimed_job import ClaimedNodeJob
from queue_workflows.settings import Settings, load_settings
from queue_workflows.states import JobStatus
from queue_workflows.workflow.document.load import Document, load_document
from queue_workflows.workflow.references.references import HostRefs

# What a job returns; an exception fails it.
Body = Callable[[ClaimedNodeJob], dict[str, Any] | None]


def settings(**given: Any) -> Settings:
    """The settings of a test's dispatcher: nothing is put off for long."""
    return load_settings(arguments={"dispatch_backoff_s": 0.01, **given})


def start(connection: psycopg.Connection[Any], document: dict[str, Any], **more: Any) -> uuid.UUID:
    """Start a run of a document that is given as data."""
    loaded = load_document({"name": "test", **document})
    runs = RunRepository(connection)
    return runs.insert(loaded.name, spec=loaded.snapshot(), spec_hash=loaded.hash, **more).id


def dispatcher(
    connection: psycopg.Connection[Any],
    *documents: dict[str, Any],
    host: HostRefs | None = None,
    **given: Any,
) -> Dispatcher:
    """A dispatcher that knows these documents by their names, and asks `host` for what is the host app's."""
    known = {document["name"]: load_document(document) for document in documents}

    def find(name: str) -> Document:
        if name not in known:
            raise ConfigurationError(f"there is no workflow {name!r}")
        return known[name]

    return Dispatcher(connection, settings(**given), host=host, find_document=find)


def settle(dispatcher: Dispatcher) -> None:
    """Dispatch until nothing is left to do at the moment."""
    quiet = 0
    while quiet < 2:
        quiet = 0 if dispatcher.turn() or not dispatcher.is_around else quiet + 1


def work(connection: psycopg.Connection[Any], body: Body, *, limit: int = 1_000) -> int:
    """Claim what is queued and end it; how many jobs."""
    jobs = NodeJobRepository(connection)
    ended = 0
    for queue in ("cpu", "gpu"):
        claimed = jobs.claim(queue, worker_id="w", lease_s=60, limit=limit)
        endings = [_ending(job, body) for job in claimed]
        assert not jobs.end_many(endings).lost
        ended += len(claimed)
    return ended


def run_through(connection: psycopg.Connection[Any], dispatcher: Dispatcher, body: Body) -> None:
    """Dispatch and work until neither finds anything."""
    settle(dispatcher)
    while work(connection, body):
        settle(dispatcher)


def _ending(job: ClaimedNodeJob, body: Body) -> Ending:
    try:
        result = body(job)
    except Exception as wrong:
        error = error_entry("exception", str(wrong), error_type=type(wrong).__name__)
        return Ending(job.fence, JobStatus.FAILED, error=error, counts=True)
    return Ending(job.fence, JobStatus.COMPLETED, result=None if result is None else json.dumps(result))
