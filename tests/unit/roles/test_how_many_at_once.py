"""What `--concurrency` may say, to a worker and to a supervisor that hands it on."""

from __future__ import annotations

from pathlib import Path

import pytest
from click import BadParameter

from queue_workflows.cli.roles.supervisor import parse_workers
from queue_workflows.cli.roles.worker import worker


def parsed(*arguments: str) -> int:
    return int(worker.make_context("qwf worker", list(arguments)).params["concurrency"])


def background(*arguments: str) -> tuple[int, int]:
    told = worker.make_context("qwf worker", list(arguments)).params
    return told["concurrency"], told["max_background"]


def test_an_ingest_worker_runs_eight_unless_told_otherwise() -> None:
    """Wherever the queue stands on the command line."""
    assert parsed("--queue", "fetch") == 8
    assert parsed("--concurrency", "3", "--queue", "fetch") == 3


def test_a_worker_of_hooks_runs_eight_and_those_in_the_background() -> None:
    """Both can be said, also to a supervisor; no other queue has background jobs."""
    assert background("--queue", "hooks") == (8, 64)
    assert background("--queue", "hooks", "--concurrency", "2", "--max-background", "0") == (2, 0)
    (spec,) = parse_workers("hooks --concurrency 4 --max-background 60")
    assert spec.options == ("--concurrency", "4", "--max-background", "60")
    for queue in ("fetch", "cpu"):
        assert background("--queue", queue)[1] == 0
        with pytest.raises(BadParameter, match="only the queue hooks"):
            background("--queue", queue, "--max-background", "3")


def test_only_a_worker_of_hooks_is_told_where_plugins_are(tmp_path: Path) -> None:
    """By absolute paths, to a supervisor's worker as well; a directory that is not there is refused."""
    (tmp_path / "plugins").mkdir()
    told = worker.make_context("qwf worker", ["--queue", "hooks", "--dir", str(tmp_path / "plugins")]).params
    assert told["dirs"] == (tmp_path / "plugins",)
    (spec,) = parse_workers(f"hooks --dir {tmp_path}/plugins")
    assert spec.options == ("--dir", f"{tmp_path}/plugins")
    with pytest.raises(BadParameter, match="does not exist"):
        worker.make_context("qwf worker", ["--queue", "hooks", "--dir", str(tmp_path / "plugin")])
    with pytest.raises(BadParameter, match="only workers of the queue hooks run plugins"):
        worker.make_context("qwf worker", ["--dir", str(tmp_path), "--queue", "cpu"])


@pytest.mark.parametrize("queue", ["cpu", "gpu"])
def test_a_node_worker_runs_one(queue: str) -> None:
    """More are more workers, and the refusal says how to start them."""
    assert parsed("--queue", queue) == parsed("--queue", queue, "--concurrency", "1") == 1
    with pytest.raises(BadParameter, match=f"--worker {queue}:4"):
        parsed("--concurrency", "4", "--queue", queue)


def test_a_supervisor_hands_it_on_and_refuses_what_its_worker_would() -> None:
    """Before it starts one that could only end with a usage error again and again."""
    (spec,) = parse_workers("fetch --concurrency 4")
    assert (spec.queue, spec.options) == ("fetch", ("--concurrency", "4"))
    with pytest.raises(BadParameter):
        parse_workers("cpu --concurrency 4")
