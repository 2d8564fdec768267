"""What is older than the retention goes, a part at a time, and what has a key stays for a while."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from support.connections.kept import own_connection
from support.rows.jobs import CLEAR
from support.rows.runs import dispatcher, run_through, settings, settle, start, work

from queue_workflows.engine.runs.retry import retry_run
from queue_workflows.engine.upkeep import retention
from queue_workflows.engine.upkeep.retention import EVERY_S, Pruning
from queue_workflows.errors import RunRefused
from queue_workflows.repositories import IngestJobRepository
from queue_workflows.repositories.retention import JOBS_AT_ONCE, RUNS_AT_ONCE, PruningRepository
from queue_workflows.repositories.runs.runs import ParentNode

ONE = {"nodes": [{"id": "one", "module": "m"}]}


@pytest.fixture
def connection(qwf_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """Empty tables, and a connection whose every statement is seen at once."""
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR)
        yield connection


def prune(connection: psycopg.Connection[Any], **given: Any) -> None:
    """Until there is nothing more to do."""
    to_the_end(connection, Pruning(settings(**given)))


def to_the_end(connection: psycopg.Connection[Any], pruning: Pruning) -> None:
    """All parts that one process prunes without a pause."""
    while pruning.prune(connection) < EVERY_S:
        pass


EARLIER = "UPDATE workflow_runs SET finished_at = finished_at - interval '7 days'"


def age(connection: psycopg.Connection[Any], table: str, days: int) -> None:
    """Let everything that is over have ended some days earlier."""
    earlier = "finished_at - make_interval(days => %s)"
    connection.execute(f"UPDATE {table} SET finished_at = {earlier} WHERE finished_at IS NOT NULL", [days])


def test_old_runs_go_with_all_that_is_theirs(connection):
    """One that is not over stays, one with a key stays a while, and nothing of the old ones is left."""
    for key in (None, "a", "b"):
        start(connection, ONE, dedupe_key=key)
    run_through(connection, dispatcher(connection), lambda job: {})
    age(connection, "workflow_runs", 31)
    connection.execute(f"{EARLIER} WHERE dedupe_key = 'b'")
    going = start(connection, ONE)
    prune(connection)
    left = connection.execute("SELECT id = %s, dedupe_key FROM workflow_runs ORDER BY id", [going]).fetchall()
    assert left == [(False, "a"), (True, None)]
    assert connection.execute("SELECT count(*) FROM workflow_node_jobs").fetchone() == (1,)
    prune(connection, retention_days=0, dedupe_ttl_days=0)
    assert connection.execute("SELECT id FROM workflow_runs").fetchall() == [(going,)]


def test_old_ingest_jobs_go_and_their_keys_a_while_later(connection):
    """A job with a key loses what it was about first; what waits or is young stays whole."""
    jobs = IngestJobRepository(connection)
    kept = jobs.enqueue("t", queue="fetch", args={"n": 1}, dedupe_key="k").id
    jobs.enqueue("t", queue="fetch", args={"n": 2})
    for job in jobs.claim("fetch", worker_id="w", lease_s=30, limit=2):
        jobs.complete(job, {"done": True})
    age(connection, "ingest_jobs", 31)
    waiting = jobs.enqueue("t", queue="fetch", args={"n": 3}).id
    prune(connection)
    rows = connection.execute("SELECT id, args, result, status FROM ingest_jobs ORDER BY id").fetchall()
    assert rows == [(kept, {}, None, "completed"), (waiting, {"n": 3}, None, "queued")]
    assert jobs.enqueue("t", queue="fetch", dedupe_key="k") == (kept, False)
    age(connection, "ingest_jobs", 7)
    prune(connection)
    assert connection.execute("SELECT id FROM ingest_jobs").fetchall() == [(waiting,)]


OLD = """
INSERT INTO ingest_jobs (task_name, queue, status, args, dedupe_key, finished_at)
SELECT 't', 'fetch', 'completed', '{"n": 1}', CASE WHEN n %% 2 = 0 THEN 'key-' || n END,
    now() - interval '31 days' - make_interval(mins => %s - n)
