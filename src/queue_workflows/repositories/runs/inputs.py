"""Answers to parked nodes, as they came in."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.awaitable import awaitable
from queue_workflows.repositories.sql.table import Filters, Repository, Table
from queue_workflows.states import SubmissionStatus

if TYPE_CHECKING:
    from queue_workflows.models import WorkflowInputSubmission

_TABLE: Final[Table[WorkflowInputSubmission]] = Table("workflow_input_submissions")

INSERT: Final = """
INSERT INTO workflow_input_submissions (run_id, node_id, payload, submitted_by)
VALUES (%(run_id)s::uuid, %(node_id)s::text, %(payload)s::jsonb, %(submitted_by)s::text)
RETURNING id
"""
FETCH: Final = _TABLE.sql("SELECT {columns} FROM workflow_input_submissions WHERE id = %(id)s::bigint")
COUNTS: Final = """
SELECT node_id, status, count(*) FROM workflow_input_submissions
WHERE run_id = %(run_id)s::uuid
GROUP BY node_id, status ORDER BY node_id, status
"""


class InputSubmissionRepository(Repository["WorkflowInputSubmission"]):
    """Submissions on the caller's connection."""

    _table = _TABLE

    def insert(
        self, run_id: uuid.UUID, node_id: str, payload: dict[str, Any], *, submitted_by: str | None = None
    ) -> int:
        """Insert an answer and return its id; whether it is a good one is found out when it is processed."""
        params = {
            "run_id": run_id,
            "node_id": check.text("node_id", node_id),
            "payload": self._limits.json_object("payload", payload),
            "submitted_by": check.text_or_none("submitted_by", submitted_by),
        }
        return int(self._sql.rows(INSERT, params)[0][0])

    def fetch(self, submission_id: int) -> WorkflowInputSubmission | None:
        """One submission, or None."""
        return self._first(FETCH, {"id": submission_id})

    def counts(self, run_id: uuid.UUID) -> dict[str, dict[str, int]]:
        """How many submissions a run has, by node and status."""
        return self._counts(COUNTS, {"run_id": run_id})

    def pending(self, *, limit: int = 100, after: int | None = None) -> list[WorkflowInputSubmission]:
        """What nobody has processed yet, the oldest first."""
        filters = Filters()
        filters.always("status = 'pending'")
        return self._page(filters, by="id", after=after, limit=limit, newest_first=False)

    # Last, because its name hides the builtin from the annotations below it.
    def list(
        self,
        *,
        run_id: uuid.UUID | None = None,
        node_id: str | None = None,
        status: str | Iterable[str] | None = None,
        limit: int = 100,
        after: int | None = None,
        newest_first: bool = True,
    ) -> list[WorkflowInputSubmission]:
        """Submissions by id; `after` is the id that the page before ended with."""
        filters = Filters()
        filters.add("run_id = %(run_id)s::uuid", run_id=run_id)
        filters.add("node_id = %(node_id)s::text", node_id=node_id)
        filters.status(status, SubmissionStatus)
        return self._page(filters, by="id", after=after, limit=limit, newest_first=newest_first)

    # Awaited, on an asynchronous connection.
    ainsert = awaitable(insert)
    afetch = awaitable(fetch)
    acounts = awaitable(counts)
    apending = awaitable(pending)
    alist = awaitable(list)
