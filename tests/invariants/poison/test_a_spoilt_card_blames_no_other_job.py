"""A job that makes the card useless to its process costs itself a failure, and no other job anything."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from support.processes.quick_supervisor import real_workers
from support.processes.workers import patiently
from support.stages.floor import Floor

SOURCE = Path(__file__).parents[2] / "support" / "apps" / "card_driver.c"
ASSERTED = 710

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("cc") is None, reason="the stand-in for a driver needs a C compiler"),
]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A library that passes for the driver's, by its name."""
    made = tmp_path_factory.mktemp("driver") / "libcuda.so.1"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", made, SOURCE], check=True, timeout=120
    )
    return str(made)


@pytest.mark.parametrize(
    ("concurrency", "hides"),
    [
        pytest.param(1, False, id="1-it fails"),
        pytest.param(4, True, id="4-it hides it"),
        pytest.param(1, True, id="1-it hides it", marks=pytest.mark.nightly),
        pytest.param(4, False, id="4-it fails", marks=pytest.mark.nightly),
    ],
)
def test_the_next_job_finds_a_card_that_can_be_used(
    floor: Floor, driver: str, concurrency: int, *, hides: bool
) -> None:
    """The worker starts afresh before it claims another; its supervisor has nothing to count."""
    spoilt = floor.repository.enqueue(
        "spoils", queue="fetch", args={"code": ASSERTED, "hides": hides}, max_attempts=1
    ).id
    env = {"QWF_APP": "support.apps.card_tasks", "CARD_DRIVER": driver}
    with real_workers(floor.dsn, f"fetch --concurrency {concurrency}", env=env) as supervisor:
        patiently(lambda: floor.are_in("completed" if hides else "failed", spoilt))
        good = [floor.repository.enqueue("uses", queue="fetch").id for _ in range(8)]
        patiently(lambda: floor.are_in("completed", *good))
        assert supervisor.stop() == 0
    assert floor.jobs.seen(spoilt, "failures", "crash_count") == (0 if hides else 1, 0)
    assert {floor.jobs.seen(job_id, "attempt", "failures", "crash_count") for job_id in good} == {(1, 0, 0)}
    said = [line for line in supervisor.said if "can use its GPU no more" in line]
    assert ["an assertion that failed on the card (CUDA error 710)" in line for line in said] == [True]
    assert sum("started, pid" in line for line in supervisor.said) == 1


@pytest.mark.parametrize("concurrency", [1, 4])
def test_an_error_that_passes_costs_the_worker_nothing(floor: Floor, driver: str, concurrency: int) -> None:
    """A refused launch fails its job alone: what is loaded stays loaded."""
    refused = floor.repository.enqueue("spoils", queue="fetch", args={"code": 1}, max_attempts=1).id
    env = {"QWF_APP": "support.apps.card_tasks", "CARD_DRIVER": driver}
    with real_workers(floor.dsn, f"fetch --concurrency {concurrency}", env=env) as supervisor:
        patiently(lambda: floor.are_in("failed", refused))
        assert supervisor.stop() == 0
    assert not any("can use its GPU no more" in line for line in supervisor.said)