FROM generate_series(1, %s) AS n
"""
# So many minutes and a month ago the first, and the others so many seconds apart.
CROWD = """
INSERT INTO ingest_jobs (task_name, queue, status, finished_at)
SELECT 't', 'fetch', 'completed',
    now() - interval '30 days' - make_interval(mins => %s) + make_interval(secs => %s * n)
FROM generate_series(1, %s) AS n
"""


@pytest.mark.parametrize("held", [1, 2], ids=["to delete", "to empty"])
def test_what_somebody_holds_is_pruned_once_it_is_let_go(connection, qwf_dsn, held):
    """A process that begins behind what was pruned comes back for it, and for nothing else."""
    connection.execute(OLD, [6, 6])
    ids = [job_id for (job_id,) in connection.execute("SELECT id FROM ingest_jobs ORDER BY id")]
    left = "SELECT id, args <> '{}' FROM ingest_jobs ORDER BY id"
    kept = [(ids[n], False) for n in (1, 3, 5)]
    with psycopg.connect(qwf_dsn) as other:
        other.execute("SELECT FROM ingest_jobs WHERE id = %s FOR UPDATE", [ids[held - 1]])
        prune(connection)
        whole = {(ids[held - 1], True)}
        others = {one for one in kept if one[0] != ids[held - 1]}
        assert set(connection.execute(left)) == whole | others
    prune(connection)
    assert connection.execute(left).fetchall() == kept


@pytest.mark.parametrize("apart_s", [0, 1], ids=["at one moment", "one after the other"])
def test_a_crowd_that_somebody_holds_holds_up_nothing_behind_it(connection, qwf_dsn, apart_s):
    """More than a part looks at: what ended later goes, and the crowd as soon as it is let go."""
    crowd = JOBS_AT_ONCE + 1
    for minutes, count, apart in ((60, crowd, apart_s), (5, 3, 1)):
        connection.execute(CROWD, [minutes, apart, count])
    ((last,),) = connection.execute("SELECT id FROM ingest_jobs ORDER BY id LIMIT 1 OFFSET %s", [crowd - 1])
    pruning = Pruning(settings())
    left = "SELECT count(*) FILTER (WHERE id <= %s), count(*) FROM ingest_jobs"
    with psycopg.connect(qwf_dsn) as other:
        other.execute("SELECT FROM ingest_jobs WHERE id <= %s FOR UPDATE", [last])
        for _ in range(5):
            if pruning.prune(connection) == EVERY_S:
                break
        assert connection.execute(left, [last]).fetchone() == (crowd, crowd)
    to_the_end(connection, pruning)
    assert connection.execute(left, [last]).fetchone() == (0, 0)


def test_what_ended_later_is_pruned_by_whichever_process_comes_next(connection):
    """Each knows from the database how far another came."""
    connection.execute(OLD, [4, 4])
    one, other = Pruning(settings()), Pruning(settings())
    assert one.prune(connection) == EVERY_S
    later = "now() - interval '30 days 1 s'"
    connection.execute(f"UPDATE ingest_jobs SET args = '{{\"n\": 2}}', finished_at = {later}")
    assert other.prune(connection) == EVERY_S
    assert connection.execute("SELECT DISTINCT args::text FROM ingest_jobs").fetchall() == [("{}",)]


def test_a_run_that_something_refers_to_stays_and_holds_up_no_other(connection):
    """A host app's own table may refer to a run."""
    held, free = start(connection, ONE), start(connection, ONE)
    run_through(connection, dispatcher(connection), lambda job: {})
    age(connection, "workflow_runs", 31)
    connection.execute("CREATE TABLE film (run_id uuid REFERENCES workflow_runs (id))")
    try:
        connection.execute("INSERT INTO film VALUES (%s)", [held])
        prune(connection)
        assert connection.execute("SELECT id FROM workflow_runs").fetchall() == [(held,)]
        assert free != held
    finally:
        connection.execute("DROP TABLE film")


