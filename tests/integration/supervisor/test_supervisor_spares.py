"""A spare worker takes the place of one that was killed, and is nobody's burden until then."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from support.processes.programs import gone
from support.processes.supervised import Supervised, enqueue, holder, idle, supervisor_of
from support.processes.workers import until

from queue_workflows.host.processes.fork_server import ForkServerLine
from queue_workflows.host.processes.tree_by_mark import marks
from queue_workflows.repositories import HeartbeatRepository, IngestJobRepository
from queue_workflows.roles.identity import INCARNATION
from queue_workflows.roles.supervisor.slots import ORCHESTRATOR, WorkerSpec, worth_a_spare
from queue_workflows.roles.supervisor.standby import SOCKET, is_called

ONE_JOB = ("--worker", "fetch --concurrency 1")
STANDS_BY = r"a spare stands by, pid (\d+)"


def spare_of(supervisor: Supervised) -> int:
    pid = int(supervisor.until(STANDS_BY)[1])
    supervisor.pids.add(pid)
    return pid


def sockets(pid: int) -> list[str]:
    links = [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]
    return [link for link in links if link.startswith("socket:")]


@pytest.mark.slow
def test_the_successor_of_a_killed_worker_is_forked(qwf_dsn, conn, jobs, tmp_path):
    """From a spare that has no connection and stays; what it leaves behind is ended when it is killed too."""
    env = {"QWF_LEASE_S": "3600", "QWF_GRACE_S": "300"}
    with supervisor_of(qwf_dsn, *ONE_JOB, env=env) as supervisor:
        idle(conn, 1)
        spare = spare_of(supervisor)
        (worker,) = supervisor.pids - {spare}
        assert len(sockets(spare)) == 1  # which is its supervisor's
        os.kill(worker, signal.SIGKILL)
        pid_file = tmp_path / "daemon"
        job = enqueue(jobs, "daemon", pid_file=str(pid_file))
        until(pid_file.exists)
        daemon, successor = int(pid_file.read_text()), holder(conn, job)
        assert psutil.Process(successor).parent() == psutil.Process(spare)
        assert os.getsid(successor) == successor
        seen = marks()
        assert seen[daemon] == seen[successor] != seen[spare]
        os.kill(successor, signal.SIGKILL)
        until(lambda: gone(daemon))
        third = until(lambda: (found := holder(conn, job)) and found not in (worker, successor) and found)
        assert psutil.Process(third).parent() == psutil.Process(spare)
        row = jobs.fetch(job)
        assert (row.attempt, row.crash_count) == (2, 1)
        supervisor.signal(signal.SIGTERM)
        until(lambda: HeartbeatRepository(conn).list(state="stopping"))
        supervisor.signal(signal.SIGTERM)
        assert supervisor.status() == 143
        assert gone(spare)


@pytest.mark.slow
def test_what_an_import_has_begun_is_not_forked(qwf_dsn, conn, tmp_path):
    """A thread or a connection is of one process: such a spare becomes the worker itself."""
    (tmp_path / "busy_app.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(3600,), daemon=True).start()\n"
    )
    command = [sys.executable, "-m", "queue_workflows", "--app", "busy_app", "supervisor"]
    with Supervised([*command, "--worker", "fetch"], qwf_dsn, cwd=tmp_path) as supervisor:
        idle(conn, 1)
        spare = int(supervisor.until(r"a spare stands by, pid (\d+) for one death: a thread")[1])
        (worker,) = supervisor.pids
        os.kill(worker, signal.SIGKILL)
        supervisor.until(f"started, pid {spare}, as ")
        until(lambda: [beat.pid for beat in HeartbeatRepository(conn).list(state="idle")] == [spare])
        assert spare_of(supervisor) != spare
        assert supervisor.stop() == 0


@pytest.mark.slow
def test_a_spare_that_is_killed_takes_its_workers_along_gently(qwf_dsn, conn, jobs):
    """They are its children to the kernel: their jobs are given back uncounted, and begin again elsewhere."""
    with supervisor_of(qwf_dsn, *ONE_JOB, env={"QWF_GRACE_S": "0.2"}) as supervisor:
        idle(conn, 1)
        spare = spare_of(supervisor)
        (worker,) = supervisor.pids - {spare}
        os.kill(worker, signal.SIGKILL)
        job = enqueue(jobs, "deaf")
        forked = until(lambda: (found := holder(conn, job)) and found != worker and found)
        os.kill(spare, signal.SIGKILL)
        until(lambda: (found := holder(conn, job)) and found != forked)
        row = jobs.fetch(job)
        assert (row.crash_count, row.suspect) == (0, False)
        supervisor.signal(signal.SIGTERM)
        supervisor.signal(signal.SIGTERM)
        supervisor.status()


HOST_APP = """
import os, pathlib, subprocess
from queue_workflows import ingest_task

@ingest_task("version")
def version(reason):
    return VERSION

if "_QWF_SPARE" in os.environ:
    started = subprocess.Popen(["sleep", "3600"], start_new_session=True)
    pathlib.Path(os.environ["BESIDE"]).write_text(str(started.pid))
