"""What a connection of the engine does while the server is at the answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psycopg
import pytest
from support.processes.threads import in_time
from support.processes.workers import until
from support.rows.schemas import blocked

from queue_workflows.db.connections.asking_connection import AskingConnection
from queue_workflows.db.connections.engine import Database
from queue_workflows.db.connections.kept_line import Line


@pytest.fixture
def asking(qwf_dsn: str) -> Iterator[AskingConnection]:
    """A connection as the worker's main thread has one."""
    with Database.open(qwf_dsn, role="test") as database, database.connect(autocommit=True) as connection:
        yield connection


def test_it_is_done_once_while_the_statement_runs(qwf_dsn: str, asking: AskingConnection) -> None:
    """Only when the server has the statement, and before it answers: here it cannot, unless that was done."""
    seen: list[list[int]] = []
    with psycopg.connect(qwf_dsn, autocommit=True) as holder:
        holder.execute("SELECT pg_advisory_lock(1)")

        def let_go() -> None:
            seen.append(until(lambda: blocked(qwf_dsn, holder.info.backend_pid)))
            holder.execute("SELECT pg_advisory_unlock(1)")

        asking.meanwhile = let_go
        cursor = asking.execute("SELECT 7 FROM pg_advisory_lock(1)")
        assert cursor.fetchall() == [(7,)]
        asking.execute("SELECT 1")
    assert seen == [[asking.info.backend_pid]]


def test_an_error_passes_as_it_is(asking: AskingConnection) -> None:
    """The server's refusal reaches the caller, and the next statement is like any other."""
    calls: list[int] = []
    asking.meanwhile = lambda: calls.append(1)
    with pytest.raises(psycopg.errors.UndefinedTable):
        asking.execute("SELECT FROM nowhere")
    assert asking.execute("SELECT 1").fetchall() == [(1,)]
    assert calls == [1]


def test_to_ask_meanwhile_is_refused(asking: AskingConnection) -> None:
    """The thread would wait for itself; where it is told so, nothing is asked, and all else goes on."""
    refused: list[str] = []

    def ask() -> None:
        with pytest.raises(psycopg.InterfaceError) as said:
            asking.execute("SELECT 2")
        refused.append(str(said.value))

    def asked() -> None:
        asking.meanwhile = ask
        assert asking.execute("SELECT 1").fetchall() == [(1,)]
        assert asking.execute("SELECT 3").fetchall() == [(3,)]

    in_time(asked)
    assert refused == ["this connection is at a question: ask when that is answered"]


def test_a_question_without_an_answer_is_cut_short(qwf_dsn: str) -> None:
    """By another thread, and only while it is asked: who has his answer takes the time he needs."""
    with Database.open(qwf_dsn, role="test") as database:
        line = Line(lambda: database.connect(autocommit=True))
        over = threading.Event()

        def cut() -> None:
            while not over.wait(0.01):
                line.cut_if_unanswered(0.2)

        cutter = threading.Thread(target=cut)
        line.connected().execute("SELECT 1")
        line.cut_if_unanswered(0)
        assert line.connected().execute("SELECT 7").fetchone() == (7,)
        cutter.start()
        with pytest.raises(psycopg.OperationalError):
            line.connected().execute("SELECT pg_sleep(600)")
        over.set()
        cutter.join()
        assert line.let_go()
        assert line.connected().execute("SELECT 7").fetchone() == (7,)
        line.let_go()
