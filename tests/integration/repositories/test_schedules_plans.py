"""What a ticker asks each second reads what is due, however many schedules wait or are switched off."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from support.rows.plans import explain, rows_read

from queue_workflows.db.connections.pins import PLANNER
from queue_workflows.repositories.schedules import ticks

COUNT, DUE = 20_000, 7
STORED = """
INSERT INTO schedules (name, cron, task_name, queue, enabled, declared, declared_by, next_tick_at)
SELECT 's' || n, '0 4 * * *', 'tidy', 'load', mod(n, 3) <> 0, true, 'shop',
    CASE
        WHEN mod(n, 3) = 0 THEN now() - interval '1 day'
        WHEN mod(n, 5000) = 1 THEN NULL
        WHEN mod(n, 5000) = 2 THEN now() - n * interval '1 millisecond'
        ELSE now() + interval '1 day' + n * interval '1 second'
    END
FROM generate_series(1, %(count)s) AS n
"""
AS_A_TICKER = tuple(name.removeprefix("enable_") for name in PLANNER if name.startswith("enable_"))


# When the planner was last told what is stored, if ever: while nothing ticked it saw that none is enabled.
ANALYZED = ("afterwards", "while nothing ticked", "while filled", "never")


@pytest.fixture(scope="module", params=ANALYZED, ids=[f"analyzed {when}" for when in ANALYZED])
def crowded(qwf_dsn: str, request: pytest.FixtureRequest) -> Iterator[psycopg.Connection]:
    """A few that are due, or that nobody has reckoned, among many."""
    when = request.param
    with (
        psycopg.connect(qwf_dsn, autocommit=True) as connection,
        psycopg.connect(qwf_dsn, autocommit=True) as analyst,
    ):
        connection.execute("TRUNCATE schedules, ingest_jobs")
        connection.execute("ALTER TABLE schedules SET (autovacuum_enabled = off)")
        with connection.transaction():
            connection.execute(STORED, {"count": COUNT})
            if when == "while filled":
                analyst.execute("VACUUM ANALYZE schedules")
        if when == "while nothing ticked":
            connection.execute("CREATE TEMPORARY TABLE kept AS SELECT name FROM schedules WHERE enabled")
            connection.execute("UPDATE schedules SET enabled = false")
            analyst.execute("VACUUM FULL ANALYZE schedules")
            connection.execute("UPDATE schedules SET enabled = true WHERE name IN (TABLE kept)")
        elif when == "afterwards":
            analyst.execute("VACUUM ANALYZE schedules")
        elif when == "never":
            connection.execute("DELETE FROM pg_statistic WHERE starelid = 'schedules'::regclass")
        yield connection
        connection.execute("ALTER TABLE schedules RESET (autovacuum_enabled)")


def test_what_is_due_is_read_by_index(crowded: psycopg.Connection) -> None:
    """And of those that are not due, the one that comes next."""
    due = ticks.TickRepository(crowded).due()
    assert 0 < len(due.schedules) <= DUE
    plan = explain(crowded, "force_generic_plan", ticks.DUE, {"aside": []}, off=AS_A_TICKER)
    assert rows_read(plan, "schedules") == len(due.schedules)
    plan = explain(crowded, "force_generic_plan", ticks.NEXT_IN, {}, off=AS_A_TICKER)
    assert rows_read(plan, "schedules") == 1


@pytest.mark.parametrize("insert", [ticks.INSERT, ticks.INSERT_MORE], ids=["plain", "keyed"])
def test_a_schedule_moves_on_by_its_key(crowded: psycopg.Connection, insert: str) -> None:
    """The statement that inserts reads the schedules that it is about, and the job's key."""
    due = ticks.TickRepository(crowded).due()
    one = due.schedules[0]
    params = {
        "names": [one.name],
        "read_at": [one.updated_at],
        "reckoned": [one.next_tick_at],
        "last": [due.now],
        "next": [due.now],
        "tick_of": [one.name],
        "tick_at": [due.now],
        "begins_at": [due.now],
        "reason": ["why"],
        "traceparent": [None],
        "max_attempts": [3],
        "backoff_s": [None],
        "timeout_s": [None],
        "stall_timeout_s": [None],
        "limit_key": [None],
        "host_lock": [None],
        "max_crashes": [None],
        "at_most_once": [False],
    }
    with crowded.transaction(force_rollback=True):
        plan = explain(crowded, "force_generic_plan", insert, params, off=AS_A_TICKER)
    inserted = [node for node in plan if node["Node Type"] == "ModifyTable"]
    assert {node["Relation Name"] for node in inserted} == {"schedules", "ingest_jobs"}
    # Read to be locked, and again to be changed.
    assert rows_read(plan, "schedules") == 2
