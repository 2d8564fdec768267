"""A test's own connection is as a new one, though the server's session has served the test before."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from support.connections.kept import own_connection

LEFT = """
    SELECT current_user, current_setting('work_mem'), current_setting('transaction_isolation'),
        (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()),
        (SELECT count(*) FROM pg_prepared_statements), (SELECT count(*) FROM pg_cursors),
        (SELECT count(*) FROM pg_listening_channels()), to_regclass('pg_temp.mine') IS NULL
"""


def pid(connection: psycopg.Connection[Any]) -> int:
    return connection.info.backend_pid


def test_nothing_is_left_of_the_test_before(qwf_dsn: str) -> None:
    """Neither in the server's session nor in the object of psycopg."""
    with psycopg.connect(qwf_dsn, autocommit=True) as new:
        as_new = new.execute(LEFT, prepare=False).fetchone()
    with own_connection(qwf_dsn) as first:
        session = pid(first)
        first.row_factory = psycopg.rows.dict_row
        first.execute("SET work_mem = '7MB'; SET ROLE pg_monitor; SELECT pg_advisory_lock(7); LISTEN mine")
        first.execute("RESET ROLE; CREATE TEMPORARY TABLE mine (); SET ROLE pg_monitor")
        first.execute("NOTIFY mine")
        first.execute("SET default_transaction_isolation = serializable", prepare=True)
        first.execute("DECLARE mine CURSOR WITH HOLD FOR SELECT 1")
        for _ in range(7):
            first.execute("SELECT %s::int", [1], prepare=True)
    assert first.closed
    with own_connection(qwf_dsn) as second:
        assert pid(second) == session
        assert second.execute(LEFT, prepare=False).fetchone() == as_new
        assert list(second.notifies(timeout=0)) == []
        for number in range(7):
            assert second.execute("SELECT %s::int", [number], prepare=True).fetchone() == (number,)


def test_its_end_is_that_of_a_with_statement(qwf_dsn: str) -> None:
    """It commits, and after an error it rolls back."""
    with own_connection(qwf_dsn, autocommit=False) as first:
        first.execute("CREATE TABLE mine ()")
    with pytest.raises(psycopg.errors.UndefinedTable), own_connection(qwf_dsn, autocommit=False) as second:
        second.execute("DROP TABLE mine; DROP TABLE theirs")
    with own_connection(qwf_dsn) as third:
        assert third.execute("SELECT count(*) FROM mine").fetchone() == (0,)
        third.execute("DROP TABLE mine")


def test_one_that_was_ended_is_not_handed_on(qwf_dsn: str) -> None:
    """Whether the test closed it, the server ended it, or that happened after the test."""
    with psycopg.connect(qwf_dsn, autocommit=True) as eye:
        with own_connection(qwf_dsn) as first:
            pids = [pid(first)]
            eye.execute("SELECT pg_terminate_backend(%s, 5000)", pids)
        with own_connection(qwf_dsn) as second:
            pids.append(pid(second))
            second.close()
        with own_connection(qwf_dsn) as third:
            pids.append(pid(third))
        eye.execute("SELECT pg_terminate_backend(%s, 5000)", [pids[-1]])
        with own_connection(qwf_dsn) as fourth:
            pids.append(pid(fourth))
            assert fourth.execute("SELECT 1").fetchone() == (1,)
    assert len(set(pids)) == 4


def test_what_it_has_counted_is_counted_with_the_test(qwf_dsn: str) -> None:
    """Nothing of it is added to what the next test counts."""
    counted = "SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = 'mine'"
    with psycopg.connect(qwf_dsn, autocommit=True) as eye:
        eye.execute("CREATE TABLE mine AS SELECT generate_series(1, 100)")
        with own_connection(qwf_dsn) as first:
            first.execute("SELECT count(*) FROM mine")
        assert eye.execute(counted).fetchone() == (100,)
        eye.execute("DROP TABLE mine")
