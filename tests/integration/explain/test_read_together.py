"""Several reads as one statement give what each gives by itself."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from queue_workflows.repositories.sql.connection import Statements
from queue_workflows.repositories.sql.drivers.moments import FIRST, LAST
from queue_workflows.repositories.sql.together import read_together

READS = {
    "kinds": "SELECT 1::bigint, 2::smallint, 1.5::float8, true, 'a', NULL, NULL::text, %(id)s::uuid,"
    " ARRAY['a', NULL], ARRAY[1, 2]::bigint[], '{\"a\": [1]}'::jsonb, '[]'::jsonb::text, now(),"
    " count(*), count(*)",
    "none": "SELECT 1, 2 WHERE false",
    "in_order": "SELECT n, 'n' || n FROM generate_series(5, 1, -1) AS n",
    "beyond": "SELECT 'infinity'::timestamptz, '-infinity'::timestamptz, '10000-01-01'::timestamptz,"
    " '0001-01-01 BC'::timestamptz",
}
PARAMS: dict[str, Any] = {"id": "01a219c9-3463-72ed-b715-96eb9a32baa3", "unused": 7}


def test_each_read_has_its_rows_with_their_types(qwf_dsn: str) -> None:
    """In one statement, and in the order of each."""
    with psycopg.connect(qwf_dsn) as connection:
        asked = Statements(connection, "workflow_runs")
        assert read_together(connection, "workflow_runs", READS, PARAMS) == {
            name: asked.rows(sql, PARAMS) for name, sql in READS.items()
        }


def test_moments_beyond_the_calendar_are_its_ends(qwf_dsn: str) -> None:
    """As of a statement by itself."""
    with psycopg.connect(qwf_dsn) as connection:
        read = read_together(connection, "workflow_runs", {"beyond": READS["beyond"]}, {})
    assert read["beyond"] == [(LAST, FIRST, LAST, FIRST)]


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata"])
def test_moments_are_told_in_the_zone_of_the_session(qwf_dsn: str, zone: str) -> None:
    """As those of a statement by itself are written."""
    sql = "SELECT '2026-01-02 03:04:05.678901Z'::timestamptz"
    with psycopg.connect(qwf_dsn) as connection:
        connection.execute("SELECT set_config('TimeZone', %s, false)", [zone])
        ((together,),) = read_together(connection, "workflow_runs", {"at": sql}, {})["at"]
        ((alone,),) = Statements(connection, "workflow_runs").rows(sql, {})
    assert together.isoformat() == alone.isoformat()


def test_on_a_connection_of_sqlalchemy_they_are_asked_one_by_one(qwf_dsn: str) -> None:
    """With what they give elsewhere."""
    engine = sa.create_engine(sa.make_url(qwf_dsn).set(drivername="postgresql+psycopg"))
    reads = {name: READS[name] for name in ("none", "in_order")}
    with engine.connect() as connection:
        read = read_together(connection, "workflow_runs", reads, {})
    engine.dispose()
    assert read == {"none": [], "in_order": [(n, f"n{n}") for n in (5, 4, 3, 2, 1)]}
