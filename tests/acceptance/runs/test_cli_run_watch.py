"""`qwf run watch`: a run followed to its end, in a terminal, through a pipe, through an outage."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.commands import qwf_here
from support.processes.workers import running_orchestrator, running_worker
from support.rows.jobs import CLEAR
from support.rows.runs import dispatcher, run_through, settle, start, work
from support.rows.schemas import qwf, qwf_environment, start_qwf
from support.servers.cluster import Cluster
from support.servers.tcp_proxy import TcpProxy

from queue_workflows.db import bootstrap
from queue_workflows.db.connections.engine import Database
from queue_workflows.engine.watch.follow import watch_run
from queue_workflows.repositories import NodeJobRepository, RunRepository

CHAIN: dict[str, Any] = {
    "name": "chain",
    "nodes": [{"id": "a", "module": "m"}, {"id": "b", "module": "m", "depends_on": ["a"]}],
}
REAL = """\
name: real
inputs: {ok: {type: boolean, default: true}}
nodes:
  - {id: first, module: echo, inputs: {ok: {$from: inputs.ok}}, retry: {max_attempts: 1}}
  - {id: then, module: picky, inputs: {ok: {$from: first.ok}}, retry: {max_attempts: 1}}
outputs: {ok: {$from: then.ok}}
"""
UP = re.compile(r"\x1b\[\d+F")


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR)
        yield connection


def without_missing_roles(said: str) -> str:
    """What was said but for the roles that nobody runs: those of these runs are in the test's process."""
    return "".join(
        one for one in said.splitlines(keepends=True) if "` starts one" not in one and "qwf up" not in one
    )


class Watched:
    """A real `qwf run watch` whose lines are read one by one."""

    def __init__(self, dsn: str, run: uuid.UUID, *options: str, **settings: str) -> None:
        self.process = start_qwf("run", "watch", str(run), *options, QWF_DB_URL=dsn, **settings)
        self.said: list[str] = []

    def until(self, pattern: str) -> re.Match[str]:
        assert self.process.stdout
        for line in self.process.stdout:
            self.said.append(line.rstrip("\n"))
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"{pattern!r} was not said, but {self.said}")

    def ended(self) -> tuple[int, str]:
        """Its status, and what it said beside its output."""
        out, err = self.process.communicate(timeout=150)
        self.said += out.splitlines()
        return self.process.returncode, without_missing_roles(err)


@contextmanager
def watching(dsn: str, run: uuid.UUID, *options: str, **settings: str) -> Iterator[Watched]:
    watched = Watched(dsn, run, *options, **settings)
    try:
        yield watched
    finally:
        watched.process.kill()
        watched.process.communicate()


def test_through_a_pipe_each_change_is_a_line(qwf_dsn, conn):
    """States, who has it, progress, the end; and the status is that of the run."""
    run = start(conn, CHAIN)
    with watching(qwf_dsn, run) as watch:
        watch.until(r"Z ◌ run queued$")
        turn = dispatcher(conn)
        settle(turn)
        watch.until(r"Z ◌ a queued$")
        watch.until(r"Z ◐ run running$")
        jobs = NodeJobRepository(conn)
        (job,) = jobs.claim("cpu", worker_id="h:cpu:1", lease_s=600)
        watch.until(r"Z ◐ a running  on h:cpu:1$")
        conn.execute(
            "UPDATE workflow_node_jobs SET progress = %s WHERE id = %s",
            [json.dumps({"fraction": 0.5, "message": "half way"}), job.id],
        )
        watch.until(r"Z ◐ a running  ▕██████░░░░░░▏ 50% half way · on h:cpu:1$")
        jobs.complete(job, {})
        settle(turn)
        watch.until(r"Z ● a completed")
        run_through(conn, turn, lambda _job: {})
        assert watch.ended() == (0, "")
        assert watch.said[-1].endswith("Z ● run completed")


def test_as_json_each_change_is_an_object(qwf_dsn, conn):
    """For programs."""
    run = start(conn, CHAIN)
    run_through(conn, dispatcher(conn), lambda _job: {})
    said = qwf_here("--db", qwf_dsn, "run", "watch", str(run), "--json").stdout
    told = [json.loads(line) for line in said.splitlines()]
    assert [(one["node"], one["state"]) for one in told] == [
        ("a", "completed"),
        ("b", "completed"),
        (None, "completed"),
    ]
    assert set(told[0]) == {"at", "node", "state", "note", "fraction", "outputs"}


