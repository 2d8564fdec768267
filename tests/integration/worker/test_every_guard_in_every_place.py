"""Each guard fires in the shipped worker with one job and with several, under the supervisor, and as PID 1.

Only the times are short.

What holds the GIL or is stopped, which only the kernel's timer ends, is in test_worker.py,
test_supervisor_real_workers.py and tests/invariants/wakes/test_a_woken_worker_writes_nothing.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from support.processes.programs import UNSHARE, pid_namespace
from support.processes.supervised import supervisor_of
from support.processes.workers import running_worker, until

from queue_workflows.models import IngestJob
from queue_workflows.repositories import IngestJobRepository, WorkerControlRepository

SETTINGS = {"QWF_CANCEL_GRACE_S": "0.2"}


def alone(dsn: str) -> AbstractContextManager[Any]:
    return running_worker(dsn, "--concurrency", "1", **SETTINGS)


def in_a_crew(dsn: str) -> AbstractContextManager[Any]:
    return running_worker(dsn, "--concurrency", "4", **SETTINGS)


def supervised(dsn: str) -> AbstractContextManager[Any]:
    return supervisor_of(dsn, "--worker", "fetch", env=SETTINGS)


def as_pid_1(dsn: str) -> AbstractContextManager[Any]:
    return running_worker(dsn, prefix=UNSHARE, **SETTINGS)


@dataclass(frozen=True)
class Guard:
    """What sets it off, what becomes of the job, and the status that its worker ends with, if it does."""

    task: str
    becomes: tuple[str, int, int]
    ends_with: int | None
    options: tuple[tuple[str, float], ...] = ()
    does: Callable[[psycopg.Connection, int], object] | None = None


def cancel(conn: psycopg.Connection, job: int) -> None:
    IngestJobRepository(conn).cancel(job, actor="test")


def switch_off(conn: psycopg.Connection, job: int) -> None:
    WorkerControlRepository(conn).set("*", "fetch", "off", actor="test")


def end_it_for_the_worker(conn: psycopg.Connection, job: int) -> None:
    """Somebody else's word on the row: the worker's fence holds no longer."""
    IngestJobRepository(conn).mark_completed(job)


GUARDS = {
    "wall clock": Guard("deaf", ("scheduled", 1, 0), 75, (("timeout_s", 0.5),)),
    "stall": Guard("silent", ("scheduled", 1, 0), 76, (("stall_timeout_s", 0.5),)),
    "cancel": Guard("deaf", ("cancelled", 0, 0), None, does=cancel),
    "off": Guard("deaf", ("queued", 0, 0), None, does=switch_off),
    "lost lease": Guard("deaf", ("completed", 0, 0), 80, does=end_it_for_the_worker),
}
PLACES = {"alone": alone, "in a crew": in_a_crew, "supervised": supervised, "as PID 1": as_pid_1}
# Other guards are tried in these places by night. A worker that is switched off executes itself anew.
GATED = {"supervised": ("wall clock", "cancel"), "as PID 1": ("wall clock", "cancel", "off")}


def runs(jobs: IngestJobRepository, job: int, tmp_path: Any) -> Callable[[], bool]:
    """Whether the body has begun: what is done to it before is another test's subject."""
    begun = tmp_path / "begun"
    return lambda: jobs.fetch(job).status == "running" and begun.exists()


def state(row: IngestJob | None) -> tuple[str, int, int]:
    assert row is not None
    return (row.status, row.failures, row.crash_count)


def cases() -> Iterator[Any]:
    """Each guard in each place; below another process some by night, for the worker is the same one."""
    for name in GUARDS:
        for place in PLACES:
            marks = [pid_namespace] if "PID" in place else []
            if (gated := GATED.get(place)) is not None and name not in gated:
                marks.append(pytest.mark.nightly)
            yield pytest.param(name, place, marks=marks)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "place"), list(cases()))
def test_it_fires(qwf_dsn: str, conn: psycopg.Connection, tmp_path: Any, name: str, place: str) -> None:
    """The job becomes what it shall, nothing else is held against it, and what came after it is worked on."""
    guard, jobs = GUARDS[name], IngestJobRepository(conn)
    args = {"begun": str(tmp_path / "begun")}
    job = jobs.enqueue(guard.task, queue="fetch", args=args, **dict(guard.options)).id
    with PLACES[place](qwf_dsn) as process:
        if guard.does is not None:
            until(runs(jobs, job, tmp_path))
            guard.does(conn, job)
        until(lambda: state(jobs.fetch(job)) == guard.becomes)
        if place == "supervised" and guard.ends_with is not None:
            process.until(f"ended with {guard.ends_with} ")
        elif guard.ends_with is not None:
            assert process.wait(150) == guard.ends_with
            return
        following = jobs.enqueue("note", queue="fetch", priority=9).id
        WorkerControlRepository(conn).clear("*", "fetch", actor="test")
        until(lambda: jobs.fetch(following).status == "completed")
