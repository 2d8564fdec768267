"""What operators did, with name, time and reason; written by the statements that did it, read here."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.arrays import texts
from queue_workflows.repositories.sql.families import LARGEST_ID
from queue_workflows.repositories.sql.table import LONGEST_PAGE, Filters, Repository, Table

if TYPE_CHECKING:
    from queue_workflows.models import AuditLog

_TABLE: Final[Table[AuditLog]] = Table("audit_log")
# So many entries are looked at for one page, however few of them match.
MOST_LOOKED_AT: Final = 10_000

OF_SUBJECT: Final = _TABLE.sql("""
SELECT {columns} FROM audit_log
WHERE subject_kind = %(kind)s::text AND subject_id = %(id)s::text
ORDER BY id DESC LIMIT %(limit)s
""")
# Of each of some things the latest that was done to it.
LAST_OF: Final = _TABLE.sql("""
SELECT {columns} FROM unnest(%(kinds)s::text[], %(ids)s::text[]) AS subject (kind, id)
CROSS JOIN LATERAL (
    SELECT * FROM audit_log
    WHERE subject_kind = subject.kind AND subject_id = subject.id
    ORDER BY id DESC LIMIT 1
) AS audit_log
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
# What a job's fate may have to do with, in one statement: what was done to it, what was asked before of the
# workers of its queue, and what since.
AROUND_JOB: Final = f"""
SELECT 'job', entry.* FROM ({OF_SUBJECT}) AS entry
UNION ALL
SELECT 'before', entry.* FROM ({OF_QUEUE_LAST}) AS entry
UNION ALL
SELECT 'since', entry.* FROM ({OF_QUEUE}) AS entry
"""  # noqa: S608
# Of some queues at once: what was asked last of each host and queue before a span of time, and within it.
OF_QUEUES: Final = _TABLE.sql("""
SELECT {columns} FROM (
    (
        SELECT DISTINCT ON (subject_id) * FROM audit_log
        WHERE subject_kind = 'worker_control'
            AND split_part(subject_id, ' ', 2) = ANY (ARRAY['*'] || %(queues)s::text[])
            AND at < %(since)s::timestamptz
        ORDER BY subject_id, id DESC
    ) UNION ALL (
        SELECT * FROM audit_log
        WHERE subject_kind = 'worker_control'
            AND split_part(subject_id, ' ', 2) = ANY (ARRAY['*'] || %(queues)s::text[])
            AND at BETWEEN %(since)s::timestamptz AND %(until)s::timestamptz
        ORDER BY id DESC LIMIT %(limit)s::bigint
    )
) AS audit_log
ORDER BY id
""")
# looked: the latest entries before one, of one thing if that is asked for, a bounded number. found: those of
# them that match, one more than a page holds. The end of the look comes with each row, and alone where none
# was found.
_PAGE: Final = """
WITH looked AS MATERIALIZED (
    SELECT id, actor, action FROM audit_log
    WHERE id < %(before)s::bigint{of_subject}
    ORDER BY id{by_subject} DESC
    LIMIT %(most)s::bigint
), found AS MATERIALIZED (
    SELECT id FROM looked
    WHERE actor = COALESCE(%(actor)s::text, actor) AND action = COALESCE(%(action)s::text, action)
    ORDER BY id DESC
    LIMIT %(limit)s::bigint
)
SELECT ended.looked_at, ended.last, {columns}
FROM (SELECT count(*) AS looked_at, min(id) AS last FROM looked) AS ended
LEFT JOIN audit_log ON audit_log.id = ANY (ARRAY(SELECT id FROM found))
ORDER BY audit_log.id DESC
"""
PAGE: Final = _TABLE.sql(_PAGE.replace("{of_subject}", "").replace("{by_subject}", ""))
# By the index of what is told of: by its own order the planner might read the log from its end instead.
PAGE_OF_SUBJECT: Final = _TABLE.sql(
    _PAGE.replace(
        "{of_subject}", " AND subject_kind = %(kind)s::text AND subject_id = %(subject)s::text"
    ).replace("{by_subject}", " + 0")
)