"""


@pytest.fixture
def app(tmp_path: Path, qwf_dsn: str) -> Iterator[tuple[Supervised, Path]]:
    """A supervisor over a host app that can be changed, and whose import starts a process in spares."""
    module = tmp_path / "host_app_of_today.py"
    module.write_text("VERSION = 'old'\n" + HOST_APP)
    command = [sys.executable, "-m", "queue_workflows", "--app", module.stem]
    env = {"QWF_GRACE_S": "300", "BESIDE": str(tmp_path / "beside")}
    supervisor = Supervised([*command, "supervisor", "--worker", "fetch"], qwf_dsn, env=env, cwd=tmp_path)
    try:
        with supervisor:
            yield supervisor, module
    finally:
        with suppress(OSError, psutil.Error):
            psutil.Process(int((tmp_path / "beside").read_text())).kill()


def started_by_spare(module: Path) -> int:
    """Who is there once the spare has imported the module."""
    file = module.with_name("beside")
    return int(until(lambda: file.exists() and file.read_text()))


def result_of(jobs: IngestJobRepository, job: int) -> object:
    return until(lambda: (row := jobs.fetch(job)) and row.result)


@pytest.mark.slow
def test_a_worker_that_was_stopped_comes_back_with_the_code_of_today(app, conn, jobs):
    """What stood by had imported yesterday's; it is ended with all that it started, and another follows."""
    supervisor, module = app
    assert result_of(jobs, enqueue(jobs, "version")) == "old"
    spare = spare_of(supervisor)
    (worker,) = supervisor.pids - {spare}
    beside = started_by_spare(module)
    assert not gone(beside)
    module.write_text("VERSION = 'of today'\n" + HOST_APP)
    os.kill(worker, signal.SIGTERM)
    supervisor.until(f"pid {worker} ended with 0")
    assert result_of(jobs, enqueue(jobs, "version")) == "of today"
    until(lambda: gone(spare) and gone(beside))
    assert spare_of(supervisor) != spare


@pytest.mark.slow
def test_a_stopped_supervisor_leaves_nothing_that_a_spare_started(app, conn):
    """Its pipe's end would end the spare alone."""
    supervisor, module = app
    spare = spare_of(supervisor)
    beside = started_by_spare(module)
    assert supervisor.stop() == 0
    until(lambda: gone(spare) and gone(beside))


@pytest.mark.slow
def test_a_spare_stands_by_once_it_has_imported_the_app(qwf_dsn, conn, tmp_path):
    """Not while it does: whose place it takes before that waits for the rest."""
    (tmp_path / "slow_app.py").write_text(
        "import os\nif '_QWF_SPARE' in os.environ:\n    os.write(1, b'imported by a spare\\n')\n"
    )
    command = [sys.executable, "-m", "queue_workflows", "--app", "slow_app", "supervisor"]
    with Supervised([*command, "--worker", "fetch"], qwf_dsn, cwd=tmp_path) as supervisor:
        supervisor.until("imported by a spare")
        assert not any("stands by" in line for line in supervisor.said)
        spare_of(supervisor)
        assert supervisor.stop() == 0


@pytest.mark.slow
def test_without_its_spare_a_worker_is_replaced_all_the_same(qwf_dsn, conn):
    """If it dies too, the next start is a plain one."""
    with supervisor_of(qwf_dsn, "--worker", "fetch") as supervisor:
        idle(conn, 1)
        spare = spare_of(supervisor)
        (worker,) = supervisor.pids - {spare}
        os.kill(spare, signal.SIGKILL)
        supervisor.until(f"the spare with pid {spare} ended by itself")
        os.kill(worker, signal.SIGKILL)
        successor = int(supervisor.until(r"started, pid (\d+)")[1])
        successor = successor if successor != worker else int(supervisor.until(r"started, pid (\d+)")[1])
        until(lambda: [beat.pid for beat in HeartbeatRepository(conn).list(state="idle")] == [successor])
        assert supervisor.stop() == 0


@pytest.mark.slow
def test_a_spare_ends_with_its_supervisor(qwf_dsn, conn):
    """However that ends."""
    with supervisor_of(qwf_dsn, "--worker", "fetch") as supervisor:
        spare = spare_of(supervisor)
        os.kill(supervisor.pid, signal.SIGKILL)
        until(lambda: gone(spare))


def test_who_gets_a_spare():
    """Nobody who ends when the work is done, and nobody on gpu, where memory is what is short."""
    specs = [WorkerSpec("fetch"), WorkerSpec("gpu"), WorkerSpec("load", ("--drain",)), WorkerSpec("cpu")]
    specs = [ORCHESTRATOR, *specs]
    assert [spec.queue for spec in worth_a_spare(specs)] == ["fetch", "cpu"]


def test_a_spare_ends_when_nobody_asks_any_more():
    """It says what is in the way of a fork, and leaves nothing of that to its jobs."""
    own, given = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environ = {SOCKET: str(given.detach())}
    own.shutdown(socket.SHUT_WR)
    assert not is_called(environ)
    assert environ == {}
    assert json.loads(own.recv(1024)) == {"obstacle": "there is no room for marks"}
    own.close()


def test_a_spare_becomes_what_it_is_told():
    """Also where that is the last that it is told."""
    own, given = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environ = {SOCKET: str(given.detach())}
    with own:
        assert ForkServerLine(own).become({INCARNATION: "abc123"})
    assert is_called(environ)
    assert environ == {INCARNATION: "abc123"}


def test_who_is_no_spare_works_at_once():
    """Nothing to wait for."""
    environ: dict[str, str] = {}
    assert is_called(environ)
    assert environ == {}
