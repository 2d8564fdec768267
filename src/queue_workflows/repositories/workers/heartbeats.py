"""Signs of life of workers, and which have gone silent with work in hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Required, TypedDict, Unpack

from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.awaitable import awaitable
from queue_workflows.repositories.sql.connection import Question, Rows
from queue_workflows.repositories.sql.table import Filters, Repository, Table
from queue_workflows.repositories.workers.obedience import STANDING, STANDING_OF, Standing, standings
from queue_workflows.settings import check_queue_name
from queue_workflows.states import JobFamily, WorkerState

if TYPE_CHECKING:
    from queue_workflows.models import WorkerHeartbeat

_TABLE: Final[Table[WorkerHeartbeat]] = Table("worker_heartbeats")

# A fresh beat takes a dead flag back: the flag was wrong, or the worker woke up. And it learns how many
# others there are, of up to a thousand.
BEAT: Final = """
INSERT INTO worker_heartbeats (
    worker_id, host_label, queue, pid, state, state_reason, current_job_family, current_job_id, jobs_held,
    current_model, cached_models, versions, load, control_version, started_at, last_seen
) VALUES (
    %(worker_id)s::text, %(host_label)s::text, %(queue)s::text, %(pid)s::integer, %(state)s::text,
    %(state_reason)s::text, %(current_job_family)s::text, %(current_job_id)s::bigint,
    %(jobs_held)s::integer, %(current_model)s::text, %(cached_models)s::jsonb, %(versions)s::jsonb,
    %(load)s::jsonb, %(control_version)s::bigint, statement_timestamp(), statement_timestamp()
)
ON CONFLICT (worker_id) DO UPDATE SET
    host_label = EXCLUDED.host_label, queue = EXCLUDED.queue, pid = EXCLUDED.pid, state = EXCLUDED.state,
    state_reason = EXCLUDED.state_reason, current_job_family = EXCLUDED.current_job_family,
    current_job_id = EXCLUDED.current_job_id, jobs_held = EXCLUDED.jobs_held,
    current_model = EXCLUDED.current_model, cached_models = EXCLUDED.cached_models,
    versions = EXCLUDED.versions, load = EXCLUDED.load, control_version = EXCLUDED.control_version,
    last_seen = EXCLUDED.last_seen, last_flagged_dead_at = NULL
RETURNING (
    SELECT ARRAY[
        count(*), count(*) FILTER (WHERE queue = %(queue)s::text AND load ->> 'looks' = 'true')
    ] FROM (
        SELECT queue, load FROM worker_heartbeats AS other
        WHERE other.last_seen > statement_timestamp() - interval '1 minute'
            AND other.worker_id <> %(worker_id)s::text
        LIMIT 1000
    ) AS lately
)
"""
# said: a row of each worker that rests, told by what speaks for all of a host, and how long ago it said that.
# known: of these the rows that are there, as none comes back of a worker that is gone; in one order, for the
# locks. beaten: what each has not said something newer than by itself. It brings those without a row.
BEAT_ALL: Final = """
WITH said AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(%(said)s::jsonb) AS said (
        worker_id text, host_label text, queue text, pid integer, state text, state_reason text,
        cached_models jsonb, versions jsonb, load jsonb, control_version bigint, age_s float8
    )
), known AS MATERIALIZED (
    SELECT worker_id FROM worker_heartbeats WHERE worker_id = ANY (ARRAY(SELECT worker_id FROM said))
    ORDER BY worker_id FOR NO KEY UPDATE
), beaten AS (
    UPDATE worker_heartbeats AS worker SET
        host_label = said.host_label, queue = said.queue, pid = said.pid, state = said.state,
        state_reason = said.state_reason, current_job_family = NULL, current_job_id = NULL, jobs_held = 0,
        current_model = NULL, cached_models = said.cached_models, versions = said.versions,
        load = said.load, control_version = said.control_version,
        last_seen = statement_timestamp() - make_interval(secs => said.age_s), last_flagged_dead_at = NULL
    FROM said JOIN known USING (worker_id)
    WHERE worker.worker_id = said.worker_id
        AND worker.last_seen < statement_timestamp() - make_interval(secs => said.age_s)
)
SELECT worker_id FROM said WHERE worker_id NOT IN (SELECT worker_id FROM known)
"""
FETCH: Final = _TABLE.sql("SELECT {columns} FROM worker_heartbeats WHERE worker_id = %(worker_id)s::text")
COUNTS: Final = """
SELECT queue, state, count(*) FROM worker_heartbeats GROUP BY queue, state ORDER BY queue, state
"""
_HOLDS: Final = """(
    EXISTS (SELECT FROM workflow_node_jobs WHERE claimed_by = {worker_id} AND status = 'running')
    OR EXISTS (SELECT FROM ingest_jobs WHERE claimed_by = {worker_id} AND status = 'running')
)"""
_IS_HOLDING: Final = _HOLDS.replace("{worker_id}", "worker.worker_id")
# Literal, for the planner; a row that is locked is one that beats, or that somebody else sees to.
_AT_ONCE: Final = "LIMIT 200 FOR UPDATE SKIP LOCKED"
# silent: only workers that hold running jobs, as an idle worker that went away harms nobody; flagged once a
# silence.
FLAG_DEAD: Final = (
    _TABLE.sql("""
