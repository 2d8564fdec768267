"""A listener holds its host lock for all of its run: what else of the run needs that lock runs beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.connections.kept import own_connection
from support.rows.jobs import CLEAR_WITH_WORKERS
from support.stages.hook_stage import UNTIL, Stage

from queue_workflows.host.locks.lock import Free, Held, lock_file_name, probe

LOCK = {"x-host-lock": "screen", "x-max-attempts": 1}
LISTEN = ("touch begun", "while :; do sleep 0.1; done")


@pytest.fixture
def stage(qwf_dsn: str, tmp_path: Path) -> Iterator[Stage]:
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR_WITH_WORKERS + "; TRUNCATE machines, binaries CASCADE")
        (tmp_path / "locks").mkdir()
        yield Stage(qwf_dsn, connection, tmp_path)


def is_held(stage: Stage) -> bool:
    """Whether somebody on this machine has the lock."""
    found = probe(stage.directory / "locks", lock_file_name("screen"))
    if isinstance(found, Free):
        found.release()
    return isinstance(found, Held)


def holds(stage: Stage) -> list[tuple[str, str]]:
    """What is on hold for a host lock, by run."""
    rows = stage.connection.execute(
        "SELECT run_id::text, hold_key FROM workflow_node_jobs WHERE hold_reason = 'host_lock' ORDER BY id"
    )
    return rows.fetchall()


@pytest.mark.parametrize("workers", [1, 2])
def test_what_a_listener_runs_beside_does_not_wait_for_its_lock(stage: Stage, workers: int) -> None:
    """In whichever of the host's workers; another run's waits until the listener has ended, at the seal."""
    stage.put("chrome/on_Page__10_open.bg.sh", *LISTEN, **LOCK)
    stage.put("chrome/on_Page__11_tab.bg.sh", *LISTEN, **LOCK)
    stage.put("shot/on_Page__30_shot.sh", "touch begun", UNTIL.format("../go"), **LOCK)
    first = stage.start()
    options = {"QWF_LOCK_DIR": str(stage.directory / "locks"), "QWF_HOST_LABEL": "here"}
    with stage.worker("--concurrency", "1", **options):
        stage.until(stage.file(first, "shot/begun").exists)
        assert is_held(stage)
        if workers == 1:
            check_the_end(stage, first)
            return
        # The second run's foreground is left to the second worker, as the first has no place.
        stage.put("quick/on_Other__20_quick.sh", "touch begun", **LOCK)
        stage.put("quick/on_Other__10_hear.bg.sh", *LISTEN, **LOCK)
        other = stage.start("Other")
        with stage.worker(**options):
            stage.until(lambda: holds(stage) == [(str(other), "screen")])
            assert not stage.file(other, "quick/begun").exists()
            check_the_end(stage, first)
            stage.until(lambda: stage.status(other) == "completed")


def check_the_end(stage: Stage, first: object) -> None:
    stage.file(first, "go").touch()
    stage.until(lambda: stage.status(first) == "completed")
    rows = stage.connection.execute(
        "SELECT status, count(*) FROM workflow_node_jobs WHERE run_id = %s GROUP BY status", [first]
    )
    assert rows.fetchall() == [("completed", 3)]


def test_beside_a_listener_hooks_of_one_lock_run_one_after_the_other(stage: Stage) -> None:
    """The listener shares its lock with one of them at a time."""
    stage.put("chrome/on_Page__10_open.bg.sh", *LISTEN, **LOCK)
    alone = ("mkdir ../taken || exit 1", "touch begun", UNTIL.format("../go"), "rmdir ../taken")
    for plugin in ("one", "two", "three"):
        stage.put(f"{plugin}/on_Page__30_{plugin}.sh", *alone, **LOCK)
    run_id = stage.start()
    with stage.worker(QWF_LOCK_DIR=str(stage.directory / "locks")):
        stage.until(lambda: len(holds(stage)) == 2)
        stage.file(run_id, "go").touch()
        stage.until(lambda: stage.status(run_id) == "completed")


def test_without_its_listener_a_hook_takes_the_lock_itself(stage: Stage) -> None:
    """As where that has failed; nobody else's hook runs beside it then, until it has ended."""
    stage.put("chrome/on_Page__10_open.bg.sh", "exit 1", **LOCK)
    stage.put("shot/on_Page__30_shot.sh", "touch begun", UNTIL.format("../go"), **LOCK)
    run_id = stage.start()
    with stage.worker(QWF_LOCK_DIR=str(stage.directory / "locks")):
        stage.until(stage.file(run_id, "shot/begun").exists)
        assert is_held(stage)
        stage.file(run_id, "go").touch()
        stage.until(lambda: stage.status(run_id) == "failed")
        assert not is_held(stage)


def test_a_lock_outlasts_the_listener_that_shares_it(stage: Stage) -> None:
    """One that ends early leaves the lock to what runs beside it, which has it until its own end."""
    stage.put("chrome/on_Page__10_open.bg.sh", "touch begun", UNTIL.format("../end"), **LOCK)
    stage.put("shot/on_Page__30_shot.sh", "touch begun", UNTIL.format("../go"), **LOCK)
    run_id = stage.start()
    with stage.worker(QWF_LOCK_DIR=str(stage.directory / "locks")):
        stage.until(stage.file(run_id, "shot/begun").exists)
        stage.file(run_id, "end").touch()
        stage.until(lambda: stage.jobs()["on_Page__10_open.bg.sh"] == ("completed", 1))
        assert is_held(stage)
        stage.file(run_id, "go").touch()
        stage.until(lambda: stage.status(run_id) == "completed")
        assert not is_held(stage)


def test_a_lock_outlasts_the_worker_whose_listener_shares_it(stage: Stage) -> None:
    """A hook in another worker keeps others out also when the listener's worker is killed."""
    stage.put("busy/on_Busy__10_busy.sh", "touch begun", UNTIL.format("../gate"))
    stage.put("chrome/on_Page__10_open.bg.sh", *LISTEN, **LOCK)
    stage.put("shot/on_Page__30_shot.sh", "touch begun", UNTIL.format("../go"), **LOCK)
    stage.put("quick/on_Other__20_quick.sh", "touch begun", **LOCK)
    options = {"QWF_LOCK_DIR": str(stage.directory / "locks"), "QWF_HOST_LABEL": "here"}
    busy = stage.start("Busy")
    with stage.worker("--concurrency", "1", **options) as first:
        # It has no place for another hook of the foreground.
        stage.until(stage.file(busy, "busy/begun").exists)
        run_id = stage.start()
        stage.until(stage.file(run_id, "chrome/begun").exists)
        with stage.worker("--concurrency", "2", "--max-background", "0", **options):
            stage.until(stage.file(run_id, "shot/begun").exists)
            first.kill()
            first.wait()
            other = stage.start("Other")
            stage.until(lambda: holds(stage) == [(str(other), "screen")])
            assert is_held(stage)
            stage.file(run_id, "go").touch()
            stage.until(stage.file(other, "quick/begun").exists)
            assert stage.jobs()["on_Page__30_shot.sh"][0] != "running"
