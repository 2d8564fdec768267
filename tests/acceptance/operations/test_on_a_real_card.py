"""What `gpu:each` promises, on a real NVIDIA card with PyTorch: skipped where either is missing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.commands import qwf_here
from support.processes.supervised import HOST, Supervised
from support.processes.workers import patiently, until

from queue_workflows import start_run
from queue_workflows.repositories import RunRepository

BUDGET_MB = 12_500
# What CUDA itself takes of a card for a process, and what an allocator keeps beside what it gave.
OVERHEAD_MB = 2_500
HOLDER = """
import sys, torch
held = torch.ones(5 << 28, device="cuda")
torch.cuda.synchronize()
print("holds", flush=True)
sys.stdin.read()
"""


def _no_card() -> str:
    try:
        asked = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as exc:
        return f"no NVIDIA card here: {exc}"
    if asked.returncode or "GPU 0:" not in asked.stdout:
        return "no NVIDIA card here"
    return "" if find_spec("torch") else "PyTorch is not installed"


pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(why := _no_card()), reason=why or "-"),
]


class Card:
    """A supervisor with a worker on each card of this machine, its runs, and what the card's tool says."""

    def __init__(self, dsn: str, tmp_path: Path, conn: psycopg.Connection, env: Mapping[str, str]) -> None:
        self.dsn, self.conn = dsn, conn
        command = [
            *(sys.executable, "-m", "queue_workflows", "--app", "support.apps.card_app", "supervisor"),
            *("--orchestrator", "--worker", "gpu:each"),
        ]
        settings = {
            "QWF_LOCK_DIR": str(tmp_path / "locks"),
            "QWF_MODEL_VRAM_MB": str(BUDGET_MB),
            "QWF_HW_SAMPLE_S": "0.5",
            "CUDA_VISIBLE_DEVICES": "0",
            **env,
        }
        self.supervisor = Supervised(command, dsn, env=settings)

    def begin(self, module: str, *, elements: int = 0, **node: Any) -> str:
        """Start a run of one node on the card, or of one for each of so many elements."""
        it: dict[str, Any] = {"id": "work", "module": module, "queue": "gpu", "retry": {"max_attempts": 1}}
        if elements:
            it["for_each"] = list(range(elements))
        document = {"name": module, "nodes": [it | node], "outputs": {"it": {"$from": "work"}}}
        return str(start_run(document, conn=self.conn).id)

    def outcome(self, run: str) -> tuple[str, Any, str]:
        """How a run ended: its status, its output, its error."""
        runs = RunRepository(self.conn)
        patiently(lambda: runs.fetch(run).finished_at is not None)
        ended = runs.fetch(run)
        return ended.status, (ended.outputs or {}).get("it"), str(ended.error)

    def completed(self, run: str) -> Any:
        """The output of a run that must have gone well."""
        status, output, error = self.outcome(run)
        assert (status, error) == ("completed", "None"), "\n".join(self.supervisor.said)
        return output

    def load(self) -> dict[str, Any]:
        """What the worker's heartbeat counts."""
        (one,) = json.loads(qwf_here("--db", self.dsn, "workers", "list", "--json").stdout)["workers"]
        told: dict[str, Any] = one["load"]
        return told

    def worker(self) -> int:
        """The pid of the next worker that is started on the card."""
        return int(self.supervisor.until(r"gpu/nvidia0: started, pid (\d+)")[1])


def used_mb() -> int:
    """How much of the first card's memory is in use, in the words of its tool."""
    asked = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0"]
    return int(subprocess.run(asked, capture_output=True, text=True, check=True, timeout=60).stdout)


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    with own_connection(qwf_dsn) as conn:
        conn.execute("TRUNCATE worker_heartbeats, audit_log")
        yield conn


@pytest.fixture
def card(qwf_dsn: str, tmp_path: Path, conn: psycopg.Connection, request: Any) -> Iterator[Card]:
    it = Card(qwf_dsn, tmp_path, conn, getattr(request, "param", {}))
    with it.supervisor:
        yield it
        assert it.supervisor.stop() == 0
    # All that was loaded is off the card: nothing of ours is left on it.
    until(lambda: used_mb() < OVERHEAD_MB)


