"""A queue, real workers on it, and a ledger of what their jobs did: the stage of tests that break things."""

from __future__ import annotations

import subprocess
from contextlib import AbstractContextManager
from typing import Any

import psycopg
from support.processes.workers import running_worker, until
from support.rows.jobs import Jobs
from support.stages.ledger import Ledger

from queue_workflows.repositories import IngestJobRepository
from queue_workflows.repositories.claims.claim import CLAIM, CLAIM_ALONE
from queue_workflows.repositories.claims.end import (
    END,
    END_ALIKE,
    END_ALIKE_AND_CLAIM,
    END_ALIKE_UNHEARD,
    END_AND_CLAIM,
    END_UNHEARD,
    keeping_attempts,
)
from queue_workflows.repositories.claims.hold_lease import FIND, RENEW, WATCH

# What a worker of ingest jobs says to the database, for traps of `support.servers.statement_proxy`.
CLAIMS = (CLAIM["ingest"], CLAIM_ALONE["ingest"])
ENDS = tuple(
    text
    for sql in (END, END_ALIKE, END_UNHEARD, END_ALIKE_UNHEARD, END_AND_CLAIM, END_ALIKE_AND_CLAIM)
    for text in (sql["ingest"], keeping_attempts(sql["ingest"]))
)
RENEWALS = (RENEW["ingest"],)
WATCHES = (WATCH["ingest"],)
POLLS = (FIND["ingest"],)


class Floor:
    """The ingest jobs of one database; `jobs` are the test's own hands and eyes."""

    def __init__(self, dsn: str, connection: psycopg.Connection, ledger: Ledger) -> None:
        self.dsn, self.connection, self.ledger = dsn, connection, ledger
        self.jobs = Jobs("ingest", connection)
        self.repository: IngestJobRepository = self.jobs.repository

    def enqueue(
        self,
        *,
        gated: bool = False,
        stuck: bool = False,
        task: str = "recorded",
        through: IngestJobRepository | None = None,
        **options: Any,
    ) -> int:
        """A job that writes down each of its attempts; each may wait at its gate, the first may get stuck."""
        args = {"ledger": str(self.ledger.directory), "gated": gated, "stuck": stuck}
        return (through or self.repository).enqueue(task, queue="fetch", args=args, **options).id

    def worker(
        self, *options: str, dsn: str | None = None, **settings: str
    ) -> AbstractContextManager[subprocess.Popen[str]]:
        """A real worker of one job at a time, on the database itself or through a proxy."""
        return running_worker(dsn or self.dsn, "--concurrency", "1", *options, **settings)

    def until_begun(self, job_id: int, attempt: int) -> int:
        """Wait until the body of this attempt runs; the pid of its process."""
        begun = until(
            lambda: [each for each in self.ledger.begun(job_id) if each.attempt == attempt], within_s=150
        )
        return begun[0].pid

    def standing(self, job_id: int) -> tuple[Any, ...]:
        """Status, attempt, crash count and failures of a job."""
        return self.jobs.seen(job_id, "status", "attempt", "crash_count", "failures")

    def row(self, job_id: int) -> dict[str, Any]:
        """A job as whoever holds it left it: without its lease, which goes on being renewed."""
        row = self.jobs.row(job_id)
        del row["lease_expires_at"]
        return row

    def are_in(self, status: str, *ids: int) -> bool:
        """Whether all of these jobs are in a status."""
        return all(self.jobs.seen(each, "status") == (status,) for each in ids)

    def until_in(self, status: str, *ids: int) -> None:
        """Wait until all of these jobs are in a status."""
        until(lambda: self.are_in(status, *ids))

    def until_completed(self, *ids: int) -> None:
        self.until_in("completed", *ids)
