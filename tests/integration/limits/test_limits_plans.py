"""The plans of what keyed limits ask for each batch: by index, at ten thousand keys, as workers plan."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg._queries import MAX_CACHED_STATEMENT_LENGTH
from support.rows.claim_sessions import CLEAR_LIMITS
from support.rows.plans import as_prepared, explain

from queue_workflows.db.connections.pins import PLANNER
from queue_workflows.repositories import Fence
from queue_workflows.repositories.claims import declared_options, sweep
from queue_workflows.repositories.jobs import ingest
from queue_workflows.repositories.limits import adapted, lane_turns, lanes, slots
from queue_workflows.repositories.limits.lane_turns import NEAR, Reached
from queue_workflows.repositories.limits.lanes import admit_params
from queue_workflows.repositories.limits.slots import Want
from queue_workflows.repositories.sql.arrays import id_array, texts
from queue_workflows.states import JobFamily

KEYS = 10_000
ENDED = """
INSERT INTO ingest_jobs (task_name, queue, status, claimed_by, attempt, finished_at, limit_key)
SELECT 't', 'fetch', 'completed', 'w', 1, now(), 'k' || n % {keys} FROM generate_series(1, 60000) AS n;
"""
STORED = """
INSERT INTO ingest_jobs (task_name, queue, limit_key, status, hold_reason, hold_key, run_at)
SELECT 't', 'fetch', 'k' || n % {keys}, 'scheduled', 'limit_full', 'k' || n % {keys}, now() + interval '9 y'
FROM generate_series(1, 30000) AS n;
INSERT INTO ingest_jobs (task_name, queue, limit_key)
SELECT 't', 'fetch', 'k' || n % {keys} FROM generate_series(1, 20000) AS n;
INSERT INTO ingest_jobs (task_name, queue, limit_key, past_holds, position)
SELECT 't', 'load', 'k' || 7 * (n % 100), '[{"reason": "limit_full"}]', 1e9 + n
FROM generate_series(1, 400) AS n;
INSERT INTO ingest_jobs (task_name, queue) SELECT 't', 'load' FROM generate_series(1, 5000) AS n;
INSERT INTO concurrency_limits (key_pattern, max_slots)
SELECT 'k' || n, 2 FROM generate_series(0, {keys} - 1, 2) AS n;
INSERT INTO concurrency_limits (key_pattern, max_slots) VALUES ('k*', 3), ('host:*', 4);
INSERT INTO limit_slots (limit_key, slot, job_family, job_id, attempt, claimed_by, lease_expires_at)
SELECT 'k' || n % {keys}, n / {keys}, 'ingest', n, 1, 'w',
    CASE WHEN n % 3 = 0 THEN '-infinity' ELSE now() + interval '1 h' END
