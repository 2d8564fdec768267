"""Ingest jobs: what is stored, found, paged and counted, one at a time and in bulk."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from queue_workflows.errors import DatabaseError, PayloadError
from queue_workflows.models import IngestJob
from queue_workflows.repositories import Enqueued, IngestJobRepository, NewIngestJob
from queue_workflows.repositories.jobs import bulk_insert
from queue_workflows.repositories.sql import columns

FULL: dict[str, Any] = {
    "task_name": "task",
    "queue": "fetch",
    "args": {"a": 1},
    "reason": "because",
    "dedupe_key": "key",
    "priority": 7,
    "limit_key": "host:example.org",
    "max_attempts": 9,
    "backoff_s": 0.0,
    "timeout_s": 12.5,
    "stall_timeout_s": 3.0,
    "host_lock": "lock",
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
}


@pytest.fixture
def jobs(qwf_conn: psycopg.Connection) -> Iterator[IngestJobRepository]:
    """The repository on an empty table."""
    qwf_conn.execute("DELETE FROM ingest_jobs")
    return IngestJobRepository(qwf_conn)


def enqueue(jobs: IngestJobRepository, how: str, **job: Any) -> IngestJob:
    """Enqueue by either verb and fetch the row."""
    if how == "one":
        made = jobs.enqueue(job.pop("task_name"), **job)
    else:
        # Among others, so that every column goes as an array.
        others = [
            NewIngestJob(task_name="other", queue="load"),
            NewIngestJob(**FULL | {"dedupe_key": "other"}),
        ]
        made = jobs.enqueue_many([others[0], NewIngestJob(**job), others[1]])[1]
    found = jobs.fetch(made.id)
    assert made.created
    assert found is not None
    return found


either_verb = pytest.mark.parametrize("how", ["one", "many"])


@either_verb
def test_everything_given_is_stored(jobs: IngestJobRepository, how: str) -> None:
    """Each value goes to its own column."""
    row = enqueue(jobs, how, **FULL)
    assert {name: getattr(row, name) for name in FULL} == FULL
    assert (row.status, row.attempt, row.failures, row.generation, row.claimed_by) == (
        "queued",
        0,
        0,
        1,
        None,
    )


@either_verb
def test_defaults(jobs: IngestJobRepository, how: str) -> None:
    """What is not given is what the table says."""
    row = enqueue(jobs, how, task_name="task", queue="fetch")
    stored = (
        row.args,
        row.reason,
        row.priority,
        row.max_attempts,
        row.backoff_s,
        row.timeout_s,
        row.limit_key,
    )
    assert stored == ({}, None, 5, 3, None, None, None)


@either_verb
def test_due_later_is_scheduled(jobs: IngestJobRepository, how: str) -> None:
    """A job due in the future waits as 'scheduled', to the moment that was asked for."""
    moment = datetime(2200, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)
    row = enqueue(jobs, how, task_name="task", queue="fetch", run_at=moment)
    assert (row.status, row.run_at) == ("scheduled", moment)
    late = enqueue(jobs, how, task_name="late", queue="fetch", delay=timedelta(minutes=1))
    assert late.status == "scheduled"
    assert timedelta(seconds=59) < late.run_at - late.created_at < timedelta(seconds=90)


@either_verb
@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "Pacific/Pago_Pago"])
def test_what_may_be_stored_can_be_read_in_every_zone(
    jobs: IngestJobRepository, qwf_conn: psycopg.Connection, how: str, zone: str
) -> None:
    """From the first moment to the last; one that is beyond them is refused before it breaks a list."""
    moments = [datetime(2, 1, 1, tzinfo=UTC), datetime(9998, 12, 31, 23, 59, 59, tzinfo=UTC)]
    qwf_conn.execute(f"SET TimeZone TO '{zone}'")
    try:
        for moment in moments:
            assert enqueue(jobs, how, task_name="task", queue="fetch", run_at=moment).run_at == moment
        for moment in (moments[0] - timedelta(days=1), moments[1] + timedelta(days=1)):
            with pytest.raises(PayloadError, match="is beyond the calendar"):
                enqueue(jobs, how, task_name="task", queue="fetch", run_at=moment)
    finally:
        qwf_conn.execute("RESET TimeZone")


@either_verb
def test_due_already_is_queued(jobs: IngestJobRepository, how: str) -> None:
    """A moment that has passed, in whatever time zone, and no delay at all mean now."""
    past = datetime.now(UTC) - timedelta(hours=1)
    row = enqueue(jobs, how, task_name="task", queue="fetch", run_at=past)
    assert (row.status, row.run_at) == ("queued", past)
    assert enqueue(jobs, how, task_name="now", queue="fetch", delay=0).status == "queued"


@either_verb
def test_the_databases_clock_decides(
    jobs: IngestJobRepository, qwf_conn: psycopg.Connection, how: str
) -> None:
    """Due is reckoned at the statement, not at the start of a long transaction or by the caller's clock."""
    qwf_conn.execute("SELECT now()")
    (moment,) = qwf_conn.execute("SELECT clock_timestamp()").fetchone() or (None,)
    row = enqueue(jobs, how, task_name="task", queue="fetch", run_at=moment)
    (started,) = qwf_conn.execute("SELECT now()").fetchone() or (None,)
    assert moment > started
    assert row.status == "queued"


