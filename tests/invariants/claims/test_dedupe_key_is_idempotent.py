"""A dedupe key is one job, whoever enqueues it, however often, at the same time or in one call."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import psycopg
import pytest
from support.rows.schemas import blocked, until

import queue_workflows.repositories.jobs.bulk_insert
import queue_workflows.repositories.sql.columns
from queue_workflows.repositories import Enqueued, IngestJobRepository, NewIngestJob
from queue_workflows.repositories.sql.columns import CHUNK_ROWS

SERIALIZABLE = psycopg.IsolationLevel.SERIALIZABLE


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Threads for calls that have to wait."""
    with ThreadPoolExecutor(2) as threads:
        yield threads


@pytest.fixture
def pair(qwf_dsn: str) -> Iterator[tuple[psycopg.Connection, psycopg.Connection]]:
    """Two callers, on a table without jobs."""
    with psycopg.connect(qwf_dsn) as one, psycopg.connect(qwf_dsn) as two:
        one.execute("TRUNCATE ingest_jobs")
        one.commit()
        yield one, two
        one.rollback()
        two.rollback()


def single(connection: psycopg.Connection, key: str = "k") -> Enqueued:
    """Enqueue by the single verb."""
    return IngestJobRepository(connection).enqueue("task", queue="fetch", dedupe_key=key)


def bulk(connection: psycopg.Connection, *keys: str | None) -> list[Enqueued]:
    """Enqueue by the bulk verb."""
    return IngestJobRepository(connection).enqueue_many(
        NewIngestJob(task_name="task", queue="fetch", args={"n": n}, dedupe_key=key)
        for n, key in enumerate(keys)
    )


def bulk_of_one(connection: psycopg.Connection) -> Enqueued:
    """One job by the bulk verb."""
    return bulk(connection, "k")[0]


either_verb = pytest.mark.parametrize("enqueue", [single, bulk_of_one])


def waits_for(dsn: str, holder: psycopg.Connection, waiter: psycopg.Connection) -> None:
    """Prove by the server's own word that one caller waits for the other."""
    until(lambda: waiter.info.backend_pid in blocked(dsn, holder.info.backend_pid), "the wait for the key")


@either_verb
def test_second_call_finds_the_first(pair, enqueue) -> None:
    """A key that is there answers with its id, in the same transaction and in a later one."""
    one, two = pair
    first = enqueue(one)
    assert first.created
    assert enqueue(one) == (first.id, False)
    one.commit()
    assert enqueue(two) == (first.id, False)


def test_keys_belong_to_a_task(pair) -> None:
    """The same key under another task's name is another job, and no key at all is always a new one."""
    one, _ = pair
    repository = IngestJobRepository(one)
    made = [
        repository.enqueue("a", queue="fetch", dedupe_key="k"),
        repository.enqueue("b", queue="fetch", dedupe_key="k"),
        repository.enqueue("a", queue="fetch"),
        repository.enqueue("a", queue="fetch"),
    ]
    assert [each.created for each in made] == [True] * 4
    assert len({each.id for each in made}) == 4


@either_verb
def test_open_key_is_waited_for_and_found_after_commit(qwf_dsn, pair, pool, enqueue) -> None:
    """While another transaction holds the key open a call waits; once it commits, its job is the answer."""
    holder, waiter = pair
    first = enqueue(holder)
    second: Future[Enqueued] = pool.submit(enqueue, waiter)
    waits_for(qwf_dsn, holder, waiter)
    assert not second.done()
    holder.commit()
    assert second.result(150) == (first.id, False)


@either_verb
def test_open_key_is_waited_for_and_taken_after_rollback(qwf_dsn, pair, pool, enqueue) -> None:
    """If the transaction that held the key open rolls back, the waiting call makes the job."""
    holder, waiter = pair
    first = enqueue(holder)
    second: Future[Enqueued] = pool.submit(enqueue, waiter)
    waits_for(qwf_dsn, holder, waiter)
    holder.rollback()
    assert second.result(150).created
    assert second.result().id != first.id
    waiter.commit()
    assert IngestJobRepository(holder).fetch(second.result().id) is not None


@either_verb
def test_serializable_caller_learns_of_a_key_it_cannot_see(qwf_dsn, pair, pool, enqueue) -> None:
    """At SERIALIZABLE a key committed after the snapshot is a serialization failure; a retry gets the id."""
    holder, waiter = pair
    waiter.isolation_level = SERIALIZABLE
    waiter.execute("SELECT count(*) FROM ingest_jobs")
    first = enqueue(holder)
    second: Future[Enqueued] = pool.submit(enqueue, waiter)
    waits_for(qwf_dsn, holder, waiter)
    holder.commit()
    with pytest.raises(psycopg.errors.SerializationFailure):
        second.result(150)
    waiter.rollback()
    assert enqueue(waiter) == (first.id, False)


def test_key_of_a_row_that_goes_away_is_taken(qwf_dsn, pair, pool) -> None:
    """A row that is pruned while a call waits for it is no answer: the call makes its own."""
    pruner, waiter = pair
    gone = single(pruner)
    pruner.commit()
    pruner.execute("DELETE FROM ingest_jobs")
    second: Future[Enqueued] = pool.submit(bulk, waiter, "j", "k")
    waits_for(qwf_dsn, pruner, waiter)
    pruner.commit()
    assert [each.created for each in second.result(150)] == [True, True]
    assert gone.id not in [each.id for each in second.result()]


