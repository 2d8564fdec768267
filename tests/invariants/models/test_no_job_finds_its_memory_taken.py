"""Models that say half of what they take fail no job: what they took is seen, kept, and gone by."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.commands import qwf_here
from support.processes.supervised import Supervised
from support.processes.workers import patiently
from support.rows.jobs import CLEAR_WITH_WORKERS

from queue_workflows import start_run
from queue_workflows.repositories import RunRepository
from queue_workflows.repositories.workers.model_memory import ModelMemoryRepository

SOURCE = Path(__file__).parents[2] / "support" / "apps" / "card_memory.c"
BUDGET_MB = 24_000
ORDER = ["painter", "writer", "small", "singer", "painter", "small", "writer", "singer", "small", "painter"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("cc") is None, reason="the stand-in for a library needs a C compiler"),
]


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR_WITH_WORKERS)
        yield connection


def env_of(place: Path) -> dict[str, str]:
    """What gives a worker a simulated card."""
    library = place / "libnvidia-ml.so.1"
    command = ["cc", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-o", str(library), str(SOURCE)]
    subprocess.run(command, check=True, timeout=120)
    (place / "card").write_text("0")
    return {
        "LD_LIBRARY_PATH": str(place),
        "CARD_MEMORY": str(place / "card"),
        "_QWF_ALONE_ON_DEVICE": "1",
        "CUDA_VISIBLE_DEVICES": "GPU-simulated",
        "QWF_LOCK_DIR": str(place / "locks"),
        "QWF_APP": "support.apps.card_memory_app",
        "QWF_MODEL_VRAM_MB": str(BUDGET_MB),
        "QWF_AFFINITY_MAX_WAIT_S": "0",
    }


def worked_off(dsn: str, conn: psycopg.Connection, env: dict[str, str], order: list[str]) -> None:
    """Runs of one node each, one after the other by age, until all are completed."""
    runs = [
        start_run(
            {"name": "film", "nodes": [{"id": "n", "module": "draw", "queue": "gpu", "model": model}]},
            conn=conn,
        ).id
        for model in order
    ]
    command = [sys.executable, "-m", "queue_workflows", "supervisor", "--orchestrator", "--worker", "gpu"]
    with Supervised(command, dsn, env=env) as supervisor:
        repository = RunRepository(conn)
        patiently(lambda: all(repository.fetch(run).finished_at for run in runs))
        assert {repository.fetch(run).status for run in runs} == {"completed"}, supervisor.said
        assert supervisor.stop() == 0


def test_figures_that_are_wrong_by_half(qwf_dsn: str, conn: psycopg.Connection, tmp_path: Path) -> None:
    """No load and no job is refused; what each took is kept with how often it was loaded."""
    env = env_of(tmp_path)
    worked_off(qwf_dsn, conn, env, ORDER)
    assert not (tmp_path / "refused").exists()
    kept = {one.model: one for one in ModelMemoryRepository(conn).read(device="simulated 24 GB")}
    assert {name: (max(one.load_mb), max(one.peak_mb, default=None)) for name, one in kept.items()} == {
        "painter": (9_000, 10_500),
        "writer": (8_000, 8_500),
        "singer": (11_000, None),
        "small": (2_000, 2_200),
    }
    loads = (tmp_path / "loads").read_text().split()
    assert {name: one.loads for name, one in kept.items()} == {name: loads.count(name) for name in kept}
    told = json.loads(qwf_here("--db", qwf_dsn, "models", "--json").stdout)["memory"]
    assert [(one["model"], one["held_mb"], one["used_mb"], one["declared_mb"]) for one in told] == [
        ("painter", 9_000, 10_500, 5_250),
        ("singer", 11_000, 11_000, 5_500),
        ("small", 2_000, 2_200, 1_100),
        ("writer", 8_000, 8_500, 4_250),
    ]
    # Another worker, which has loaded nothing yet, goes by it from its first load on.
    (tmp_path / "loads").unlink()
    (tmp_path / "card").write_text("0")
    worked_off(qwf_dsn, conn, env, ["painter", "singer", "small", "painter", "singer", "small"])
    assert not (tmp_path / "refused").exists()
    assert (tmp_path / "loads").read_text().split() == ["painter", "singer", "small"]
