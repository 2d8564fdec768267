"""What a job leaves running: a pool may stay; one that owns something or was stopped leaves nothing."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.processes.programs import gone, linux_only
from support.processes.workers import patiently, running_worker

from queue_workflows.host.locks.lock import HostLock
from queue_workflows.host.processes.tree_by_mark import MARK, SHORTEST_MARK
from queue_workflows.repositories import IngestJobRepository
from queue_workflows.roles import exec_inheritance
from queue_workflows.roles.process_exit import bear_mark

pytestmark = linux_only


class Leavings:
    """Jobs of one worker that leave a child, a daemon and a daemon without our environment."""

    def __init__(self, conn: psycopg.Connection, directory: Path) -> None:
        self.conn = conn
        self.directory = directory
        self.pids: list[int] = []

    def enqueue(self, name: str, args: dict[str, Any] | None = None, **options: Any) -> int:
        """A job with a directory of its name."""
        args = {"directory": str(self.directory / name), **(args or {})}
        job = IngestJobRepository(self.conn).enqueue("leaves", queue="fetch", args=args, **options).id
        self.conn.commit()
        return job

    def left(self, name: str) -> list[int]:
        """Who they are, as soon as they are there."""
        file = self.directory / name / "pids"
        found = [int(pid) for pid in patiently(lambda: file.exists() and file.read_text()).split()]
        self.pids += found
        return found

    def ended(self, job: int) -> str:
        """How it ended, as soon as it has."""

        def status() -> str:
            self.conn.rollback()
            found = IngestJobRepository(self.conn).fetch(job)
            assert found is not None
            return "" if found.status in {"queued", "running"} else str(found.status)

        return patiently(status)


@contextmanager
def leavings(conn: psycopg.Connection, directory: Path) -> Iterator[Leavings]:
    found = Leavings(conn, directory)
    try:
        yield found
    finally:
        for pid in found.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_what_a_job_leaves_running(qwf_dsn: str, qwf_conn: psycopg.Connection, tmp_path: Path) -> None:
    """One worker, one job at a time: an ordinary one, three that own something, one that is cancelled."""
    (tmp_path / "locks").mkdir()
    lock = HostLock("device", directory=tmp_path / "locks")
    settings = {"QWF_APP": "support.tasks.leaving_tasks", "QWF_LOCK_DIR": str(tmp_path / "locks")}
    with (
        running_worker(qwf_dsn, "--concurrency", "1", QWF_CANCEL_GRACE_S="120", **settings) as worker,
        leavings(qwf_conn, tmp_path) as jobs,
    ):
        assert jobs.ended(jobs.enqueue("ordinary")) == "completed"
        stayed = jobs.left("ordinary")

        locked = jobs.enqueue("locked", host_lock="device")
        of_locked = jobs.left("locked")
        # It may not have been taken yet, nor by us: its holder is the worker from its claim to its end.
        patiently(lock.try_acquire)
        assert list(map(gone, of_locked)) == [True] * 3
        lock.release()
        assert jobs.ended(locked) == "completed"

        assert jobs.ended(jobs.enqueue("alone", limit_key="exclusive:scanner")) == "completed"
        assert list(map(gone, jobs.left("alone"))) == [True] * 3

        assert jobs.ended(jobs.enqueue("keeping", {"keeps": "device"})) == "completed"
        assert list(map(gone, jobs.left("keeping")))[:2] == [True] * 2

        waiting = jobs.enqueue("cancelled", {"waits": True})
        of_waiting = jobs.left("cancelled")
        IngestJobRepository(qwf_conn).cancel(waiting)
        qwf_conn.commit()
        assert jobs.ended(waiting) == "cancelled"
        assert list(map(gone, of_waiting))[:2] == [True] * 2

        assert list(map(gone, stayed)) == [False] * 3
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(300) == 0
        assert list(map(gone, stayed))[:2] == [True] * 2


@pytest.mark.slow
def test_a_crew_ends_what_the_thread_of_a_job_has_started(
    qwf_dsn: str, qwf_conn: psycopg.Connection, tmp_path: Path
) -> None:
    """The child of a job that owns something goes with it, another job's stays; all go with the crew."""
    (tmp_path / "locks").mkdir()
    settings = {"QWF_APP": "support.tasks.leaving_tasks", "QWF_LOCK_DIR": str(tmp_path / "locks")}
    with (
        running_worker(qwf_dsn, "--concurrency", "3", QWF_CANCEL_GRACE_S="120", **settings) as worker,
        leavings(qwf_conn, tmp_path) as jobs,
    ):
        waiting = jobs.enqueue("waiting", {"waits": True})
        of_waiting = jobs.left("waiting")
        assert jobs.ended(jobs.enqueue("ordinary")) == "completed"
        stayed = jobs.left("ordinary")
        assert jobs.ended(jobs.enqueue("locked", {"deaf": True}, host_lock="device")) == "completed"
        of_locked = jobs.left("locked")
        assert (gone(of_locked[0]), list(map(gone, of_waiting + stayed))) == (True, [False] * 6)
        IngestJobRepository(qwf_conn).cancel(waiting)
        qwf_conn.commit()
        assert jobs.ended(waiting) == "cancelled"
        assert (gone(of_waiting[0]), list(map(gone, stayed))) == (True, [False] * 3)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(300) == 0
        left = of_locked[:2] + of_waiting[:2] + stayed[:2]
        assert list(map(gone, left)) == [True] * 6