FROM generate_series(0, 2 * {keys} - 1) AS n
"""
TABLES = ("ingest_jobs", "limit_slots", "concurrency_limits")
PINS = tuple(name.removeprefix("enable_") for name in PLANNER if name.startswith("enable_"))
SLOW = [pytest.param(when, marks=pytest.mark.slow) for when in ("afterwards", "while idle", "while filled")]


@pytest.fixture(scope="module", params=[*SLOW, "never"], ids=lambda when: f"analyzed {when}")
def crowded(qwf_dsn: str, request: pytest.FixtureRequest) -> Iterator[psycopg.Connection]:
    """Ten thousand keys, half with a cap of their own; with slots, lanes, jobs in front and ended."""
    when = request.param
    with (
        psycopg.connect(qwf_dsn, autocommit=True) as connection,
        psycopg.connect(qwf_dsn, autocommit=True) as analyst,
    ):
        connection.execute(f"TRUNCATE ingest_jobs; {CLEAR_LIMITS}")
        for table in TABLES:
            connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
        connection.execute("SET session_replication_role = replica")
        with connection.transaction():
            connection.execute(ENDED.replace("{keys}", str(KEYS)))
            if when == "while filled":
                # It finds the pages, and no row that it may see.
                analyst.execute("VACUUM ANALYZE ingest_jobs")
        if when == "while idle":
            analyst.execute(f"VACUUM ANALYZE {', '.join(TABLES)}")
        connection.execute(STORED.replace("{keys}", str(KEYS)))
        connection.execute("RESET session_replication_role")
        if when == "afterwards":
            analyst.execute(f"VACUUM ANALYZE {', '.join(TABLES)}")
        elif when == "never":
            # Of what stood there before, in other tests.
            connection.execute(
                "DELETE FROM pg_statistic WHERE starelid = ANY (%s::regclass[])", [list(TABLES)]
            )
        # Planned once a session.
        connection.execute("SELECT qwf_cap('k0')")
        yield connection
        connection.execute(f"TRUNCATE ingest_jobs; {CLEAR_LIMITS}")
        for table in TABLES:
            connection.execute(f"ALTER TABLE {table} RESET (autovacuum_enabled)")


def check(
    connection: psycopg.Connection, sql: str, params: dict[str, Any], pages: int
) -> list[dict[str, Any]]:
    """No table is read as a whole, and of all that is stored no more than some pages."""
    plan = explain(connection, "force_generic_plan", sql, params, PINS)
    assert not [
        node for node in plan if node["Node Type"] == "Seq Scan" and node.get("Relation Name") in TABLES
    ]
    touched = plan[0]["Shared Hit Blocks"] + plan[0]["Shared Read Blocks"]
    assert touched <= pages, touched
    return plan


def wants(count: int) -> list[Want]:
    return [Want(f"k{n * 7}", JobFamily.INGEST, Fence(n + 1, 1, "w")) for n in range(count)]


@pytest.mark.parametrize("count", [1, 50])
def test_take(crowded: psycopg.Connection, count: int) -> None:
    """The cap, what is held above it, the first that is free."""
    params = slots._wanted(wants(count)) | {"lease_s": 30.0, "together": False, "relaxed": False}
    check(crowded, slots.TAKE, params, 60 * count + 20)


@pytest.mark.parametrize("count", [1, 50])
@pytest.mark.parametrize("name", ["RENEW", "FREE"])
def test_renew_and_free(crowded: psycopg.Connection, name: str, count: int) -> None:
    """By the key and number of each."""
    rows = crowded.execute(
        "SELECT limit_key, slot, job_id, attempt, claimed_by, acquired_at FROM limit_slots"
        " WHERE lease_expires_at > now() ORDER BY limit_key, slot LIMIT %s",
        [count],
    )
    held = [slots.Slot(row[0], row[1], JobFamily.INGEST, Fence(*row[2:5]), row[5]) for row in rows]
    params = slots._held(held) | ({"lease_s": 30.0, "relaxed": False} if name == "RENEW" else {})
    check(crowded, getattr(slots, name), params, 40 * count + 20)


def test_lower(crowded: psycopg.Connection) -> None:
    """By the keys that were refused."""
    params = {"keys": texts(["k7", "k14"]), "age_s": 0.0, "since": None}
    check(crowded, adapted.LOWER, params, 120)


def test_fill(crowded: psycopg.Connection) -> None:
    """The claimed jobs alone, by their ids."""
    (job_id,) = crowded.execute("SELECT max(id) FROM ingest_jobs").fetchone() or (0,)
    options = [{"id": job_id, "attempt": 0, "claimed_by": "w", "limit_key": "k7", "host_lock": None}]
    check(crowded, declared_options.FILL, {"ids": id_array([job_id]), "options": json.dumps(options)}, 40)


@pytest.mark.parametrize("count", [1, 50])
def test_admit(crowded: psycopg.Connection, count: int) -> None:
    """Its lanes, who is in front, who holds, who is next; some are admitted."""
    params = admit_params({f"k{n * 7}": 1 for n in range(count)})
    check(crowded, lanes.ADMIT["ingest"], params, 400 * count + 60)


def test_admit_of_a_key_without_a_lane(crowded: psycopg.Connection) -> None:
    """What most ends of a key's jobs ask is one look."""
    check(crowded, lanes.ADMIT["ingest"], admit_params(["nobody"]), 12)