@dataclass(frozen=True, slots=True)
class AuditPage:
    """The entries of a page, and the `before` of the next one; None where all was looked at."""

    entries: tuple[AuditLog, ...]
    next: int | None


class AuditRepository(Repository["AuditLog"]):
    """The audit log on the caller's connection."""

    _table = _TABLE

    def of(self, subject_kind: str, subject_id: str, *, limit: int = 100) -> list[AuditLog]:
        """What was done to one thing, the latest first."""
        return self._all(
            OF_SUBJECT,
            {"kind": subject_kind, "id": subject_id, "limit": check.whole("limit", limit, 1, LONGEST_PAGE)},
        )

    def last_of(self, subjects: Iterable[tuple[str, str]]) -> dict[tuple[str, str], AuditLog]:
        """By kind and id of each of these things the last that was done to it; not of those left alone."""
        given = list(subjects)
        params = {"kinds": texts(kind for kind, _ in given), "ids": texts(subject for _, subject in given)}
        return {(one.subject_kind, one.subject_id): one for one in self._all(LAST_OF, params)}

    def around_job(
        self, subject: tuple[str, str], queue: str, *, since: datetime, until: datetime | None
    ) -> tuple[list[AuditLog], list[AuditLog], list[AuditLog]]:
        """What was done to a job, and what was asked of the workers of its queue on any host.

        The latter before it was there, the last of each host that was named, and in that span, the latest
        first.
        """
        kind, subject_id = subject
        params = {
            "kind": kind,
            "id": subject_id,
            "queue": queue,
            "before": since,
            "since": since,
            "until": until,
            "limit": 100,
        }
        parts: dict[str, list[AuditLog]] = {"job": [], "before": [], "since": []}
        rows = sorted(self._sql.rows(AROUND_JOB, params), key=lambda row: row[1], reverse=True)
        for about, *row in rows:
            parts[about] += self._table.load([row])
        return parts["job"], sorted(parts["before"], key=lambda one: one.subject_id), parts["since"]

    def of_queues(
        self, queues: Collection[str], *, since: datetime, until: datetime, limit: int = 100
    ) -> list[AuditLog]:
        """What held for workers of some queues when a span of time began, and what was asked within it.

        On any host, the oldest first; of what was asked within it the latest.
        """
        params = {
            "queues": sorted(queues),
            "since": check.moment_or_none("since", since),
            "until": check.moment_or_none("until", until),
            "limit": check.whole("limit", limit, 1, LONGEST_PAGE),
        }
        return self._all(OF_QUEUES, params)

    def page(
        self,
        *,
        actor: str | None = None,
        action: str | None = None,
        subject: tuple[str, str] | None = None,
        before: int | None = None,
        limit: int = 50,
        most: int = MOST_LOOKED_AT,
    ) -> AuditPage:
        """The latest entries that match, before the one with the id `before`; `subject` is kind and id.

        A page may be short, or empty, though there are more: `most` were looked at, and `next` goes on.
        """
        limit = check.whole("limit", limit, 1, LONGEST_PAGE)
        is_filtered = actor is not None or action is not None
        kind, subject_id = subject or (None, None)
        params = {
            "actor": check.text_or_none("actor", actor),
            "action": check.text_or_none("action", action),
            "kind": check.text_or_none("kind", kind),
            "subject": check.text_or_none("subject", subject_id),
            "before": LARGEST_ID if before is None else check.whole("before", before, 0, LARGEST_ID),
            "limit": limit + 1,
            "most": most if is_filtered else limit + 1,
        }
        rows = self._sql.rows(PAGE if subject is None else PAGE_OF_SUBJECT, params)
        looked_at, last = rows[0][:2]
        found = self._table.load([row[2:] for row in rows if row[2] is not None])
        if len(found) > limit:
            return AuditPage(tuple(found[:limit]), found[limit - 1].id)
        return AuditPage(tuple(found), last if looked_at == params["most"] else None)

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