@either_verb
def test_row_pruned_between_conflict_and_lookup_is_tried_again(qwf_dsn, pair, monkeypatch, enqueue) -> None:
    """Pruned after the conflict and before the lookup: neither found nor made at first, made in the end."""
    pruner, caller = pair
    single(pruner)
    pruner.commit()
    real = psycopg.Cursor.execute
    pruned = threading.Event()

    def execute(cursor, query, params=None, **kwargs):
        is_lookup = cursor.connection is caller and b"SELECT" in query[:8]
        if is_lookup and not pruned.is_set():
            pruned.set()
            pruner.execute("DELETE FROM ingest_jobs")
            pruner.commit()
        return real(cursor, query, params, **kwargs)

    monkeypatch.setattr(psycopg.Cursor, "execute", execute)
    assert enqueue(caller).created
    assert pruned.is_set()


def test_duplicates_in_one_call(pair) -> None:
    """Of several with one key the first is made and the rest point at it; answers are in the order given."""
    one, _ = pair
    before = single(one, "old")
    answers = bulk(one, "b", "a", "b", None, "old", "a", None, "b")
    b, a = answers[0], answers[1]
    assert answers == [
        (b.id, True),
        (a.id, True),
        (b.id, False),
        (answers[3].id, True),
        (before.id, False),
        (a.id, False),
        (answers[6].id, True),
        (b.id, False),
    ]
    assert len({each.id for each in answers}) == 5
    repository = IngestJobRepository(one)
    numbers = [job.args["n"] for each in answers if each.created and (job := repository.fetch(each.id))]
    assert numbers == [0, 1, 3, 6]


@pytest.mark.parametrize("count", [100, 2 * CHUNK_ROWS + 1], ids=["one statement", "three statements"])
def test_two_calls_with_the_same_keys_in_other_orders_do_not_deadlock(qwf_dsn, pair, pool, count) -> None:
    """Rows go in by key, so the second of two calls waits for the first instead of each for the other."""
    one, two = pair
    keys = [f"k{n:04}" for n in range(count)]
    bulk(one, "k0000")
    one.execute("SAVEPOINT only_the_first_key")
    second: Future[list[Enqueued]] = pool.submit(bulk, two, *reversed(keys))
    waits_for(qwf_dsn, one, two)
    # The second call waits for the first key of all, so it holds none that this one needs.
    made = bulk(one, *keys)
    assert [each.created for each in made] == [False] + [True] * (count - 1)
    one.commit()
    assert [each.id for each in second.result(150)] == [each.id for each in reversed(made)]
    assert not any(each.created for each in second.result())


def test_the_next_statements_are_made_while_the_server_is_at_the_first(
    qwf_dsn, pair, pool, monkeypatch
) -> None:
    """All are on their way while the first waits for a key; what became of each is told as ever."""
    monkeypatch.setattr(queue_workflows.repositories.sql.columns, "CHUNK_ROWS", 2)
    real, made = queue_workflows.repositories.jobs.bulk_insert._insertion, list[int]()

    def insertion(table, rows, places):
        made.append(rows.count)
        return real(table, rows, places)

    holder, waiter = pair
    held = single(holder, "a")
    monkeypatch.setattr(queue_workflows.repositories.jobs.bulk_insert, "_insertion", insertion)
    later: Future[list[Enqueued]] = pool.submit(bulk, waiter, "e", "d", "c", "b", "a")
    waits_for(qwf_dsn, holder, waiter)
    until(lambda: made == [2, 2, 1], "the last statement")
    assert not later.done()
    holder.commit()
    answers = later.result(150)
    assert [each.created for each in answers] == [True] * 4 + [False]
    assert answers[4].id == held.id


def test_a_refusal_among_several_statements_is_the_drivers_own(pair, monkeypatch) -> None:
    """Nothing of the call is left behind it, and the caller's connection is as after any other refusal."""
    monkeypatch.setattr(queue_workflows.repositories.sql.columns, "CHUNK_ROWS", 2)
    holder, waiter = pair
    single(holder, "c")
    waiter.execute("SET LOCAL lock_timeout = '50ms'")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        bulk(waiter, "f", "e", "d", "c", "b", "a")
    assert waiter.pgconn.pipeline_status == psycopg.pq.PipelineStatus.OFF
    assert waiter.info.transaction_status == psycopg.pq.TransactionStatus.INERROR
    waiter.rollback()
    holder.rollback()
    assert all(each.created for each in bulk(waiter, "f", "e", "d", "c", "b", "a"))


@pytest.mark.parametrize("size", [10, 2], ids=["one statement", "several"])
def test_place_in_the_queue_is_the_order_given(pair, monkeypatch, size) -> None:
    """Bulk rows are claimed in the order in which they were given, whatever their keys."""
    monkeypatch.setattr(queue_workflows.repositories.sql.columns, "CHUNK_ROWS", size)
    one, _ = pair
    answers = bulk(one, "z", None, "a", "z", "m", None, "b")
    assert [each.created for each in answers] == [True] * 3 + [False] + [True] * 3
    assert answers[3].id == answers[0].id
    claimed = IngestJobRepository(one).claim("fetch", worker_id="w", lease_s=5, limit=10)
    assert [job.id for job in claimed] == [each.id for each in answers if each.created]
