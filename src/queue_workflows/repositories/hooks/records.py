"""What hooks said: stored by the holder of the job's attempt, once however often it is read, and read back.

A job's rows are those of all its attempts. A reader of a run's records gets each job's last attempt alone, so
a retry's records take the place of what a failed attempt had to say, and nothing is there twice.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from queue_workflows.errors import LeaseLost
from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.arrays import array, texts
from queue_workflows.repositories.sql.awaitable import awaitable
from queue_workflows.repositories.sql.claimed_job import Fence
from queue_workflows.repositories.sql.table import LONGEST_PAGE, Filters, Repository, Table
from queue_workflows.states import JobFamily

if TYPE_CHECKING:
    from queue_workflows.models import HookRecord

_TABLE: Final[Table[HookRecord]] = Table("hook_records")
ROWS_AT_ONCE: Final = 1_000
BYTES_AT_ONCE: Final = 8 << 20

# Stands for what a hook left rather than printed, its files; of all lines of an attempt it is stored last.
FILES_LINE: Final = 0

_HOLDS: Final = """
FROM workflow_node_jobs AS job
WHERE job.id = %(id)s::bigint AND (job.attempt, job.claimed_by, job.status)
    IS NOT DISTINCT FROM (%(attempt)s::integer, %(claimed_by)s::text, 'running')
"""
LOOK: Final = f"SELECT job.run_id, job.plugin, job.node_module {_HOLDS}"
# Held until the caller's transaction ends, so that nobody takes the job back between its records and their
# effects. Looked up by id alone, whatever the planner believes. The commit need not be waited for: the end of
# the job comes after it, and is; where both are lost, the hook runs again.
HOLD: Final = f"""
SELECT job.run_id, job.plugin, job.node_module, set_config('synchronous_commit', 'off', true)
{_HOLDS}
FOR NO KEY UPDATE
"""
# The lines, in their order. A line that is stored already is the same line.
_LINES: Final = """unnest(%(lines)s::integer[], %(types)s::text[], %(payloads)s::text[], %(warnings)s::text[])
    AS given (line_no, type, payload, warning)
ORDER BY given.line_no
ON CONFLICT (node_job_id, attempt, line_no) DO NOTHING"""
STORE: Final = f"""
INSERT INTO hook_records (run_id, node_job_id, attempt, plugin, hook, line_no, type, payload, warning)
SELECT %(run_id)s::uuid, %(id)s::bigint, %(attempt)s::integer, %(plugin)s::text, %(hook)s::text,
    given.line_no, given.type, given.payload::jsonb, NULLIF(given.warning, '')
FROM {_LINES}
RETURNING line_no
"""  # noqa: S608 - a fragment of our own
# held: the attempt, as by HOLD. stored: its lines, as by STORE. No row: it is not held.
HOLD_AND_STORE: Final = f"""
WITH held AS MATERIALIZED (
    SELECT job.run_id, job.plugin, job.node_module, set_config('synchronous_commit', 'off', true)
    {_HOLDS}
    FOR NO KEY UPDATE
), stored AS (
    INSERT INTO hook_records (run_id, node_job_id, attempt, plugin, hook, line_no, type, payload, warning)
    SELECT held.run_id, %(id)s::bigint, %(attempt)s::integer, COALESCE(held.plugin, ''),
        COALESCE(held.node_module, ''), given.line_no, given.type, given.payload::jsonb,
        NULLIF(given.warning, '')
    FROM held CROSS JOIN {_LINES}
)
SELECT run_id FROM held
"""  # noqa: S608 - fragments of our own
STORED: Final = f"""
SELECT attempt FROM hook_records
WHERE node_job_id = %(id)s::bigint AND attempt < %(attempt)s::integer AND line_no = {FILES_LINE}
"""  # noqa: S608 - a number of our own
# The last result of an attempt, in a lateral join.
_SAID: Final = """(
    SELECT payload FROM hook_records AS line
    WHERE line.node_job_id = %(id)s::bigint AND line.attempt = listing.attempt
        AND line.type IN ('Result', 'ArchiveResult')
    ORDER BY line.line_no DESC
    LIMIT 1
)"""
# listing: what the last attempts before this one left. Then what each of them said of itself, and whether it
# came to anything: a file with content that it wrote, a record beside its result, an `output_json`.
EARLIER: Final = f"""
WITH listing AS MATERIALIZED (
    SELECT attempt, payload FROM hook_records
    WHERE node_job_id = %(id)s::bigint AND attempt < %(attempt)s::integer AND line_no = {FILES_LINE}
    ORDER BY attempt DESC
    LIMIT %(most)s::bigint
)
SELECT listing.attempt,
    CASE jsonb_typeof(said.payload -> 'status') WHEN 'string' THEN said.payload ->> 'status' END,
    CASE jsonb_typeof(said.payload -> 'output_str')
        WHEN 'string' THEN left(said.payload ->> 'output_str', 200) ELSE '' END,
    jsonb_array_length(listing.payload -> 'files'),
    COALESCE((listing.payload ->> 'written')::bigint, 0) > 0
        OR COALESCE(said.payload -> 'output_json', 'null') NOT IN ('null', '""', '{{}}', '[]')
        OR EXISTS (
            SELECT FROM hook_records AS line
            WHERE line.node_job_id = %(id)s::bigint AND line.attempt = listing.attempt
                AND line.type NOT IN ('Result', 'ArchiveResult', 'Files', 'Log', 'Warning')
        )
