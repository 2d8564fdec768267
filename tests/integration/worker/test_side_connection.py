"""What jobs' own threads ask while their worker is at something else."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from support.processes.workers import until
from support.rows.claimed_jobs import ingest_job

from queue_workflows.errors import LeaseLost
from queue_workflows.roles.worker.common.side_connection import SideConnection

SELF = "SELECT pg_backend_pid()"


def connecting(dsn: str, opened: list[psycopg.Connection]):
    def connect() -> psycopg.Connection:
        opened.append(psycopg.connect(dsn, autocommit=True))
        return opened[-1]

    return connect


def test_all_threads_share_one_connection_that_is_opened_for_the_first(qwf_dsn):
    """Who asks nothing costs nothing."""
    opened: list[psycopg.Connection] = []
    aside, job = SideConnection(connecting(qwf_dsn, opened), lambda _: True), ingest_job()
    together = threading.Barrier(4)

    def ask() -> int:
        together.wait(150)
        return aside.ask(job, lambda connection: connection.execute(SELF).fetchone()[0])

    assert opened == []
    with ThreadPoolExecutor(4) as threads:
        backends = [asked.result() for asked in [threads.submit(ask) for _ in range(4)]]
    assert len(opened) == len(set(backends)) == 1
    aside.close()
    assert opened[0].closed


def test_a_database_that_is_away_is_waited_for(qwf_dsn):
    """It is not the job's failure: the question is asked again, on a connection of its own."""
    opened: list[psycopg.Connection] = []
    pauses: list[float] = []
    aside, job = (
        SideConnection(connecting(qwf_dsn, opened), lambda _: True, sleep=pauses.append),
        ingest_job(),
    )
    aside.ask(job, lambda connection: connection.execute(SELF))
    opened[0].close()
    assert aside.ask(job, lambda connection: connection.execute("SELECT 1").fetchone()) == (1,)
    assert (len(opened), len(pauses)) == (2, 1)
    aside.close()


def test_who_holds_the_job_no_longer_has_nothing_to_ask(qwf_dsn):
    """Also in the middle of an outage."""
    held = iter([True, False])
    aside = SideConnection(
        connecting("host=/nowhere dbname=none", []), lambda _: next(held), sleep=lambda _: None
    )
    with pytest.raises(LeaseLost):
        aside.ask(ingest_job(), lambda connection: connection.execute(SELF))


def test_what_a_question_raises_is_the_askers(qwf_dsn):
    """A statement that the server refuses is not asked again, and the next thread's is answered."""
    aside, job = SideConnection(connecting(qwf_dsn, []), lambda _: True), ingest_job()
    with pytest.raises(psycopg.errors.DivisionByZero):
        aside.ask(job, lambda connection: connection.execute("SELECT 1/0"))
    assert aside.ask(job, lambda connection: connection.execute("SELECT 1").fetchone()) == (1,)
    aside.close()


def test_who_asks_again_and_again_stands_behind_who_waits(qwf_dsn):
    """A hook with ten thousand records keeps no other from its one question."""
    aside, job = SideConnection(connecting(qwf_dsn, []), lambda _: True), ingest_job()
    asked: list[str] = []

    def first(_connection) -> None:
        other.start()
        until(aside.is_awaited)
        asked.append("first")

    other = threading.Thread(target=lambda: aside.ask(job, lambda _: asked.append("other")))
    aside.ask(job, first)
    aside.ask(job, lambda _: asked.append("second"))
    other.join(150)
    assert asked == ["first", "other", "second"]
    aside.close()
