"""Inline mode: what is enqueued runs at once, before the enqueueing verb returns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from queue_workflows.config import current_config
from queue_workflows.repositories.jobs.enqueue import after_enqueueing
from queue_workflows.repositories.sql.connection import Handle
from queue_workflows.testing.local_worker import drain
from queue_workflows.testing.outcome import JobOutcome


@contextmanager
def inline(*, raises: bool = True) -> Iterator[list[JobOutcome]]:
    """Run each ingest job as it is enqueued, in its caller's transaction; yields what became of them.

    The row is written, claimed and ended as ever, on the caller's connection. What is due later stays. A job
    that fails raises where it was enqueued; with `raises=False` its row says so. For all threads.
    """
    outcomes: list[JobOutcome] = []

    def run(conn: Handle) -> None:
        outcomes.extend(drain(conn=conn, queues=current_config().ingest_queues, raises=raises))

    with after_enqueueing(run):
        yield outcomes