def test_models_take_turns_on_the_card(card: Card) -> None:
    """Each is loaded once while its jobs last; one that needs the room of two gets it, on the card too."""
    runs = {name: card.begin("use", elements=4, model=name) for name in ("first", "second")}
    both = [one["mb"] for name in runs for one in card.completed(runs[name])]
    assert max(both) == 11 * 1024
    (pid,) = {one["pid"] for name in runs for one in card.completed(runs[name])}
    assert {one["sees"] for one in card.completed(runs["first"])} == {1}
    large = card.completed(card.begin("use", elements=4, model="large"))
    assert [(one["mb"], one["sum"], one["pid"]) for one in large] == [(9 * 1024, 1000.0, pid)] * 4

    def told() -> Any:
        answer = json.loads(qwf_here("--db", card.dsn, "hw", "--json").stdout)
        return next(iter(answer["hosts"][0]["devices"]), {}).get("memory_used_mb") or 0

    until(lambda: 9 * 1024 <= told() < 9 * 1024 + OVERHEAD_MB)
    until(lambda: card.load()["model_hits"] == 9)
    assert card.load()["model_misses"] == 3


def test_a_killed_worker_leaves_the_card_free_for_the_next(card: Card) -> None:
    """What it had loaded is proved to be gone before the next begins; nothing is quarantined."""
    killed = card.worker()
    assert card.completed(card.begin("use", model="large"))["pid"] == killed
    assert used_mb() > 9 * 1024
    os.kill(killed, signal.SIGKILL)
    card.supervisor.until(r"device GPU-\S+: free after")
    following = card.worker()
    assert card.completed(card.begin("use", model="large"))["pid"] == following
    assert not any("quarantined" in line for line in card.supervisor.said)


@pytest.mark.parametrize("hides", [False, True], ids=["it fails", "it hides it"])
def test_a_job_that_spoils_its_process_for_the_card_harms_no_other(card: Card, *, hides: bool) -> None:
    """An assertion that fails on the card: the worker starts afresh, and the next jobs succeed at once."""
    status, _, error = card.outcome(card.begin("spoil", inputs={"hides": hides}))
    assert (status, "device-side assert" in error) == (("completed", False) if hides else ("failed", True))
    good = card.begin("use", elements=6)
    assert [one["sum"] for one in card.completed(good)] == [1000.0] * 6
    nodes = card.conn.execute(
        "SELECT attempt, failures FROM workflow_node_jobs WHERE run_id = %s", [good]
    ).fetchall()
    assert nodes == [(1, 0)] * 6
    card.supervisor.until(r"can use its GPU no more, after an assertion that failed on the card")


def test_a_kernel_that_never_ends_is_ended_with_its_job(card: Card) -> None:
    """After its time limit the worker ends, the card is free, and the next worker's jobs succeed."""
    killed = card.worker()
    status, _, error = card.outcome(card.begin("stick", timeout_s=3))
    assert (status, "wall_clock" in error) == ("failed", True)
    card.supervisor.until(r"device GPU-\S+: free after")
    assert card.completed(card.begin("use"))["pid"] != killed


def test_a_model_that_takes_more_than_it_said_fails_its_job_alone(card: Card) -> None:
    """The card's own refusal is the reason; the worker goes on, with the room that it had."""
    killed = card.worker()
    status, _, error = card.outcome(card.begin("use", model="liar"))
    assert (status, "ModelLoadFailed" in error, "out of memory" in error) == ("failed", True, True)
    assert card.completed(card.begin("use", model="large"))["pid"] == killed


@pytest.mark.parametrize("card", [{"QWF_GPU_RELEASE_S": "2"}], indirect=True)
def test_a_stranger_on_the_card_is_told_from_what_our_worker_left(card: Card) -> None:
    """What is in use after a worker and was not before keeps the card from the next until it is gone."""
    killed = card.worker()
    assert card.completed(card.begin("use"))["pid"] == killed
    stranger = subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert stranger.stdout is not None
        assert stranger.stdout.readline() == "holds\n"
        os.kill(killed, signal.SIGKILL)
        card.supervisor.until(r"is quarantined: [0-9,]+ MB of its memory are in use")
    finally:
        stranger.communicate("", timeout=120)
    waits = card.begin("use")
    # The supervisor says it before it has written it.
    until(lambda: "is tried again" in qwf_here("--db", card.dsn, "workers", "on", HOST, "gpu").stdout)
    following = card.worker()
    assert card.completed(waits)["pid"] == following