def test_a_run_goes_within_an_hour_once_nothing_refers_to_it(connection, monkeypatch):
    """With a key or without one, though the process that kept it has come further."""
    held = [start(connection, ONE, dedupe_key=key) for key in (None, "a")]
    run_through(connection, dispatcher(connection), lambda job: {})
    age(connection, "workflow_runs", 31)
    connection.execute(f"{EARLIER} WHERE dedupe_key = 'a'")
    hours = [0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + 3600 * hours[0])
    monkeypatch.setattr(retention, "time", clock)
    pruning = Pruning(settings())
    connection.execute("CREATE TABLE film (run_id uuid REFERENCES workflow_runs (id))")
    try:
        connection.execute("INSERT INTO film SELECT unnest(%s)", [held])
        to_the_end(connection, pruning)
        assert runs_of(connection) == set(held)
        connection.execute("DELETE FROM film")
        to_the_end(connection, pruning)
        assert runs_of(connection) == set(held)
        hours[0] = 1
        to_the_end(connection, pruning)
        assert runs_of(connection) == set()
    finally:
        connection.execute("DROP TABLE film")


TWO = {
    "nodes": [
        {"id": "one", "module": "m"},
        {"id": "two", "module": "m", "inputs": {"n": {"$from": "one.n"}}, "retry": {"max_attempts": 1}},
    ]
}
MONTH_S = 30 * 86_400.0


def failed_in_two(connection: psycopg.Connection[Any]) -> Any:
    """A run that has a result and a failure, and ended long ago."""
    run_id = start(connection, TWO)

    def body(job: Any) -> dict[str, Any]:
        if job.node_id == "two":
            raise ValueError("no")
        return {"n": 1}

    run_through(connection, dispatcher(connection), body)
    age(connection, "workflow_runs", 31)
    return run_id


def test_a_run_that_is_retried_while_it_is_to_go_keeps_its_results(connection):
    """Between the look for old runs and their deletion somebody may run one again, and it may end again."""
    run_id = failed_in_two(connection)
    pruning = PruningRepository(connection, kept_s=MONTH_S, ttl_s=0.0)
    assert [run.id for run in pruning.old_runs([])] == [run_id]
    retry_run(run_id, conn=connection)
    assert (pruning.delete_jobs([run_id]), pruning.delete_run(run_id)) == (0, False)
    busy = dispatcher(connection)
    settle(busy)
    assert work(connection, lambda job: {"n": 2}) == 1
    settle(busy)
    assert (pruning.delete_jobs([run_id]), pruning.delete_run(run_id)) == (0, False)
    ended = connection.execute("SELECT status FROM workflow_runs WHERE id = %s", [run_id]).fetchone()
    assert ended == ("completed",)


def test_who_retries_a_run_first_has_its_results(connection, qwf_dsn):
    """Nobody deletes the jobs of a run that is being retried, and nobody waits for that."""
    run_id = failed_in_two(connection)
    pruning = PruningRepository(connection, kept_s=MONTH_S, ttl_s=0.0)
    connection.execute("SET lock_timeout = '5s'")
    with psycopg.connect(qwf_dsn) as other:
        retry_run(run_id, conn=other)
        assert pruning.delete_jobs([run_id]) == 0
    assert not pruning.delete_run(run_id)


def test_a_run_whose_results_are_going_is_not_retried(connection):
    """What it would keep is not there any more, and would be null to what runs again."""
    run_id = failed_in_two(connection)
    connection.execute("DELETE FROM workflow_node_jobs WHERE node_id = 'one'")
    with pytest.raises(RunRefused, match="start another run"):
        retry_run(run_id, conn=connection)


def below(connection: psycopg.Connection[Any], parent: Any, **more: Any) -> Any:
    return start(connection, ONE, parent=ParentNode(parent, None, 1), **more)


