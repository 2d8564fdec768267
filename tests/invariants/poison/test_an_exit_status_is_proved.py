"""However a job ends its process, it is counted: a status is believed only if our own code announced it."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest
from support.processes.programs import UNSHARE, pid_namespace
from support.processes.quick_supervisor import ToldProcesses, real_workers
from support.processes.supervised import HOST
from support.processes.workers import patiently, until, worker_command, worker_environment
from support.rows.runs import dispatcher, settle, start
from support.stages.floor import Floor

from queue_workflows.host.processes.launcher import spawn
from queue_workflows.repositories.jobs.hooks import HookJobRepository
from queue_workflows.roles.supervisor.restarts import Next, Restarts, acted_on, crashed, describe
from queue_workflows.roles.supervisor.slots import WorkerSpec

APP = {"QWF_APP": "support.tasks.ending_tasks"}
# What our own code says when nothing is wrong with the job that it was at, or what no restart mends.
ORDERLY: Final = (0, 2, 69, 77, 78, 79, 80, 130, 143)
STOPS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
SHOWN: Final = (*ORDERLY, *(-number for number in STOPS))
# Ignored unless somebody asked for them, or they stop a process instead of ending it.
_HARMLESS: Final = {"SIGCHLD", "SIGCONT", "SIGURG", "SIGWINCH", "SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU"}
DEADLY: Final = [
    number
    for number in sorted(map(int, signal.valid_signals()))
    if number not in [int(getattr(signal, name)) for name in _HARMLESS]
]
# As Popen tells an end: a status, or a signal below zero.
ENDS: Final = [*range(256), *(-number for number in DEADLY)]
# So many processes at once.
_BATCH: Final = 32
HOOK: Final = {"module": "m", "plugin": "p", "queue": "hooks", "step": 0}
COUNTS: Final = ("status", "attempt", "crash_count", "failures")


def words_for(end: int) -> str:
    """How a shell comes to this end."""
    return f"exit {end}" if end >= 0 else f"kill {end} $$"


def verdict_on(end: int) -> str:
    return f"it killed its worker 1 times, each time running alone: {describe(end, chosen=False)}"


def test_every_status_and_every_signal() -> None:
    """A real process that was given the pipe and ends so, announcing nothing: a crash, made good at once."""
    spec = WorkerSpec("fetch", ("--once",))
    for batch in range(0, len(ENDS), _BATCH):
        children = {
            end: spawn(["/bin/sh", "-c", f"ulimit -c 0; {words_for(end)}"], with_last_word=True)
            for end in ENDS[batch : batch + _BATCH]
        }
        for end, child in children.items():
            assert child.wait(150) == end
            acted = acted_on(end, chosen=child.chose(end))
            assert crashed(acted), end
            follows = Restarts().after(acted, lived_s=1, deaths=0, last_ends=spec.last_ends, chance=1.0)
            assert follows == Next(0.0, 1), end


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_whatever_the_process_held(floor: Floor, tmp_path: Path) -> None:
    """Of several jobs all are suspects; of one, also of one hook, the crash is counted and named."""
    hooks = HookJobRepository.at(HOST)(floor.connection)
    start(floor.connection, {"on_failure": "continue", "nodes": [{**HOOK, "id": f"n{n}"} for n in range(99)]})
    settle(dispatcher(floor.connection))
    with ToldProcesses(floor.dsn, tmp_path, "fetch", "load", "hooks") as processes:
        for end in SHOWN:
            ids = dict(processes.next() for _ in range(3))
            crowd, (lonely,) = floor.jobs.enqueue(4), floor.jobs.enqueue(queue="load")
            assert len(floor.jobs.claim(ids["fetch"], limit=4, lease_s=3600)) == len(crowd)
            assert floor.repository.claim("load", worker_id=ids["load"], lease_s=3600)
            (hook,) = hooks.claim("hooks", worker_id=ids["hooks"], lease_s=3600, limit=1)
            for worker_id in ids.values():
                processes.tell(worker_id, words_for(end))
            floor.until_in("queued", *crowd)
            floor.until_in("failed", lonely)
            until(lambda job_id=hook.id: hook_of(floor, job_id)[0] == "failed")
            for job_id in crowd:
                assert floor.jobs.seen(job_id, *COUNTS, "suspect") == ("queued", 1, 0, 0, True)
            floor.repository.cancel_many(crowd)
            assert floor.jobs.seen(lonely, *COUNTS) == ("failed", 1, 1, 0)
            assert floor.jobs.row(lonely)["errors"][-1]["message"] == verdict_on(end)
            assert hook_of(floor, hook.id) == ("failed", 1, verdict_on(end))
        processes.supervisor.stop()
    followed = [line.rpartition("; ")[2] for line in processes.supervisor.said if "; " in line]
    assert set(followed) == {"again at once"}


def hook_of(floor: Floor, job_id: int) -> tuple[Any, ...]:
    found = floor.connection.execute(
        "SELECT status, crash_count, errors -> -1 ->> 'message' FROM workflow_node_jobs WHERE id = %s",
        [job_id],
    ).fetchone()
    assert found is not None
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_in_real_workers(floor: Floor) -> None:
    """Of one job and of four at once: each that ends its worker fails with its end named, others are done."""
    ends = {
        enqueue(floor, "exits", status=0): 0,
        enqueue(floor, "exits", status=78, in_c=True): 78,
        enqueue(floor, "becomes another"): 0,
        enqueue(floor, "is killed", signal=signal.SIGTERM): -signal.SIGTERM,
    }
    crowded = {enqueue(floor, "exits", queue="load", status=77): 77}
    good = [enqueue(floor, "good", queue=queue) for queue in ("fetch", "load") for _ in range(4)]
    env = {**APP, "QWF_MAX_CRASHES": "1"}
    with real_workers(floor.dsn, "fetch:2 --concurrency 1", "load --concurrency 4", env=env) as supervisor:
        patiently(lambda: floor.are_in("completed", *good))
        patiently(lambda: floor.are_in("failed", *ends, *crowded))
        assert supervisor.stop() == 0
    for job_id, end in (ends | crowded).items():
        assert floor.jobs.seen(job_id, "status", "crash_count", "failures") == ("failed", 1, 0), end
        assert floor.jobs.row(job_id)["errors"][-1]["message"] == verdict_on(end)
    assert {floor.jobs.seen(job_id, "crash_count", "failures") for job_id in good} == {(0, 0)}
    assert not [line for line in supervisor.said if "Traceback" in line or "may not help" in line]


def enqueue(floor: Floor, task: str, queue: str = "fetch", **args: Any) -> int:
    return floor.repository.enqueue(task, queue=queue, args=args).id


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("prefix", "status"),
    [((), 78), pytest.param(UNSHARE, 0, marks=pid_namespace)],
    ids=["alone", "as PID 1"],
)
def test_in_a_worker_without_a_supervisor(floor: Floor, prefix: tuple[str, ...], status: int) -> None:
    """Started again and again by a shell: each death is counted when its lease has lapsed."""
    poison, *good = enqueue(floor, "exits", status=status), *(enqueue(floor, "good") for _ in range(3))
    with restarted_by_a_shell(floor.dsn, [*prefix, *worker_command("--concurrency", "1")]):
        patiently(lambda: floor.are_in("completed", *good))
        patiently(lambda: floor.are_in("failed", poison))
    assert floor.jobs.seen(poison, *COUNTS) == ("failed", 2, 2, 0)
    assert {floor.jobs.seen(job_id, "crash_count") for job_id in good} == {(0,)}


@contextmanager
def restarted_by_a_shell(dsn: str, command: Sequence[str]) -> Iterator[None]:
    env = worker_environment(dsn, {**APP, "QWF_LEASE_S": "5", "QWF_MAX_CRASHES": "2"})
    loop = ["sh", "-c", f"while true; do {shlex.join(command)}; done"]
    process = subprocess.Popen(loop, env=env, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