@pytest.mark.parametrize("ends", ["failed", "cancelled"])
def test_a_run_that_does_not_complete_is_1(qwf_dsn, conn, ends):
    """Whether it fails or is cancelled."""
    run = start(conn, CHAIN)
    turn = dispatcher(conn)
    settle(turn)
    if ends == "cancelled":
        qwf_here("--db", qwf_dsn, "run", "cancel", str(run), "--reason", "wrong")
        settle(turn)
    else:
        conn.execute("UPDATE workflow_node_jobs SET max_attempts = 1")

        def fails(_job: object) -> None:
            raise ValueError("no paper")

        work(conn, fails)
        settle(turn)
    said = qwf_here("--db", qwf_dsn, "run", "watch", str(run), status=1).stdout
    assert ("no paper" if ends == "failed" else "wrong") in said
    assert re.search(rf"run {ends}", said.splitlines()[-1])


def test_ctrl_c_ends_the_watching_alone(qwf_dsn, conn):
    """With 130 and a word; the run goes on."""
    run = start(conn, CHAIN)
    with watching(qwf_dsn, run) as watch:
        watch.until("run queued")
        watch.process.send_signal(signal.SIGINT)
        status, said = watch.ended()
    assert status == 130
    assert said == f"the run goes on; `qwf run watch {run}` shows it again\nqwf: interrupted\n"
    run_through(conn, dispatcher(conn), lambda _job: {})
    found = RunRepository(conn).fetch(run)
    assert found is not None
    assert found.status == "completed"


def test_whoever_reads_may_go_away(qwf_dsn, conn):
    """`| head -1`; it is noticed with the next line."""
    run = start(conn, CHAIN)
    with watching(qwf_dsn, run) as watch:
        watch.until("run queued")
        assert watch.process.stdout
        watch.process.stdout.close()
        watch.process.stdout = None
        settle(dispatcher(conn))
        assert watch.process.wait(150) == 141


def test_a_change_is_news_at_once(qwf_dsn, conn):
    """By notification: this one would look by itself only in an hour."""
    run = start(conn, CHAIN)
    with Database.open(qwf_dsn, role="test") as database:
        looks = watch_run(database, run, look_every_s=3600)
        first = next(looks)
        assert first is not None
        assert first.status == "queued"
        # The one that comes of listening; whoever wrote before it is seen by it.
        assert next(looks) is not None
        turn = dispatcher(conn)
        settle(turn)
        seen = next(look for look in looks if look and look.status == "running")
        assert seen.nodes[0].state == "queued"
        (job,) = NodeJobRepository(conn).claim("cpu", worker_id="w", lease_s=600)
        conn.execute("UPDATE workflow_node_jobs SET progress = '{\"fraction\": 0.5}' WHERE id = %s", [job.id])
        seen = next(look for look in looks if look and look.nodes[0].state == "running")
        assert seen.nodes[0].fraction == 0.5
        NodeJobRepository(conn).complete(job, {})
        run_through(conn, turn, lambda _job: {})
        *_, last = looks
    assert last is not None
    assert last.status == "completed"


def test_without_listening_it_looks(qwf_dsn, conn):
    """Behind a proxy that pools transactions."""
    run = start(conn, CHAIN)
    with watching(qwf_dsn, run, QWF_LISTEN="off") as watch:
        watch.until("run queued")
        run_through(conn, dispatcher(conn), lambda _job: {})
        assert watch.ended()[0] == 0


def test_nobody_is_notified_when_nobody_watches(qwf_dsn, conn):
    """Advancing a run and its progress cost no notification then."""
    listener = psycopg.connect(qwf_dsn, autocommit=True)
    with listener:
        listener.execute("LISTEN run_changed")
        run = start(conn, CHAIN)
        run_through(conn, dispatcher(conn), lambda _job: {})
        found = RunRepository(conn).fetch(run)
        assert found is not None
        assert found.status == "completed"
        conn.execute("NOTIFY run_changed, 'the last'")
        assert [note.payload for note in listener.notifies(timeout=150, stop_after=1)] == ["the last"]


@pytest.mark.slow
def test_an_outage_of_the_database_is_waited_out():
    """It is said once; then the watching goes on to the end."""
    with Cluster.primary() as cluster, TcpProxy(cluster.port) as proxy, cluster.connect() as around:
        bootstrap(cluster.dsn())
        run = start(around, CHAIN)
        dsn = cluster.dsn(port=str(proxy.port), sslmode="disable")
        process = start_qwf("run", "watch", str(run), QWF_DB_URL=dsn, QWF_CONNECT_TIMEOUT_S="1")
        try:
            assert process.stdout
            assert process.stderr
            assert "run queued" in process.stdout.readline()
            proxy.pause()
            proxy.cut()
            assert "the database is away; waiting for it\n" in iter(process.stderr.readline, "")
            run_through(around, dispatcher(around), lambda _job: {})
            proxy.resume()
            out, err = process.communicate(timeout=150)
        finally:
            process.kill()
            process.communicate()
    assert process.returncode == 0
    assert out.splitlines()[-1].endswith("run completed")
    assert without_missing_roles(err) == ""


