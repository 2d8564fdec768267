"""A claim where the server cannot give one of the rows: a few bytes of JSON may stand for gigabytes of text.

One such row would fail the whole claim, and each one after it. So the next few are claimed unread, and then
each is asked for by itself: one that cannot be given ends as failed, and the others are worked on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import psycopg

from queue_workflows.repositories.claims.claim import KINDS, with_claimed
from queue_workflows.repositories.claims.end import Ending, error_entry
from queue_workflows.repositories.sql.claimed_job import Fence, returned
from queue_workflows.repositories.sql.connection import Statements
from queue_workflows.repositories.sql.families import Family, per_family
from queue_workflows.states import JobStatus

# What a server says that cannot write out a row that it has.
UNREADABLE: Final = (psycopg.errors.ProgramLimitExceeded, psycopg.errors.OutOfMemory, psycopg.DataError)
# How many are claimed then, each of which is read in a statement of its own.
_AT_ONCE: Final = 16
_READ: Final = with_claimed(
    per_family(
        """
SELECT {claimed} FROM {table} AS job
WHERE id = %(id)s::bigint AND status = 'running' AND attempt = %(attempt)s::integer
    AND claimed_by = %(worker_id)s::text
"""
    )
)


def claim_rows(
    statements: Statements, family: Family, sql: str, params: Mapping[str, Any]
) -> tuple[list[Sequence[Any]], list[Ending]]:
    """Claim by a statement: the rows, and the ends of those that the server cannot give."""
    try:
        return list(statements.rows(sql, params)), []
    except UNREADABLE:
        if not statements.commits_each:
            raise
    return _claim_unread(statements, family, sql, params)


def _claim_unread(
    statements: Statements, family: Family, sql: str, params: Mapping[str, Any]
) -> tuple[list[Sequence[Any]], list[Ending]]:
    """Claim by a statement that could not be answered: the rows that can be read, and the ends of the others.

    On a connection in autocommit, so that a row which is refused takes no claim with it.
    """
    claim = sql.replace(f"RETURNING {returned(KINDS[family.name])}", "RETURNING job.id, job.attempt")
    rows, failures = list[Sequence[Any]](), list[Ending]()
    for job_id, attempt in statements.rows(claim, {**params, "limit": min(params["limit"], _AT_ONCE)}):
        fence = Fence(job_id, attempt, params["worker_id"])
        given = {"id": job_id, "attempt": attempt, "worker_id": fence.claimed_by}
        try:
            rows += statements.rows(_READ[family.name], given)
        except UNREADABLE as refused:
            entry = error_entry("unusable_row", f"its row cannot be read: {refused}")
            failures.append(Ending(fence, JobStatus.FAILED, error=entry, counts=True))
    return rows, failures