@pytest.mark.parametrize("count", [1, 50])
def test_advance(crowded: psycopg.Connection, count: int) -> None:
    """Who came out of the lanes, the line before them, and some move up."""
    params = Reached("load").params(texts(f"k{n * 7}" for n in range(count)))
    plan = check(crowded, lane_turns.ADVANCE["ingest"], params, 80 * count + 4 * NEAR)
    assert plan[0]["Actual Rows"] == min(4 * count, NEAR)


def test_advance_where_nobody_came_out(crowded: psycopg.Connection) -> None:
    """What most ends of a key's jobs ask is one look."""
    check(crowded, lane_turns.ADVANCE["ingest"], Reached("fetch").params("{nobody}"), 12)


def test_the_walk_over_lanes(crowded: psycopg.Connection) -> None:
    """A jump for each lane."""
    check(crowded, lanes.LANES["ingest"], {"after": "k5", "in_turn": True}, 8 * lanes.MENDED_AT_ONCE)


def test_others_that_go_into_a_lane(crowded: psycopg.Connection) -> None:
    """Those of the key that stand in the queue."""
    check(crowded, lanes.MOVE_OTHERS["ingest"], {"keys": "{k7}"}, 120)


def test_surplus_of_what_was_retried(crowded: psycopg.Connection) -> None:
    """The jobs by id, and of each of their keys the lane and the front."""
    rows = crowded.execute(
        "SELECT id FROM ingest_jobs WHERE status = 'queued' AND limit_key IS NOT NULL ORDER BY id LIMIT 50"
    ).fetchall()
    assert len(rows) == 50
    check(crowded, lanes.MOVE_SURPLUS["ingest"], {"ids": id_array([row[0] for row in rows])}, 200 * 50)


def test_enqueue(crowded: psycopg.Connection) -> None:
    """A producer on any connection looks whether there is a lane, by index."""
    crowded.execute("SELECT qwf_front_room('fetch', 'k7', 16)")
    params = {"of_queue": "fetch", "of_key": "k7"}
    plan = explain(
        crowded,
        "force_generic_plan",
        "SELECT qwf_front_room(%(of_queue)s::text, %(of_key)s::text, 16)",
        params,
    )
    assert plan[0]["Shared Hit Blocks"] + plan[0]["Shared Read Blocks"] <= 60


def test_promotion_asks_only_for_keys(crowded: psycopg.Connection) -> None:
    """And by index."""
    with crowded.transaction(force_rollback=True):
        crowded.execute(
            "INSERT INTO ingest_jobs (task_name, queue, status, limit_key, run_at)"
            " SELECT 't', 'fetch', 'scheduled', 'new' || n, now() - interval '1 s'"
            " FROM generate_series(1, 50) AS n"
        )
        check(crowded, sweep.PROMOTE["ingest"], {"in_turn": False}, 120 * 50)


@pytest.mark.parametrize(
    "sql",
    [
        slots.TAKE,
        slots.RENEW,
        slots.FREE,
        lanes.ADMIT["ingest"],
        lanes.ADMIT["node"],
        lane_turns.ADVANCE["node"],
    ],
)
def test_a_hot_statement_is_short_enough_to_be_parsed_once(sql: str) -> None:
    """The driver keeps what it has parsed of a statement up to a length."""
    assert len(sql.encode()) <= MAX_CACHED_STATEMENT_LENGTH
    assert as_prepared(sql)
    assert len(ingest.ENQUEUE_KEYED.encode()) <= MAX_CACHED_STATEMENT_LENGTH