def test_a_run_stays_as_long_as_any_below_it(connection):
    """However old it is, it takes none along that is open, is to be kept, or has its key."""
    root = start(connection, ONE)
    middle = below(connection, root)
    leaves = [below(connection, middle, dedupe_key=key) for key in (None, "a")]
    everything = {root, middle, *leaves}
    run_through(connection, dispatcher(connection), lambda job: {})
    age(connection, "workflow_runs", 31)
    young = "UPDATE workflow_runs SET finished_at = now() WHERE id = %s"
    connection.execute(young, [leaves[0]])
    prune(connection)
    assert runs_of(connection) == everything
    age(connection, "workflow_runs", 7)
    assert retry_run(leaves[0], conn=connection, from_node="one").again == ("one",)
    prune(connection)
    assert runs_of(connection) == {root, middle, leaves[0]}
    run_through(connection, dispatcher(connection), lambda job: {})
    age(connection, "workflow_runs", 31)
    prune(connection)
    assert runs_of(connection) == set()


def test_a_run_is_not_deleted_beside_a_retry_of_one_below_it(connection, qwf_dsn):
    """Nor waits for it, though nothing is seen of it before it is committed."""
    root = start(connection, ONE)
    leaf = below(connection, root)
    run_through(connection, dispatcher(connection), lambda job: {})
    age(connection, "workflow_runs", 31)
    pruning = PruningRepository(connection, kept_s=MONTH_S, ttl_s=0.0)
    connection.execute("SET lock_timeout = '5s'")
    with psycopg.connect(qwf_dsn) as other:
        retry_run(leaf, conn=other, from_node="one")
        assert not pruning.delete_run(root)
    assert runs_of(connection) == {root, leaf}


def runs_of(connection: psycopg.Connection[Any]) -> set[Any]:
    return {run_id for (run_id,) in connection.execute("SELECT id FROM workflow_runs")}


def test_a_run_goes_as_soon_as_the_last_below_it_has(connection):
    """Also where the looks for what is old have passed it by."""
    root = start(connection, ONE)
    middle = below(connection, root)
    leaf = below(connection, middle, dedupe_key="a")
    run_through(connection, dispatcher(connection), lambda job: {})
    age(connection, "workflow_runs", 39)
    connection.execute("UPDATE workflow_runs SET finished_at = now() - interval '36 d' WHERE id = %s", [leaf])
    pruning = Pruning(settings())
    assert pruning.prune(connection) == EVERY_S
    assert runs_of(connection) == {root, middle, leaf}
    # Its time has come since.
    connection.execute("UPDATE workflow_runs SET finished_at = now() - interval '37 d' WHERE id = %s", [leaf])
    to_the_end(connection, pruning)
    assert runs_of(connection) == set()


PARENTS = """
WITH made AS (
    INSERT INTO workflow_runs (id, workflow_name, spec, spec_hash, status, finished_at)
    SELECT gen_random_uuid(), 'film', '{}', 'h', 'completed', now() - interval '36 days'
    FROM generate_series(1, 2 * %(each)s)
    RETURNING id
)
INSERT INTO workflow_runs (
    id, workflow_name, spec, spec_hash, status, parent_run_id, dedupe_key, depth, finished_at
)
SELECT gen_random_uuid(), 'film', '{}', 'h', 'completed', id, CASE WHEN n <= %(each)s THEN 'key-' || n END, 1,
    now() - CASE WHEN n <= %(each)s THEN interval '38 days' ELSE interval '31 days' END
FROM (SELECT id, row_number() OVER () AS n FROM made) AS numbered
"""


def test_no_run_is_forgotten_however_many_waited_for_one_part(connection):
    """A part takes runs whose keys are over beside runs without one, and each may have one above it."""
    connection.execute(PARENTS, {"each": RUNS_AT_ONCE - 10})
    prune(connection)
    assert runs_of(connection) == set()
