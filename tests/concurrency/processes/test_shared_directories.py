"""A run with a shared directory runs on all hosts that see its directory, and on no other."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.commands import qwf_here
from support.processes.threads import together
from support.rows.jobs import CLEAR_WITH_WORKERS
from support.stages.hook_stage import UNTIL, Stage

from queue_workflows.engine.outcomes import PutAside
from queue_workflows.errors import ExitCode
from queue_workflows.hooks.attempt.directories import HookPlaces, places_of
from queue_workflows.hooks.attempt.shared_directory import find_shared_directory
from queue_workflows.hooks.plugins.discovery import Hook
from queue_workflows.repositories.jobs.hooks import HookJobRepository


@pytest.fixture
def stage(qwf_dsn: str, tmp_path: Path) -> Iterator[Stage]:
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR_WITH_WORKERS)
        made = Stage(qwf_dsn, connection, tmp_path)
        made.plugins.mkdir()
        (made.plugins / "hooks.toml").write_text("shared_directory = true\n")
        yield made


def hosts(stage: Stage) -> list[tuple[str, str]]:
    """On which host each hook has ended, and for which it is."""
    rows = stage.connection.execute(
        "SELECT split_part(claimed_by, ':', 1), pinned_host FROM workflow_node_jobs"
        " WHERE queue = 'hooks' ORDER BY node_module"
    )
    return [(host, pinned) for host, pinned in rows.fetchall()]


def test_hosts_that_see_one_directory_share_a_run(stage: Stage) -> None:
    """Each runs one of two hooks that need each other, and what comes after reads what both wrote."""
    stage.put("a/on_Page__10_a.sh", "echo a > said", UNTIL.format("../b/said"))
    stage.put("b/on_Page__11_b.sh", "echo b > said", UNTIL.format("../a/said"))
    stage.put("c/on_Page__20_c.sh", "cat ../a/said ../b/said > both")
    run_id = stage.start()
    alone = ("--concurrency", "1", "--host-label")
    with stage.worker(*alone, "one"), stage.worker(*alone, "two"):
        stage.until(lambda: stage.status(run_id) == "completed")
    assert stage.file(run_id, "c/both").read_text() == "a\nb\n"
    ran = hosts(stage)
    assert {host for host, _ in ran[:2]} == {"one", "two"}
    assert {pinned for _, pinned in ran} == {"*"}


def test_a_host_with_another_directory_puts_the_hook_on_hold(stage: Stage) -> None:
    """It makes none of its own, `explain` says what is wrong, and a host that sees it goes on."""
    stage.put("a/on_Page__10_a.sh", "echo a > said")
    stage.put("b/on_Page__20_b.sh", UNTIL.format("../gate"))
    stage.put("c/on_Page__30_c.sh", "cat ../a/said > said")
    run_id = stage.start()
    with stage.worker("--host-label", "one", QWF_GRACE_S="1") as first:
        stage.until(lambda: stage.jobs_of("completed") == 1)
        # What it was at, which may be b by now, is any host's: a stop counts nothing. A busy machine may not
        # end b within its grace; then the worker ends by the signal.
        first.terminate()
        assert first.wait(150) in {ExitCode.DONE, ExitCode.TERMINATED}
    away = stage.directory / "away"
    said = "the directory of its run is shared, and two does not see it: mount the directory `runs`"
    with stage.worker("--host-label", "two", QWF_DATA_DIR=str(away)):
        stage.until(lambda: said in qwf_here("--db", stage.dsn, "explain", str(run_id), "b__20_b_sh").stdout)
        assert not (away / "runs" / str(run_id)).exists()
        stage.file(run_id, "gate").touch()
        with stage.worker("--host-label", "one"):
            stage.until(lambda: stage.status(run_id) == "completed")
    assert stage.file(run_id, "c/said").read_text() == "a\n"
    assert not (away / "runs" / str(run_id)).exists()
    assert {host for host, _ in hosts(stage)} == {"one"}


HOOK = Hook("a", "Page", 1, 0, "on_Page__10_a.sh", Path("/a"), (), is_background=False)


@pytest.mark.parametrize("is_one", [True, False])
def test_of_hosts_that_begin_at_once_those_with_one_directory_go_on(
    stage: Stage, tmp_path: Path, is_one: bool
) -> None:
    """Two hosts begin the first hooks of a run: with a directory each, only one of them works."""
    for number in range(10):
        stage.put(f"{number}/on_Page__1{number}_a.sh", "true")
    begun: list[bool] = []
    for _ in range(10):
        run_id = stage.start()
        places = [
            places_of(tmp_path / ("data" if is_one else name), run_id, HOOK, 1) for name in ("one", "two")
        ]
        with psycopg.connect(stage.dsn, autocommit=True) as other:
            found = together(
                lambda: works(stage.connection, "one", places[0]),  # noqa: B023
                lambda: works(other, "two", places[1]),  # noqa: B023
            )
        begun += found
        assert sum(found) == (2 if is_one else 1)
    assert len(begun) == 20


def works(connection: psycopg.Connection[Any], host: str, places: HookPlaces) -> bool:
    """Whether a hook begins on this host."""
    hooks = HookJobRepository.at(host)(connection)
    (job,) = hooks.claim("hooks", worker_id=f"{host}:w", lease_s=600, limit=1)
    while str(job.run_id) != places.run.name:
        (job,) = hooks.claim("hooks", worker_id=f"{host}:w", lease_s=600, limit=1)
    assert isinstance(job.run_id, uuid.UUID)
    try:
        find_shared_directory(places, job=job, host_label=host, ask=lambda question: question(connection))
    except PutAside as aside:
        return (aside.reason, aside.key) != ("not_shared", host)
    return True