def test_a_worker_that_a_job_starts_has_a_mark_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Below that of its own worker, and the same after it has executed itself anew; a launcher's is kept."""
    above = uuid.uuid4().hex
    monkeypatch.setenv(MARK, above)
    monkeypatch.setattr(exec_inheritance.own, "mark", None)
    bear_mark(is_launched=True)
    assert os.environ[MARK] == above
    bear_mark(is_launched=False)
    own = os.environ[MARK]
    assert own.startswith(above + "/")
    bear_mark(is_launched=False)
    assert os.environ[MARK] == own
    monkeypatch.delenv(MARK)
    bear_mark(is_launched=False)
    assert len(os.environ[MARK]) > SHORTEST_MARK


@pytest.mark.parametrize("at_once", ["1", "3"])
def test_a_job_that_empties_the_environment_hides_no_daemon(
    qwf_dsn: str, qwf_conn: psycopg.Connection, tmp_path: Path, at_once: str
) -> None:
    """Neither its own, which bears the mark that the worker has lost, nor that of a job which comes later."""
    settings = {"QWF_APP": "support.tasks.leaving_tasks", "QWF_CANCEL_GRACE_S": "120"}
    with (
        running_worker(qwf_dsn, "--concurrency", at_once, **settings) as worker,
        leavings(qwf_conn, tmp_path) as jobs,
    ):
        assert jobs.ended(jobs.enqueue("empties", {"empties": True})) == "completed"
        assert jobs.ended(jobs.enqueue("after")) == "completed"
        left = jobs.left("empties")[:2] + jobs.left("after")[:2]
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(300) == 0
        assert list(map(gone, left)) == [True] * 4


def test_a_second_stop_keeps_no_worker_from_ending_what_was_left(
    qwf_dsn: str, qwf_conn: psycopg.Connection, tmp_path: Path
) -> None:
    """It comes when the worker holds no job any more, and waits for what a job left running to end."""
    settings = {"QWF_APP": "support.tasks.leaving_tasks", "QWF_CANCEL_GRACE_S": "120"}
    with running_worker(qwf_dsn, **settings) as worker, leavings(qwf_conn, tmp_path) as jobs:
        assert jobs.ended(jobs.enqueue("deaf", {"deaf": True})) == "completed"
        child, daemon, _ = jobs.left("deaf")
        worker.terminate()
        patiently((tmp_path / "deaf" / "asked").exists)
        worker.terminate()
        assert worker.wait(300) == 0
        assert gone(child)
        assert gone(daemon)


@pytest.mark.parametrize("meets", ["guardian.close", "leftover_processes._end"])
def test_what_a_job_raises_later_keeps_no_worker_from_ending_what_was_left(
    qwf_dsn: str, qwf_conn: psycopg.Connection, tmp_path: Path, meets: str
) -> None:
    """The first exception ends a worker of one job, in whose thread it comes; another meets the end."""
    settings = {
        "QWF_APP": "support.tasks.leaving_tasks",
        "QWF_CANCEL_GRACE_S": "120",
        # What is raised in a thread comes when that wakes up.
        "QWF_POLL_S": "0.2",
    }
    with (
        running_worker(qwf_dsn, "--concurrency", "1", **settings) as worker,
        leavings(qwf_conn, tmp_path) as jobs,
    ):
        jobs.enqueue("exits", {"exits": [meets]})
        left = jobs.left("exits")[:2]
        assert worker.wait(300) == 0
        assert list(map(gone, left)) == [True] * 2