def test_filters(jobs: IngestJobRepository, qwf_conn: psycopg.Connection) -> None:
    """Each filter keeps its own rows, and together they narrow."""
    plain = jobs.enqueue("a", queue="fetch").id
    full = jobs.enqueue(**FULL).id
    later = jobs.enqueue("a", queue="load", delay=60).id
    (held,) = jobs.claim("fetch", worker_id="w1", lease_s=5)
    qwf_conn.execute(
        "UPDATE ingest_jobs SET schedule_name = 's', tick_at = now(), created_at = '2020-01-01Z'"
        " WHERE id = %s",
        (later,),
    )
    assert held.id == full

    def found(**filters: Any) -> set[int]:
        return {job.id for job in jobs.list(**filters)}

    assert found() == {plain, full, later}
    assert found(queue="fetch") == {plain, full}
    assert found(task_name="a") == {plain, later}
    assert found(status="running") == {full}
    assert found(status=["queued", "scheduled"]) == {plain, later}
    assert found(status=[]) == set()
    assert found(dedupe_key="key") == {full}
    assert found(limit_key="host:example.org") == {full}
    assert found(claimed_by="w1") == {full}
    assert found(schedule_name="s") == {later}
    assert found(
        created_from=datetime(2020, 1, 1, tzinfo=UTC), created_before=datetime(2021, 1, 1, tzinfo=UTC)
    ) == {later}
    assert found(created_from=datetime(2021, 1, 1, tzinfo=UTC)) == {plain, full}
    assert found(queue="fetch", status="queued", task_name="a") == {plain}
    assert found(queue="x' OR '1'='1") == set()


@pytest.mark.parametrize("newest_first", [True, False])
def test_pages_meet_without_gap_or_overlap(jobs: IngestJobRepository, newest_first: bool) -> None:
    """Following `after` visits every row once, in order, though rows come in meanwhile."""
    ids = [each.id for each in jobs.enqueue_many([NewIngestJob(task_name="t", queue="fetch")] * 7)]
    seen: list[int] = []
    while page := jobs.list(
        task_name="t", limit=3, after=seen[-1] if seen else None, newest_first=newest_first
    ):
        assert len(page) <= 3
        seen += [job.id for job in page]
        jobs.enqueue("another", queue="fetch")
    assert seen == sorted(ids, reverse=newest_first)


def test_counts(jobs: IngestJobRepository) -> None:
    """Counted by queue and status."""
    assert jobs.counts() == {}
    jobs.enqueue_many([NewIngestJob(task_name="t", queue="fetch")] * 3)
    jobs.enqueue("t", queue="load", delay=60)
    jobs.claim("fetch", worker_id="w", lease_s=5)
    assert jobs.counts() == {"fetch": {"queued": 2, "running": 1}, "load": {"scheduled": 1}}


