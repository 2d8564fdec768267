"""A spare worker takes the place of one that was killed, and is nobody's burden until then."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from support.processes import gone
from support.supervised import Supervised, enqueue, holder, idle, supervisor_of
from support.workers import until

from queue_workflows.repositories import HeartbeatRepository, IngestJobRepository
from queue_workflows.roles.identity import INCARNATION
from queue_workflows.roles.slots import ORCHESTRATOR, WorkerSpec, worth_a_spare
from queue_workflows.roles.standby import PIPES, WAITS, is_called

STANDS_BY = r"a spare stands by, pid (\d+)"


def spare_of(supervisor: Supervised) -> int:
    pid = int(supervisor.until(STANDS_BY)[1])
    supervisor.pids.add(pid)
    return pid


def sockets(pid: int) -> list[str]:
    links = [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]
    return [link for link in links if link.startswith("socket:")]


@pytest.mark.slow
def test_the_successor_of_a_killed_worker_was_there_before(qwf_dsn, conn, jobs):
    """Its interpreter and imports cost the job nothing, it had no connection, and another spare follows."""
    env = {"QWF_LEASE_S": "3600", "QWF_GRACE_S": "300"}
    with supervisor_of(qwf_dsn, "--worker", "fetch", env=env) as supervisor:
        job = enqueue(jobs, "deaf")
        pid = until(lambda: holder(conn, job))
        spare = spare_of(supervisor)
        assert sockets(spare) == []
        os.kill(pid, signal.SIGKILL)
        supervisor.until(f"started, pid {spare}, as ")
        until(lambda: holder(conn, job) == spare)
        row = jobs.fetch(job)
        assert (row.attempt, row.crash_count) == (2, 1)
        another = spare_of(supervisor)
        assert another not in (pid, spare)
        supervisor.signal(signal.SIGTERM)
        until(lambda: HeartbeatRepository(conn).list(state="stopping"))
        until(lambda: gone(another))
        supervisor.signal(signal.SIGTERM)
        assert supervisor.status() == 143


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
    """A spare that dies is not replaced, as another would die as well; the next start is a plain one."""
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


@pytest.mark.parametrize(("said", "called"), [(b"abc123", True), (b"", False)])
def test_a_spare_works_when_it_is_given_a_name(said, called):
    """And ends at the end of the pipe; it says that it waits, and leaves nothing to its jobs."""
    named, pipe = os.pipe()
    waits, waiting = os.pipe()
    os.write(pipe, said)
    os.close(pipe)
    environ = {PIPES: f"{named},{waiting}"}
    assert is_called(environ) is called
    assert environ == {INCARNATION: said.decode()}
    assert os.read(waits, 64) == WAITS
    os.close(waits)


def test_a_spare_that_is_called_before_it_waits_works():
    """Nobody hears any more that it waits."""
    named, pipe = os.pipe()
    waits, waiting = os.pipe()
    os.write(pipe, b"abc123")
    os.close(pipe)
    os.close(waits)
    assert is_called({PIPES: f"{named},{waiting}"})


def test_who_is_no_spare_works_at_once():
    """Nothing to wait for."""
    environ: dict[str, str] = {}
    assert is_called(environ)
    assert environ == {}
