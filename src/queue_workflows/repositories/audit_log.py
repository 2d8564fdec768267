"""What operators did, with name, time and reason; written by the statements that did it, read here."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final

from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.table import LONGEST_PAGE, Filters, Repository, Table

if TYPE_CHECKING:
    from queue_workflows.models import AuditLog

_TABLE: Final[Table[AuditLog]] = Table("audit_log")

OF_SUBJECT: Final = _TABLE.sql("""
SELECT {columns} FROM audit_log
WHERE subject_kind = %(kind)s::text AND subject_id = %(id)s::text
ORDER BY id DESC LIMIT %(limit)s
""")
# Of whichever host: each may have kept a worker of the queue from a job that was waiting.
OF_QUEUE: Final = _TABLE.sql("""
SELECT {columns} FROM audit_log
WHERE subject_kind = 'worker_control' AND split_part(subject_id, ' ', 2) IN (%(queue)s::text, '*')
    AND at BETWEEN %(since)s::timestamptz AND COALESCE(%(until)s::timestamptz, 'infinity')
ORDER BY id DESC LIMIT %(limit)s
""")
# The last of each host and queue before: what may still have held then.
OF_QUEUE_LAST: Final = _TABLE.sql("""
SELECT DISTINCT ON (subject_id) {columns} FROM audit_log
WHERE subject_kind = 'worker_control' AND split_part(subject_id, ' ', 2) IN (%(queue)s::text, '*')
    AND at < %(before)s::timestamptz
ORDER BY subject_id, id DESC
""")


class AuditRepository(Repository["AuditLog"]):
    """The audit log on the caller's connection."""

    _table = _TABLE

    def of(self, subject_kind: str, subject_id: str, *, limit: int = 100) -> list[AuditLog]:
        """What was done to one thing, the latest first."""
        return self._all(
            OF_SUBJECT,
            {"kind": subject_kind, "id": subject_id, "limit": check.whole("limit", limit, 1, LONGEST_PAGE)},
        )

    def of_queue(
        self, queue: str, *, since: datetime, until: datetime | None = None, limit: int = 100
    ) -> list[AuditLog]:
        """What was asked of the workers of a queue in a span of time, on any host, the latest first."""
        params = {
            "queue": queue,
            "since": check.moment_or_none("since", since),
            "until": check.moment_or_none("until", until),
            "limit": check.whole("limit", limit, 1, LONGEST_PAGE),
        }
        return self._all(OF_QUEUE, params)

    def of_queue_last(self, queue: str, *, before: datetime) -> list[AuditLog]:
        """What was asked last of the workers of a queue before a moment, of each host that was named."""
        return self._all(OF_QUEUE_LAST, {"queue": queue, "before": check.moment_or_none("before", before)})

    # Last, because its name hides the builtin from the annotations below it.
    def list(
        self,
        *,
        actor: str | None = None,
        action: str | None = None,
        subject_kind: str | None = None,
        limit: int = 100,
        after: int | None = None,
        newest_first: bool = True,
    ) -> list[AuditLog]:
        """Entries by id; `after` is the id that the page before ended with."""
        filters = Filters()
        filters.add("actor = %(actor)s::text", actor=actor)
        filters.add("action = %(action)s::text", action=action)
        filters.add("subject_kind = %(subject_kind)s::text", subject_kind=subject_kind)
        return self._page(filters, by="id", after=after, limit=limit, newest_first=newest_first)
