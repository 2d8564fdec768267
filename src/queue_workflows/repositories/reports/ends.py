"""How jobs and runs ended, of as many as are waited for at once."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from queue_workflows.repositories.sql.connection import Handle, Statements
from queue_workflows.states import JOB_TERMINAL, RUN_TERMINAL, JobFamily

RUN: Final = "run"

# Jobs and runs have these words in common.
_OVER: Final = frozenset[str](JOB_TERMINAL | RUN_TERMINAL)

# Of an ingest job that is not in the table, which may have moved: by one look at both places.
MOVED: Final = """
SELECT 'ingest', id::text, status, CASE WHEN finished_at IS NOT NULL THEN result::text END,
    CASE WHEN finished_at IS NOT NULL THEN (errors -> -1)::text END
FROM ingest_jobs_and_history WHERE id = ANY (%(ingest)s::bigint[])
"""
# By primary keys. What is not over has nothing to say yet; a table that nobody asks about is not read, as the
# caller may have no right to it.
LOOK: Final = {
    JobFamily.INGEST.value: """
SELECT 'ingest', id::text, status, CASE WHEN finished_at IS NOT NULL THEN result::text END,
    CASE WHEN finished_at IS NOT NULL THEN (errors -> -1)::text END
FROM ingest_jobs WHERE id = ANY (%(ingest)s::bigint[])
""",
    JobFamily.NODE.value: """
SELECT 'node', id::text, status, CASE WHEN finished_at IS NOT NULL THEN context_delta::text END,
    CASE WHEN finished_at IS NOT NULL THEN (errors -> -1)::text END
FROM workflow_node_jobs WHERE id = ANY (%(node)s::bigint[])
""",
    RUN: """
SELECT 'run', id::text, status, outputs::text, error::text
FROM workflow_runs WHERE id = ANY (%(run)s::uuid[])
""",
}


@dataclass(frozen=True, slots=True)
class EndOf:
    """A job or a run that is waited for: `kind` is the job's family, or `run`."""

    kind: str
    id: int | uuid.UUID

    @property
    def name(self) -> str:
        """As messages call it."""
        return f"{self.kind}:{self.id}"


@dataclass(frozen=True, slots=True)
class SeenEnd:
    """What one look found: the status, and of what is over the result and the last error."""

    status: str
    result: Any
    error: dict[str, Any] | None

    @property
    def is_over(self) -> bool:
        """Whether nothing more happens to it, unless somebody retries it."""
        return self.status in _OVER


class EndRepository:
    """Looks at jobs and runs that are waited for."""

    def __init__(self, conn: Handle) -> None:
        self._statements = Statements(conn, "ingest_jobs")

    def look(self, wanted: Iterable[EndOf]) -> dict[EndOf, SeenEnd]:
        """What each is at, by one statement, and one more of what moved; what is not there is left out."""
        by_text = {(one.kind, str(one.id)): one for one in wanted}
        ids: dict[str, list[int | uuid.UUID]] = {}
        for one in by_text.values():
            ids.setdefault(one.kind, []).append(one.id)
        statement = "UNION ALL".join(LOOK[kind] for kind in sorted(ids))
        rows = list(self._statements.rows(statement, ids))
        there = {name for kind, name, *_ in rows if kind == JobFamily.INGEST}
        moved = [job_id for job_id in ids.get(JobFamily.INGEST, ()) if str(job_id) not in there]
        if moved:
            rows += self._statements.rows(MOVED, {"ingest": moved})
        return {
            by_text[kind, name]: SeenEnd(status, _loaded(result), _loaded(error))
            for kind, name, status, result, error in rows
        }


def _loaded(text: str | None) -> Any:
    return None if text is None else json.loads(text)
