"""The end of a keyed job and the claim that follows are two transactions, and one round trip."""

from __future__ import annotations

import re
import select
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus
from support.rows.claim_sessions import CLEAR_LIMITS, Hand, cap, hand, holders, where
from support.rows.jobs import Jobs, ending, jobs_of
from support.servers.transaction_pooler import TransactionPooler

from queue_workflows.repositories.sql.pipeline_commits import in_one_round_trip

KEY = "host:example.org"


@pytest.fixture(params=["node", "ingest"])
def jobs(request: pytest.FixtureRequest, qwf_dsn: str) -> Iterator[Jobs]:
    """An empty table of each family, and a key of which one runs at a time."""
    with jobs_of(request.param, qwf_dsn) as jobs:
        jobs.connection.execute(CLEAR_LIMITS)
        cap(jobs.connection, KEY, 1)
        yield jobs


def round_trips(connection: psycopg.Connection, does: Callable[[], object]) -> int:
    """How often something was asked after an answer had come, by libpq's own trace of the protocol."""
    with tempfile.TemporaryFile("w+") as log:
        connection.pgconn.trace(log.fileno())
        try:
            does()
        finally:
            connection.pgconn.untrace()
        log.seek(0)
        said = re.findall(r"^[^\t]*\t([FB])\t\d+\t(\w+)", log.read(), re.MULTILINE)
    # psycopg asks for a flush once more after its sync, and waits for nothing by it.
    sides = [side for side, what in said if what != "Flush"]
    return sum(side == "F" and before == "B" for before, side in zip(["B", *sides], sides, strict=False))


def test_it_waits_once(jobs: Jobs, qwf_dsn: str) -> None:
    """Also when its statements are prepared, which they are after some times; and all is as if it had not."""
    with hand(qwf_dsn, "w1", jobs.family) as worker:
        trips = []
        for _ in range(8):
            limited = jobs.enqueue(2, limit_key=KEY)
            assert [job.id for job in worker.claim(2)] == limited[:1]
            assert where(jobs.connection, jobs.table, KEY)["lane"] == 1
            (free,) = jobs.enqueue(priorities=(9,))
            trips.append(round_trips(worker.connection, worker.end_and_claim))
            assert [job.id for job in worker.held] == [free]
            assert holders(jobs.connection, KEY) == []
            worker.end()
            assert [job.id for job in worker.claim()] == limited[1:]
            trips.append(round_trips(worker.connection, worker.end))
            assert holders(jobs.connection, KEY) == []
            assert worker.connection.info.transaction_status == TransactionStatus.IDLE
        assert trips == [1] * len(trips)
    assert {row["status"] for row in jobs.rows()} == {"completed"}


@pytest.mark.parametrize("claims", [False, True], ids=["end", "end_and_claim"])
def test_an_end_that_is_refused_changes_nothing(jobs: Jobs, qwf_dsn: str, claims: bool) -> None:
    """Its slot is kept, nothing is let out and nothing claimed; the line is as good as before."""
    first, _ = jobs.enqueue(2, limit_key=KEY)
    with hand(qwf_dsn, "w1", jobs.family) as worker:
        worker.claim(2)
        (free,) = jobs.enqueue(priorities=(9,))
        endings = [ending(worker.held[0])._replace(result="{")]
        ends: Any = worker.claim_session.end
        if claims:
            ends = partial(
                worker.claim_session.end_and_claim, marks=worker.marks, now=time.monotonic(), limit=5
            )
        with pytest.raises(psycopg.errors.InvalidTextRepresentation):
            ends(endings)
        assert worker.connection.info.transaction_status == TransactionStatus.IDLE
        assert holders(jobs.connection, KEY) == [first]
        assert where(jobs.connection, jobs.table, KEY) == {"running": 1, "lane": 1}
        assert jobs.seen(free, "status") == ("queued",)
        worker.end_and_claim(2)
        assert holders(jobs.connection, KEY) == [job.id for job in worker.held if job.id != free]


@pytest.mark.parametrize("seen", ["by itself", "before the commit", "at the end"])
def test_the_first_error_is_the_one_that_is_told(qwf_dsn: str, seen: str) -> None:
    """Whenever it comes in: not that what follows was not run, which looks like a lost connection."""

    def await_error(moment: str) -> None:
        if moment == seen:
            assert select.select([connection.fileno()], [], [], 60)[0]

    def fail() -> None:
        with in_one_round_trip(connection) as commit:
            connection.execute("SELECT 1 / 0")
            await_error("before the commit")
            commit()
            connection.execute("SELECT 1")
            await_error("at the end")

    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        with pytest.raises(psycopg.errors.DivisionByZero):
            fail()
        assert connection.info.transaction_status == TransactionStatus.IDLE
        assert connection.execute("SELECT 2").fetchall() == [(2,)]


def test_what_is_not_sent_to_its_end_is_taken_back(qwf_dsn: str) -> None:
    """An error of our own before the commit leaves nothing of the first transaction."""

    def fail() -> None:
        with in_one_round_trip(connection):
            connection.execute("INSERT INTO written VALUES (1)")
            raise ZeroDivisionError

    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        connection.execute("CREATE TEMPORARY TABLE written (n integer)")
        with pytest.raises(ZeroDivisionError):
            fail()
        assert connection.info.transaction_status == TransactionStatus.IDLE
        assert connection.execute("SELECT * FROM written").fetchall() == []


def test_the_second_is_a_transaction_of_its_own(qwf_dsn: str) -> None:
    """It begins after the commit of the first, and its failure takes nothing of that back."""

    def written_and(sql: str) -> psycopg.Cursor:
        with in_one_round_trip(connection) as commit:
            connection.execute("INSERT INTO written VALUES (pg_current_xact_id())")
            commit()
            return connection.execute(sql)

    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        connection.execute("CREATE TEMPORARY TABLE written (xid xid8)")
        seen = written_and("SELECT pg_xact_status(xid), xid = pg_current_xact_id() FROM written")
        assert seen.fetchall() == [("committed", False)]
        with pytest.raises(psycopg.errors.DivisionByZero):
            written_and("SELECT 1 / 0")
        assert connection.info.transaction_status == TransactionStatus.IDLE
        assert connection.execute("SELECT count(*) FROM written").fetchall() == [(2,)]


def test_a_line_that_is_lost_says_so(qwf_dsn: str) -> None:
    """And not that what followed was not run, nor that it could not be rolled back."""

    def lose() -> None:
        with in_one_round_trip(connection) as commit:
            connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")
            commit()
            connection.execute("SELECT 1")

    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        with pytest.raises(psycopg.OperationalError) as lost:
            lose()
        assert not isinstance(lost.value, psycopg.errors.PipelineAborted)
        assert connection.closed


def test_behind_a_proxy_that_lends_backends_by_the_transaction(jobs: Jobs, qwf_dsn: str) -> None:
    """Two workers on two backends work off two keys, each in turn."""
    cap(jobs.connection, "host:*", 1)
    for key in (KEY, "host:example.com"):
        jobs.enqueue(4, limit_key=key)
    with TransactionPooler(qwf_dsn) as proxy, ExitStack() as stack:
        workers = [
            Hand(
                stack.enter_context(psycopg.connect(proxy.dsn(), autocommit=True, prepare_threshold=None)),
                jobs.family,
                name,
                jobs.queue,
            )
            for name in ("w1", "w2")
        ]
        for turn in range(100):
            worker = workers[turn % 2]
            if worker.held:
                worker.end_and_claim()
            else:
                worker.claim()
            assert len(holders(jobs.connection, KEY)) <= 1
    assert {row["status"] for row in jobs.rows()} == {"completed"}