FROM listing LEFT JOIN LATERAL {_SAID} AS said ON true
ORDER BY listing.attempt
"""  # noqa: S608 - fragments of our own
OF_ATTEMPT: Final = f"""
SELECT listing.payload -> 'files', said.payload
FROM hook_records AS listing LEFT JOIN LATERAL {_SAID} AS said ON true
WHERE listing.node_job_id = %(id)s::bigint AND listing.attempt = %(attempt)s::integer
    AND listing.line_no = {FILES_LINE}
"""  # noqa: S608 - fragments of our own
# Of each job the last attempt that was read, which a retry replaces as a whole.
_CURRENT: Final = """attempt = (
    SELECT max(last.attempt) FROM hook_records AS last WHERE last.node_job_id = hook_records.node_job_id
)"""
# By the index of the run's records: in the order of their ids the planner might read those of all other runs.
LIST: Final = _TABLE.sql("""
SELECT {columns} FROM hook_records{where}
ORDER BY id + 0
LIMIT %(limit)s::bigint
""")
COUNTS: Final = f"""
SELECT type, count(*) FROM hook_records
WHERE run_id = %(run_id)s::uuid AND {_CURRENT}
GROUP BY type ORDER BY type
"""  # noqa: S608 - a fragment of our own


class StoredLine(NamedTuple):
    """A line to store: its number, its type, its JSON text, and what is wrong with it, if anything."""

    line_no: int
    type: str
    payload_json: str = "{}"
    warning: str = ""


class EarlierAttempt(NamedTuple):
    """What an attempt said of itself, how many files there were after it, and whether it came to anything."""

    attempt: int
    status: str | None
    output_str: str
    files: int
    has_data: bool


class HookOfJob(NamedTuple):
    """The hook that a held job runs."""

    run_id: uuid.UUID
    plugin: str
    hook: str


class HookRecordRepository(Repository["HookRecord"]):
    """Records on the caller's connection; what is stored commits with what the caller does next."""

    _table = _TABLE

    def look(self, fence: Fence) -> HookOfJob:
        """The hook of an attempt that is held at this moment; `LeaseLost` if it is not."""
        return self._hook_of(fence, LOOK)

    def hold(self, fence: Fence) -> HookOfJob:
        """Keep the attempt from being taken over until the transaction ends; `LeaseLost` if it has been."""
        return self._hook_of(fence, HOLD)

    def _hook_of(self, fence: Fence, statement: str) -> HookOfJob:
        rows = self._sql.rows(statement, fence._asdict() | {"id": fence.job_id})
        if not rows:
            raise LeaseLost(JobFamily.NODE.value, fence.job_id, fence.attempt)
        run_id, plugin, hook = rows[0][:3]
        return HookOfJob(run_id, plugin or "", hook or "")

    def store(
        self, fence: Fence, hook: HookOfJob, lines: Iterable[StoredLine], *, attempt: int | None = None
    ) -> int:
        """Store the lines of an attempt that is held, or of an earlier one of its job; how many were new."""
        return sum(
            len(
                self._sql.rows(
                    STORE,
                    {
                        **hook._asdict(),
                        "id": fence.job_id,
                        "attempt": fence.attempt if attempt is None else attempt,
                        **_given(part),
                    },
                )
            )
            for part in _in_parts(lines)
        )

    def hold_and_store(self, fence: Fence, lines: Sequence[StoredLine]) -> None:
        """Store lines that fit into one statement, and commit with it; `LeaseLost` if they are another's."""
        if not self._sql.rows(HOLD_AND_STORE, fence._asdict() | {"id": fence.job_id} | _given(lines)):
            raise LeaseLost(JobFamily.NODE.value, fence.job_id, fence.attempt)

    def stored_before(self, fence: Fence) -> set[int]:
        """The earlier attempts that have their output stored to its end."""
        params = {"id": fence.job_id, "attempt": fence.attempt}
        return {row[0] for row in self._sql.rows(STORED, params)}

    def earlier(self, fence: Fence, most: int) -> Sequence[EarlierAttempt]:
        """The last attempts of a job before this one, as far as their output is stored, in their order."""
        params = {"id": fence.job_id, "attempt": fence.attempt, "most": most}
        return [EarlierAttempt(*row) for row in self._sql.rows(EARLIER, params)]

    def of_attempt(self, job_id: int, attempt: int) -> tuple[Sequence[Any], dict[str, Any]]:
        """The files that there were after an attempt, and its last result, empty if it had none."""
        (row,) = self._sql.rows(OF_ATTEMPT, {"id": job_id, "attempt": attempt})
        return row[0], row[1] or {}

    def counts(self, run_id: uuid.UUID) -> dict[str, int]:
        """How many records of each type the hooks of a run emitted, by their last attempts."""
        return {row[0]: row[1] for row in self._sql.rows(COUNTS, {"run_id": run_id})}

    # Last, because its name hides the builtin from the annotations below it.
    def list(
        self,
        run_id: uuid.UUID,
        *,
        kind: str | None = None,
        plugin: str | None = None,
        node_job_id: int | None = None,
        all_attempts: bool = False,
        warnings: bool = False,
        limit: int = 1_000,
        after: int | None = None,
    ) -> list[HookRecord]:
        """Records by age, of one type if `kind` is given; of each job the last attempt's, or those of all.

        `warnings` are those with which something is wrong; `after` is the id that the page before ended with.
        """
        filters = Filters()
        filters.add("run_id = %(run_id)s::uuid", run_id=run_id)
        filters.add("type = %(kind)s::text", kind=check.text_or_none("kind", kind))
        filters.add("plugin = %(plugin)s::text", plugin=plugin)
        filters.add("node_job_id = %(node_job_id)s::bigint", node_job_id=node_job_id)
        if warnings:
            filters.always("warning IS NOT NULL")
        if not all_attempts:
            filters.always(_CURRENT)
        filters.add("id > %(after)s::bigint", after=after)
        params = filters.params | {"limit": check.whole("limit", limit, 1, LONGEST_PAGE)}
        return self._all(LIST.replace("{where}", filters.where), params)

    # Awaited, on an asynchronous connection.
    acounts = awaitable(counts)
    alist = awaitable(list)


def fits_at_once(lines: Sequence[StoredLine]) -> bool:
    """Whether lines can be stored by one statement."""
    return sum(1 for _ in zip(_in_parts(lines), range(2), strict=False)) <= 1


def _given(lines: Sequence[StoredLine]) -> dict[str, str]:
    return {
        "lines": array(str(line.line_no) for line in lines),
        "types": texts(line.type for line in lines),
        "payloads": texts(line.payload_json for line in lines),
        "warnings": texts(line.warning for line in lines),
    }


def _in_parts(lines: Iterable[StoredLine]) -> Iterator[Sequence[StoredLine]]:
    """So many lines at a time that a statement stays of a bearable size."""
    part: list[StoredLine] = []
    size = 0
    for line in lines:
        if part and (len(part) == ROWS_AT_ONCE or size + len(line.payload_json) > BYTES_AT_ONCE):
            yield part
            part, size = [], 0
        part.append(line)
        size += len(line.payload_json)
    if part:
        yield part
