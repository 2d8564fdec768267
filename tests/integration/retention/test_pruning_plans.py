"""What retention reads grows with what it prunes, not with what is kept; emptied rows stay on their pages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from support.rows.jobs import CLEAR
from support.rows.plans import explain, rows_read
from support.rows.runs import settings

from queue_workflows.db.connections.engine import Database
from queue_workflows.engine.upkeep.retention import EVERY_S, Pruning
from queue_workflows.repositories import retention
from queue_workflows.repositories.reports.metrics import PRUNING_LAG, FigureRepository
from queue_workflows.repositories.retention import RetentionTimes

TABLES = ("ingest_jobs", "workflow_runs")
KEPT = 100_000
OLD = 2_500
YOUNG = 20_000
# Jobs that were emptied and stay for their keys; those that are to go or to be emptied; and young ones.
JOBS = f"""
INSERT INTO ingest_jobs (task_name, queue, status, args, dedupe_key, finished_at)
SELECT 't', 'fetch', 'completed',
    CASE WHEN n <= {KEPT} THEN '{{}}'::jsonb ELSE '{{"url": "https://site.example"}}' END,
    CASE WHEN n <= {KEPT} OR n % 2 = 0 THEN 'key-' || n END,
    CASE WHEN n <= {KEPT} THEN now() - interval '36 days' + interval '4 s' * n
        WHEN n <= {KEPT + 2 * OLD} THEN now() - interval '31 days' + interval '1 s' * n / 10 ELSE now() END
FROM generate_series(1, {KEPT + 2 * OLD + YOUNG}) AS n
"""
# Runs that stay for their keys, runs that stay as one below them does, those that are to go, and young ones.
RUNS = (
    """
INSERT INTO workflow_runs (id, workflow_name, spec, spec_hash, status, dedupe_key, finished_at)
SELECT gen_random_uuid(), 'film', '{}', 'h', 'completed', CASE WHEN n <= 20000 THEN 'key-' || n END,
    now() - CASE WHEN n <= 20000 THEN interval '36 days' - interval '20 s' * n
        WHEN n <= 25000 THEN interval '50 days'
        WHEN n <= 25300 THEN interval '31 days' ELSE interval '1 day' END
FROM generate_series(1, 30000) AS n
""",
    """
INSERT INTO workflow_runs (id, workflow_name, spec, spec_hash, status, parent_run_id)
SELECT gen_random_uuid(), 'film', '{}', 'h', 'running', id FROM workflow_runs
WHERE finished_at < now() - interval '49 days'
""",
)
# What retention has left behind before.
MARK = """
INSERT INTO retention_marks (family, seen_before)
SELECT 'ingest', max(finished_at) FROM ingest_jobs WHERE args = '{}'
"""
# More has become old since.
MORE = (
    """
UPDATE ingest_jobs SET finished_at = now() - interval '30 days 1 h', args = '{"n": 1}'
WHERE id IN (SELECT id FROM ingest_jobs ORDER BY id DESC LIMIT 4000)
""",
    """
