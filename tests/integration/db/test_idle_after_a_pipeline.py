"""The server counts how long a transaction idles from the end of the pipeline that began it."""

from __future__ import annotations

import psycopg
import pytest
from support.processes.workers import until

from queue_workflows.repositories.sql.pipeline_commits import pipeline_ends_at_its_sync


def test_a_transaction_that_idles_after_a_pipeline_is_ended(qwf_dsn: str) -> None:
    """What holds its locks may have been stopped; with a flush behind the sync it held them for ever."""
    with psycopg.connect(qwf_dsn, autocommit=True) as eye, psycopg.connect(qwf_dsn, autocommit=True) as held:
        held.execute("SET idle_in_transaction_session_timeout = 100")
        with pipeline_ends_at_its_sync(held):
            held.execute("BEGIN")
            answer = held.execute("SELECT 7")
        assert answer.fetchone() == (7,)
        gone = "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = %s"
        pid = held.info.backend_pid
        until(lambda: (eye.execute(gone, [pid]).fetchone() or (False,))[0], within_s=30)
        with pytest.raises(psycopg.errors.IdleInTransactionSessionTimeout):
            held.execute("SELECT 1")


def test_a_statement_that_fails_in_it_is_told_and_the_connection_goes_on(qwf_dsn: str) -> None:
    """All answers are collected, whichever was an error."""
    with psycopg.connect(qwf_dsn, autocommit=True) as connection:

        def fail() -> None:
            with pipeline_ends_at_its_sync(connection):
                connection.execute("SELECT 1 / 0")
                connection.execute("SELECT 7")

        with pytest.raises(psycopg.errors.DivisionByZero):
            fail()
        assert connection.execute("SELECT 7").fetchone() == (7,)