WITH silent AS MATERIALIZED (
    SELECT worker_id FROM worker_heartbeats AS worker
    WHERE last_seen < statement_timestamp() - make_interval(secs => %(older_than_s)s::float8)
        AND last_flagged_dead_at IS NULL AND {is_holding}
    {at_once}
)
UPDATE worker_heartbeats SET last_flagged_dead_at = statement_timestamp()
WHERE worker_id = ANY (ARRAY(SELECT worker_id FROM silent))
RETURNING {columns}
""")
    .replace("{is_holding}", _IS_HOLDING)
    .replace("{at_once}", _AT_ONCE)
)
# gone: workers that hold nothing either, so that nobody needs the row to take anything back. A quarantine is
# an operator's to end, however long its supervisor is away.
FORGET: Final = """
WITH gone AS MATERIALIZED (
    SELECT worker_id FROM worker_heartbeats AS worker
    WHERE last_seen < statement_timestamp() - make_interval(secs => %(older_than_s)s::float8)
        AND state <> 'quarantined' AND NOT {is_holding}
    {at_once}
)
DELETE FROM worker_heartbeats WHERE worker_id = ANY (ARRAY(SELECT worker_id FROM gone))
RETURNING worker_id
""".replace("{is_holding}", _IS_HOLDING).replace("{at_once}", _AT_ONCE)
# Whether FLAG_DEAD or FORGET would find anything, in their own words.
FIND_SILENT: Final = """
SELECT EXISTS (
    SELECT FROM worker_heartbeats AS worker
    WHERE last_seen < statement_timestamp() - make_interval(secs => %(older_than_s)s::float8)
        AND last_flagged_dead_at IS NULL AND {is_holding}
) OR EXISTS (
    SELECT FROM worker_heartbeats AS worker
    WHERE last_seen < statement_timestamp() - make_interval(secs => %(forgets_after_s)s::float8)
        AND state <> 'quarantined' AND NOT {is_holding}
)
""".replace("{is_holding}", _IS_HOLDING)
SIGNS: Final = """
SELECT worker_id, last_seen, last_flagged_dead_at IS NOT NULL FROM worker_heartbeats
WHERE worker_id = ANY (%(worker_ids)s::text[])
"""
HOLDS_JOBS: Final = "SELECT " + _HOLDS.replace("{worker_id}", "%(worker_id)s::text")
DELETE: Final = "DELETE FROM worker_heartbeats WHERE worker_id = %(worker_id)s::text RETURNING worker_id"


class Sign(NamedTuple):
    """The least that is known of a worker: when it beat last, and whether somebody flagged it dead since."""

    last_seen: datetime
    flagged: bool


class Others(NamedTuple):
    """The other workers that were heard of within the last minute, up to a thousand.

    Of them `looking` are on this worker's queue and hear no wake, as their `load` says.
    """

    number: int
    looking: int


class Said(TypedDict, total=False):
    """What a heartbeat says beside which worker it is."""

    host_label: Required[str]
    queue: Required[str]
    pid: Required[int]
    state: Required[str]
    state_reason: str | None
    current_job: tuple[str, int] | None
    jobs_held: int
    current_model: str | None
    cached_models: Iterable[str]
    versions: dict[str, Any] | None
    load: dict[str, Any] | None
    control_version: int


class HeartbeatRepository(Repository["WorkerHeartbeat"]):
    """Heartbeats on the caller's connection."""

    _table = _TABLE

    def beat(self, worker_id: str, **said: Unpack[Said]) -> Others:
        """Say that a worker lives and what it does now; `current_job` is its family and its id."""
        question = self.beating(worker_id, **said)
        return question.read(self._sql.rows(question.sql, question.params))

    def beating(self, worker_id: str, **said: Unpack[Said]) -> Question[Others]:
        """`beat` as a question, to be asked with others."""
        family, job_id = said.get("current_job") or (None, None)
        params = self._place(worker_id, said) | {
            "current_job_family": None if family is None else check.word("family", family, JobFamily),
            "current_job_id": job_id,
            "jobs_held": check.whole("jobs_held", said.get("jobs_held", 0), 0, check.INT_MAX),
            "current_model": check.text_or_none("current_model", said.get("current_model")),
            "cached_models": self._limits.json(list(said.get("cached_models", ()))),
            "versions": self._limits.json_object("versions", said.get("versions")),
            "load": self._limits.json_object("load", said.get("load")),
            "control_version": said.get("control_version", 0),
        }
        return Question(BEAT, params, lambda rows: Others(*rows[0][0]))

    def resting(self, worker_id: str, said: Said, *, age_s: float = 0.0) -> dict[str, Any]:
        """One worker's row of `beating_all`, checked, said so long ago; it holds nothing."""
        versions, load = said.get("versions"), said.get("load")
        self._limits.json_object("versions", versions)
        self._limits.json_object("load", load)
        return self._place(worker_id, said) | {
            "cached_models": list(said.get("cached_models", ())),
            "versions": versions or {},
            "age_s": age_s,
            "load": load or {},
            "control_version": said.get("control_version", 0),
        }

    def beating_all(self, rows: Sequence[Mapping[str, Any]]) -> Question[list[str]]:
        """Write the heartbeats of workers that hold nothing, of rows by `resting`; those that have no row.

        A worker that has beaten by itself since is left as it is, and one that is gone stays so.
        """
        return Question(
            BEAT_ALL, {"said": self._limits.json(list(rows))}, lambda rows: [row[0] for row in rows]
        )

    @staticmethod
    def _place(worker_id: str, said: Said) -> dict[str, Any]:
        reason = said.get("state_reason")
        return {
            "worker_id": check.text("worker_id", worker_id),
            "host_label": check.text("host_label", said["host_label"]),
            "queue": check_queue_name(said["queue"]),
            "pid": check.whole("pid", said["pid"], 1, check.INT_MAX),
            "state": check.word("state", said["state"], WorkerState),
            "state_reason": check.text_or_none("state_reason", reason, max_bytes=check.TEXT_BYTES),
        }

    def fetch(self, worker_id: str) -> WorkerHeartbeat | None:
        """One worker's last beat, or None."""
        return self._first(FETCH, {"worker_id": worker_id})

    def counts(self) -> dict[str, dict[str, int]]:
        """How many workers there are, by queue and state; the silent ones too."""
        return self._counts(COUNTS)

    def standing(self, host_label: str = "*", queue: str = "*") -> list[Standing]:
        """Workers of a host and queue, `*` for any, each with what it has to obey; the silent ones too.

        Of more than `obedience.MOST` those that were heard of last.
        """
        params = {"host_label": check.text("host_label", host_label), "queue": check.text("queue", queue)}
        return standings(self._sql.rows(STANDING, params))

    def standing_of(self, worker_id: str) -> Standing | None:
        """One worker, silent or not, with what it has to obey; None where it never beat or was forgotten."""
        found = standings(self._sql.rows(STANDING_OF, {"worker_id": worker_id}))
        return found[0] if found else None

    def flag_dead(self, *, older_than_s: float) -> list[WorkerHeartbeat]:
        """Flag workers that hold running jobs and were not heard of for so long; those flagged now."""
        return self._table.load(self._flagged(older_than_s))

    def flag_silent(self, *, older_than_s: float) -> Sequence[str]:
        """As `flag_dead`; the ids of those flagged now, for a process that does without models."""
        return [self._table.read(row)["worker_id"] for row in self._flagged(older_than_s)]

    def _flagged(self, older_than_s: float) -> Rows:
        return self._sql.rows(FLAG_DEAD, {"older_than_s": check.seconds("older_than_s", older_than_s)})

    def forget(self, *, older_than_s: float) -> int:
        """Delete the beats of workers that hold nothing and were not heard of for so long; how many."""
        params = {"older_than_s": check.seconds("older_than_s", older_than_s)}
        return len(self._sql.rows(FORGET, params))

    def finding_silent(self, *, older_than_s: float, forgets_after_s: float) -> Question[bool]:
        """Whether there is anything for `flag_silent` or `forget`, to be asked with others."""
        params = {
            "older_than_s": check.seconds("older_than_s", older_than_s),
            "forgets_after_s": check.seconds("older_than_s", forgets_after_s),
        }
        return Question(FIND_SILENT, params, lambda rows: bool(rows[0][0]))

    def signs(self, worker_ids: Iterable[str]) -> dict[str, Sign]:
        """What is known of these workers; one that never beat is not among them."""
        rows = self._sql.rows(SIGNS, {"worker_ids": list(worker_ids)})
        return {worker_id: Sign(last_seen, flagged) for worker_id, last_seen, flagged in rows}

    def holds_jobs(self, worker_id: str) -> bool:
        """Whether any job is running in a worker's name."""
        return bool(self._sql.rows(HOLDS_JOBS, {"worker_id": worker_id})[0][0])

    def delete(self, worker_id: str) -> bool:
        """Forget a worker; whether there was one."""
        return bool(self._sql.rows(DELETE, {"worker_id": worker_id}))

    # Last, because its name hides the builtin from the annotations below it.
    def list(
        self,
        *,
        host_label: str | None = None,
        queue: str | None = None,
        state: str | Iterable[str] | None = None,
        flagged_dead: bool | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> list[WorkerHeartbeat]:
        """Workers by id; `after` is the id that the page before ended with."""
        filters = Filters()
        filters.add("host_label = %(host_label)s::text", host_label=host_label)
        filters.add("queue = %(queue)s::text", queue=queue)
        filters.add("state = ANY(%(state)s::text[])", state=check.words_or_none("state", state, WorkerState))
        filters.add("(last_flagged_dead_at IS NOT NULL) = %(flagged)s::boolean", flagged=flagged_dead)
        return self._page(filters, by="worker_id", after=after, limit=limit, newest_first=False)

    # Awaited, on an asynchronous connection.
    afetch = awaitable(fetch)
    acounts = awaitable(counts)
    astanding = awaitable(standing)
    astanding_of = awaitable(standing_of)
    alist = awaitable(list)