def test_a_lost_connection_is_made_anew(qwf_dsn, conn):
    """Both of them, that which looks and that which listens."""
    run = start(conn, CHAIN)
    with watching(qwf_dsn, run) as watch:
        watch.until("run queued")
        conn.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        run_through(conn, dispatcher(conn), lambda _job: {})
        status, _ = watch.ended()
        assert (status, watch.said[-1][-15:]) == (0, "● run completed")


@pytest.mark.slow
def test_with_a_real_orchestrator_and_a_real_worker(qwf_dsn, conn, tmp_path):
    """`start --watch`: from a file to its outputs, and to a failure that is 1."""
    film = tmp_path / "real.yaml"
    film.write_text(REAL)
    with running_orchestrator(qwf_dsn), running_worker(qwf_dsn, "--queue", "cpu"):
        good = qwf("run", "start", str(film), "--watch", QWF_DB_URL=qwf_dsn)
        assert (good.returncode, good.stderr) == (0, "")
        assert good.stdout.splitlines()[-1].endswith("● run completed")
        bad = qwf("run", "start", str(film), "--input", "ok=false", "--watch", QWF_DB_URL=qwf_dsn)
        assert bad.returncode == 1
        assert "ValueError: not yet" in bad.stdout


class Screen:
    """A terminal of 80 by 24 in which a command runs; all that it wrote."""

    def __init__(self, *arguments: str, dsn: str) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        environment = qwf_environment(QWF_DB_URL=dsn, TERM="xterm", LC_ALL="C.UTF-8")
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            environment.pop(name, None)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "queue_workflows", *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment,
        )
        os.close(slave)
        self.shown = ""

    def until(self, words: str) -> None:
        """Read until this is on the screen."""
        while words not in click.unstyle(self.shown):
            self.shown += self._read()

    def rest(self) -> str:
        """All that comes to the end."""
        while more := self._read():
            self.shown += more
        self.process.wait(150)
        return self.shown

    def _read(self) -> str:
        try:
            return os.read(self.master, 65_536).decode("utf-8", "replace")
        except OSError:  # the other end is closed
            return ""

    def close(self) -> None:
        self.process.kill()
        self.process.wait(150)
        os.close(self.master)


def test_in_a_terminal_the_run_is_drawn_over_itself(qwf_dsn, conn):
    """In colour, whole in the end; nothing is wider than the terminal, or it could not go back."""
    run = start(conn, CHAIN)
    screen = Screen("run", "watch", str(run), dsn=qwf_dsn)
    try:
        screen.until("queued for")
        turn = dispatcher(conn)
        settle(turn)
        screen.until("a  queued")
        run_through(conn, turn, lambda _job: {})
        shown = screen.rest()
        assert screen.process.returncode == 0
    finally:
        screen.close()
    pictures = UP.split(shown)
    assert len(pictures) >= 3
    assert "\x1b[32m" in pictures[-1]
    final = click.unstyle(pictures[-1]).replace("\x1b[K", "").split("\r\n")
    assert final[0].startswith(f"chain  {run}  completed after ")
    assert [line.split()[:3] for line in final[2:4]] == [["●", "a", "completed"], ["●", "b", "completed"]]
    for picture in pictures:
        for line in re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", picture).split("\r\n"):
            assert len(line) <= 80


@pytest.mark.slow
def test_a_picture_is_as_high_as_what_it_goes_back_over(qwf_dsn, conn):
    """Else lines would be left behind, or eaten."""
    run = start(conn, {"name": "wide", "nodes": [{"id": f"n{n:03}", "module": "m"} for n in range(90)]})
    screen = Screen("run", "watch", str(run), dsn=qwf_dsn)
    try:
        screen.until("90 nodes")
        settle(dispatcher(conn))
        screen.until("queued")
        screen.process.send_signal(signal.SIGINT)
        shown = screen.rest()
        assert screen.process.returncode == 130
    finally:
        screen.close()
    pictures = re.split(r"\x1b\[(\d+)F", shown)
    for picture, back in zip(pictures[::2], pictures[1::2], strict=False):
        assert picture.count("\r\n") == int(back) <= 23
