"""A task that closes all descriptors or fills memory costs itself a crash, and nothing else."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.containers.memory_cgroups import limited_to
from support.processes.quick_supervisor import real_workers
from support.processes.workers import patiently
from support.rows.schemas import qwf
from support.stages.floor import Floor

from queue_workflows.host.processes import pid1

APP = {"QWF_APP": "support.tasks.ending_tasks", "QWF_MAX_CRASHES": "1"}
ENOUGH = 512 << 20


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", [3, 0], ids=["all but the streams", "the streams too"])
def test_closed_descriptors(floor: Floor, tmp_path: Path, first: int) -> None:
    """Of one job and of four at once: counted, and nothing of ours is written to the files that follow."""
    files = [str(tmp_path / str(number)) for number in range(40)]
    spoilt = [
        floor.repository.enqueue("closes descriptors", queue=queue, args={"opens": files, "first": first}).id
        for queue in ("fetch", "load")
    ]
    good = [floor.repository.enqueue("good", queue=queue).id for queue in ("fetch", "load") for _ in range(3)]
    with real_workers(floor.dsn, "fetch --concurrency 1", "load --concurrency 4", env=APP) as supervisor:
        patiently(lambda: floor.are_in("completed", *good))
        patiently(lambda: floor.are_in("failed", *spoilt))
        assert supervisor.stop() == 0
    for job_id in spoilt:
        assert floor.jobs.seen(job_id, "crash_count", "failures") == (1, 0)
    assert {floor.jobs.seen(job_id, "crash_count") for job_id in good} == {(0,)}
    assert {Path(file).read_bytes() for file in files} == {b""}
    assert "Traceback" not in "\n".join(supervisor.said)
    said = [line for line in supervisor.said if "the descriptors of this process were closed" in line]
    # Alone each once, and once beside the others; where nothing is left to say it with, it is not said.
    assert len(said) == (3 if first else 0)


@pytest.fixture
def memory_cgroup() -> Iterator[Path]:
    with limited_to(ENOUGH) as cgroup:
        yield cgroup


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_memory_of_the_cgroup(floor: Floor, memory_cgroup: Path) -> None:
    """The kernel kills the worker that fills it: row, log and `explain` say so; others are done."""
    full = floor.repository.enqueue("fills memory", queue="fetch").id
    good = [floor.repository.enqueue("good", queue="fetch").id for _ in range(3)]
    inside = ["sh", "-c", f'echo $$ > {memory_cgroup}/cgroup.procs; exec "$@"', "sh"]
    with real_workers(floor.dsn, "fetch --concurrency 1", env=APP, prefix=inside) as supervisor:
        patiently(lambda: floor.are_in("completed", *good))
        patiently(lambda: floor.are_in("failed", full))
        assert supervisor.stop() == 0
    assert floor.jobs.seen(full, "crash_count", "failures") == (1, 0)
    said = "killed by SIGKILL by the kernel, out of memory: the limit is 512 MiB, the peak was 512 MiB"
    assert floor.jobs.row(full)["errors"][-1]["message"].endswith(f": {said}")
    assert len([line for line in supervisor.said if f" {said} after " in line]) == 1
    assert said in qwf("explain", f"ingest:{full}", QWF_DB_URL=floor.dsn).stdout
    assert {floor.jobs.seen(job_id, "crash_count") for job_id in good} == {(0,)}


@pytest.mark.slow
def test_memory_of_a_container(memory_cgroup: Path) -> None:
    """What stands in as PID 1 for a worker says that the kernel killed it, and ends with its status."""
    fills = "kept = []\nwhile True: kept.append(b'x' * (1 << 24))"
    enters = f'echo $$ > {memory_cgroup}/cgroup.procs; exec "$@"'
    launcher = [sys.executable, "-I", "-S", pid1.__file__, sys.executable, "-c", fills]
    done = subprocess.run(["sh", "-c", enters, "sh", *launcher], capture_output=True, text=True, timeout=300)
    assert done.returncode == 128 + signal.SIGKILL
    said = (
        r"process \d+ was killed by the kernel, out of memory: the limit is 512 MiB, the peak was 512 MiB\n"
    )
    assert re.fullmatch(said, done.stderr), done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("prlimit") is None, reason="needs prlimit")
@pytest.mark.parametrize("concurrency", [1, 4])
def test_memory_of_the_process(floor: Floor, concurrency: int) -> None:
    """With a limit of its own the job gets a MemoryError: it ends as failed, and its worker may live on."""
    full = floor.repository.enqueue("fills memory", queue="fetch", max_attempts=1).id
    good = [floor.repository.enqueue("good", queue="fetch").id for _ in range(3)]
    inside = ["prlimit", f"--as={3 * ENOUGH}"]
    # Without the job's own traceback.
    command = f"fetch --concurrency {concurrency} --log-level critical"
    with real_workers(floor.dsn, command, env=APP, prefix=inside) as supervisor:
        patiently(lambda: floor.are_in("completed", *good))
        patiently(lambda: floor.are_in("failed", full))
        assert supervisor.stop() == 0
    assert sum(floor.jobs.seen(full, "crash_count", "failures")) == 1
    assert {floor.jobs.seen(job_id, "crash_count") for job_id in good} == {(0,)}
    assert "Traceback" not in "\n".join(supervisor.said)