@pytest.mark.parametrize("flight", [1, bulk_insert.IN_FLIGHT])
def test_bulk_over_many_chunks(
    jobs: IngestJobRepository, qwf_conn: psycopg.Connection, flight: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers stay in order over chunks, with keys taken before, in earlier chunks and in the same one."""
    monkeypatch.setattr(bulk_insert, "IN_FLIGHT", flight)
    old = jobs.enqueue("t", queue="fetch", dedupe_key="k5")
    count = 3 * columns.CHUNK_ROWS + 7
    given = (
        NewIngestJob(
            task_name="t",
            queue="fetch" if n % 2 else "load",
            args={"n": n},
            dedupe_key=None if n % 3 == 0 else f"k{n % 2500}",
        )
        for n in range(count)
    )
    answers = jobs.enqueue_many(given)
    assert len(answers) == count
    stored = qwf_conn.execute(
        "SELECT id, args->'n', dedupe_key, queue FROM ingest_jobs ORDER BY position"
    ).fetchall()
    rows = {job_id: (n, key, queue) for job_id, n, key, queue in stored}
    created = [(n, answer.id) for n, answer in enumerate(answers) if answer.created]
    assert [(n, job_id) for job_id, n, *_ in stored if job_id != old.id] == created
    makers: dict[str, int] = {"k5": old.id}
    for n, answer in enumerate(answers):
        key = None if n % 3 == 0 else f"k{n % 2500}"
        if answer.created:
            assert rows[answer.id] == (n, key, "fetch" if n % 2 else "load")
        if key is not None:
            assert answer.created == (key not in makers)
            assert answer.id == makers.setdefault(key, answer.id)


def test_answers_are_read_while_the_server_works(
    jobs: IngestJobRepository, qwf_conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next flight is on its way before anything is made of what came of the one before."""
    busy: list[bool] = []
    settled = bulk_insert._settled

    def watched(*args: Any) -> list[Enqueued]:
        busy.append(qwf_conn.pgconn.transaction_status == TransactionStatus.ACTIVE)
        return settled(*args)

    monkeypatch.setattr(bulk_insert, "IN_FLIGHT", 2)
    monkeypatch.setattr(bulk_insert, "_settled", watched)
    made = jobs.enqueue_many([NewIngestJob(task_name="t", queue="fetch")] * (5 * columns.CHUNK_ROWS))
    assert len({each.id for each in made}) == 5 * columns.CHUNK_ROWS
    assert busy == [True] * 4 + [False]


@pytest.mark.parametrize("key", [None, "k"])
def test_args_reach_the_job_that_they_came_with(
    jobs: IngestJobRepository, qwf_conn: psycopg.Connection, key: str | None
) -> None:
    """However many values are in them, and with whatever in their texts that parts a list."""
    given: list[dict[str, Any] | None] = [
        *(
            {"a": [1, [2, None]], "b": {"c": []}},
            None,
            {"x": '],[{"}\\,'},
            {},
            {"n": None},
            {"n": 2**70},
            {"ü": "☃"},
        ),
        *({"n": n} for n in range(columns.CHUNK_ROWS)),
    ]
    made = jobs.enqueue_many(
        NewIngestJob(task_name="t", queue="fetch", args=args, dedupe_key=key and f"{key}{n}")
        for n, args in enumerate(given)
    )
    stored = dict(qwf_conn.execute("SELECT id, args FROM ingest_jobs").fetchall())
    assert [stored[each.id] for each in made] == [args or {} for args in given]


def test_chunks_are_bounded_by_size(jobs: IngestJobRepository) -> None:
    """Large payloads go in statements of a few, never all in one."""
    for lengths, expected in (
        ([3_000_000] * 5 + [1] * 3, [(0, 2), (2, 4), (4, 8)]),
        ([20_000_000] * 2, [(0, 1), (1, 2)]),
        ([], []),
    ):
        rows = columns.Columns(len(lengths), {"t": "x"}, {"args": ["y" * length for length in lengths]})
        assert list(rows.bounds(["args"])) == expected
    made = jobs.enqueue_many(
        NewIngestJob(task_name="t", queue="fetch", args={"x": "x" * 3_000_000}) for _ in range(4)
    )
    assert len({each.id for each in made}) == 4


def test_rows_are_inserted_in_the_order_of_their_keys(
    jobs: IngestJobRepository, qwf_conn: psycopg.Connection
) -> None:
    """The physical order is the keys', which is what keeps two bulk calls from deadlocking."""
    qwf_conn.execute("TRUNCATE ingest_jobs")
    keys = ["m", "B", "a", "z", "C"]
    jobs.enqueue_many(NewIngestJob(task_name="t", queue="fetch", dedupe_key=key) for key in keys)
    stored = qwf_conn.execute("SELECT dedupe_key FROM ingest_jobs ORDER BY ctid").fetchall()
    assert [key for (key,) in stored] == sorted(keys)


def test_row_that_is_swallowed(jobs: IngestJobRepository, qwf_conn: psycopg.Connection) -> None:
    """A trigger of somebody's that drops the row ends in an error that says so, not in an endless loop."""
    qwf_conn.execute(
        """
        CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
        CREATE TRIGGER swallow BEFORE INSERT ON ingest_jobs FOR EACH ROW EXECUTE FUNCTION swallow()
        """
    )
    for key in ("k", None):
        with pytest.raises(DatabaseError, match="neither inserted nor found"):
            jobs.enqueue("t", queue="fetch", dedupe_key=key)
        with pytest.raises(DatabaseError, match="neither inserted nor found"):
            jobs.enqueue_many([NewIngestJob(task_name="t", queue="fetch", dedupe_key=key)])
    qwf_conn.rollback()
