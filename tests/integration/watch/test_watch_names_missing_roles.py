"""What nobody runs is told by whatever follows a run, within two seconds of the moment it begins to look."""

from __future__ import annotations

import contextlib
import io
import shlex
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from support.connections.kept import own_connection
from support.rows.jobs import CLEAR_WITH_WORKERS
from support.rows.runs import dispatcher, settle, start

from queue_workflows.cli.main import run as qwf_in_process
from queue_workflows.db.connections.engine import Database
from queue_workflows.db.listen.listener import Listener, Wake
from queue_workflows.engine.watch.follow import LOOK_EVERY_S, watch_run
from queue_workflows.engine.watch.missing_roles import MissingRoles, RoleWatch
from queue_workflows.errors import ExitCode

WITHIN_S = 2.0
FILM = "name: film\nnodes: [{id: draw, module: m, queue: gpu}]\n"
UP = "`qwf --db {dsn} up` runs all roles in one terminal; with --here `qwf {begins}` needs none"
ORCHESTRATOR = "no orchestrator runs: `qwf --db {dsn} orchestrator` starts one"
GPU = "no worker of gpu runs: `qwf --db {dsn} worker --queue gpu` starts one"
HOOKS = "no worker of hooks runs: `qwf --db {dsn} worker --queue hooks --dir PLUGINS` starts one"


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR_WITH_WORKERS)
        yield connection


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory in which commands run, with a workflow and a hook."""
    (tmp_path / "film.yaml").write_text(FILM, encoding="utf-8")
    hook = tmp_path / "plugins" / "a" / "on_Page__10_a.sh"
    hook.parent.mkdir(parents=True)
    hook.write_text("#!/bin/sh\n", encoding="utf-8")
    hook.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Patience:
    """What a command that follows a run says, and how long it chose to wait before it said it.

    Of a wait no more counts than it asked for, however busy the machine is; it is interrupted when it has
    spoken.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, heard: str) -> None:
        self.waited_s = 0.0
        self.stderr = io.StringIO()
        waits = Listener.wait

        def wait(listener: Listener, timeout: float) -> Wake | None:
            if heard in self.stderr.getvalue() or self.waited_s > 10 * WITHIN_S:
                raise KeyboardInterrupt
            began = time.monotonic()
            try:
                return waits(listener, timeout)
            finally:
                self.waited_s += min(timeout, time.monotonic() - began)

        monkeypatch.setattr(Listener, "wait", wait)

    def of(self, *arguments: str) -> list[str]:
        """What it says of roles, once each."""
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(self.stderr):
            assert qwf_in_process(arguments) == ExitCode.INTERRUPTED
        return [line for line in self.stderr.getvalue().splitlines() if " runs" in line or "--here" in line]


@pytest.mark.usefixtures("conn", "place")
@pytest.mark.parametrize(
    ("command", "said", "begins"),
    [
        (["run", "start", "film.yaml", "--watch"], [ORCHESTRATOR, GPU, UP], "run start"),
        (["run", "start", "film.yaml", "--watch", "--json"], [ORCHESTRATOR, GPU, UP], "run start"),
        (["hooks", "run", "Page", "--dir", "plugins", "--watch"], [ORCHESTRATOR, HOOKS, UP], "hooks run"),
    ],
    ids=["run-start", "as-objects", "hooks-run"],
)
def test_a_run_that_is_started(qwf_dsn, monkeypatch, command, said, begins):
    """Each command says which roles are missing and what starts them, before two seconds of waiting."""
    patience = Patience(monkeypatch, heard="needs none")
    found = patience.of("--db", qwf_dsn, *command)
    assert patience.waited_s < WITHIN_S
    assert found == [line.format(dsn=shlex.quote(qwf_dsn), begins=begins) for line in said]


def test_a_run_that_is_there(qwf_dsn, conn, monkeypatch):
    """`run watch` of one that waits for a worker alone names that alone, as soon."""
    run = start(conn, {"nodes": [{"id": "draw", "module": "m", "queue": "gpu"}]})
    settle(dispatcher(conn))
    with psycopg.connect(qwf_dsn, application_name="qwf:orchestrator@here"):
        patience = Patience(monkeypatch, heard="needs none")
        found = patience.of("--db", qwf_dsn, "run", "watch", str(run))
    assert patience.waited_s < WITHIN_S
    assert found == [line.format(dsn=shlex.quote(qwf_dsn), begins="run start") for line in (GPU, UP)]


def test_a_run_that_waits_for_a_run_below(qwf_dsn, conn, monkeypatch):
    """What a run needs that a node has started is what the watched one waits for."""
    scene = {"name": "scene", "nodes": [{"id": "draw", "module": "m", "queue": "gpu"}]}
    run = start(conn, {"nodes": [{"id": "scene", "type": "workflow", "workflow": "scene"}]})
    settle(dispatcher(conn, scene))
    with psycopg.connect(qwf_dsn, application_name="qwf:orchestrator@here"):
        patience = Patience(monkeypatch, heard="needs none")
        found = patience.of("--db", qwf_dsn, "run", "watch", str(run))
    assert patience.waited_s < WITHIN_S
    assert found == [line.format(dsn=shlex.quote(qwf_dsn), begins="run start") for line in (GPU, UP)]


def test_the_second_look_tells(qwf_dsn, conn):
    """What is missing at the first may be starting; the next one is a second later at most."""
    run = start(conn, {"nodes": [{"id": "draw", "module": "m", "queue": "gpu"}]})
    clock = [100.0]
    with Database.open(qwf_dsn, role="test") as database:
        (seen,) = (look for look, _ in zip(watch_run(database, run), [1], strict=False))
        assert seen is not None
        with RoleWatch(database, stale_s=30.0, now=lambda: clock[0]) as roles:
            assert roles.look(seen) == MissingRoles()
            clock[0] += LOOK_EVERY_S
            assert roles.look(seen) == MissingRoles(orchestrator=True, queues=("gpu",))
    assert 2 * LOOK_EVERY_S <= WITHIN_S