UPDATE workflow_runs SET finished_at = now() - interval '30 days 1 h'
WHERE id IN (SELECT id FROM workflow_runs WHERE finished_at > now() - interval '2 days' LIMIT 300)
""",
)
PINS = ("seqscan", "bitmapscan")
pytestmark = pytest.mark.slow
MODES = pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
TIMES = RetentionTimes()._asdict()


@contextmanager
def crowded(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """More than 100,000 jobs and 20,000 runs that stay, on a connection as roles have it."""
    with Database.open(dsn, role="test", creates=False) as database:
        connection = database.connect(autocommit=True)
        for table in TABLES:
            connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
        fill(connection)
        yield connection
        connection.execute(CLEAR)
        for table in TABLES:
            connection.execute(f"ALTER TABLE {table} RESET (autovacuum_enabled)")


def fill(connection: psycopg.Connection[Any]) -> None:
    """Make the rows anew."""
    connection.execute(CLEAR)
    connection.execute("SET session_replication_role = replica")
    for sql in (JOBS, *RUNS, MARK):
        connection.execute(sql)
    connection.execute("RESET session_replication_role")
    connection.execute(f"VACUUM ANALYZE {', '.join(TABLES)}")


@pytest.fixture(scope="module")
def connection(qwf_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """The one for all tests of the file."""
    with crowded(qwf_dsn) as connection:
        yield connection


def read(connection: psycopg.Connection[Any]) -> int:
    """How many rows of both tables have been read since they were made."""
    connection.execute("SELECT pg_stat_force_next_flush()")
    ((rows,),) = connection.execute(
        "SELECT sum(seq_tup_read + idx_tup_fetch)::bigint FROM pg_stat_user_tables WHERE relname = ANY (%s)",
        [list(TABLES)],
    )
    return int(rows)


def prune(connection: psycopg.Connection[Any], pruning: Pruning) -> int:
    """Until there is nothing more to do; how many rows that read."""
    before = read(connection)
    while pruning.prune(connection) < EVERY_S:
        pass
    return read(connection) - before


def counts(connection: psycopg.Connection[Any]) -> tuple[int, ...]:
    """Jobs, those that are whole, and runs that are over."""
    ((jobs, whole),) = connection.execute(
        "SELECT count(*), count(*) FILTER (WHERE args <> '{}') FROM ingest_jobs"
    )
    ((runs,),) = connection.execute("SELECT count(*) FROM workflow_runs WHERE finished_at IS NOT NULL")
    return jobs, whole, runs


@MODES
def test_each_look_ends_early(connection, mode):
    """However much stays for its key: from the mark on, by the index of what is over."""
    ((mark,),) = connection.execute("SELECT max(finished_at) FROM ingest_jobs WHERE args = '{}'")
    since = {**TIMES, "since": mark}
    plan = explain(connection, mode, retention.OLD_INGEST, since, off=PINS)
    assert rows_read(plan, "ingest_jobs") <= retention.JOBS_AT_ONCE + 10
    plan = explain(connection, mode, retention.DELETE_INGEST, {**TIMES, "since": None}, off=PINS)
    assert rows_read(plan, "ingest_jobs") == 0
    since = {**TIMES, "since": mark, "but": []}
    plan = explain(connection, mode, retention.OLD_RUNS_WITHOUT_KEY, since, off=PINS)
    assert rows_read(plan, "workflow_runs") <= 4 * retention.RUNS_AT_ONCE


@MODES
def test_the_lag_is_read_by_index(connection, mode):
    """The figure looks at a hundred rows of each kind, whatever is behind."""
    found = FigureRepository(connection).pruning_lag(RetentionTimes())
    day_s = 86_400.0
    assert day_s / 2 < found["ingest"] < 2 * day_s
    plan = explain(connection, mode, PRUNING_LAG, TIMES, off=PINS)
    assert rows_read(plan, *TABLES) < 1_000


def test_what_is_read_grows_with_what_is_pruned(connection, request):
    """By a process that knows how far another came; nearly no emptied row is written to an index."""
    # The last of the file, as it changes what the others look at.
    if getattr(request.node, "execution_count", 1) > 1:
        fill(connection)
    connection.execute("SELECT pg_stat_reset_single_table_counters('ingest_jobs'::regclass)")
    # Each process looks once at the runs that wait for others; the first one also at those with keys.
    assert prune(connection, Pruning(settings())) < 5_000 * 4 + 20_000 + 4 * (2 * OLD + 300)
    assert counts(connection) == (KEPT + OLD + YOUNG, YOUNG, 29_700)
    ((updated, on_page),) = connection.execute(
        "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'ingest_jobs'"
    )
    assert (updated, on_page > 0.9 * updated) == (OLD, True)
    for sql in MORE:
        connection.execute(sql)
    fresh = Pruning(settings())
    assert prune(connection, fresh) < 5_000 * 4 + 4 * (4_000 + 300)
    assert counts(connection) == (KEPT + OLD + YOUNG - 2_000, YOUNG - 4_000, 29_400)
    assert prune(connection, fresh) < 10
