"""A session that is lost before the seal begins anew in that run, with all that works with it, in order."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.commands import qwf_here
from support.processes.workers import until
from support.rows.jobs import CLEAR_WITH_WORKERS
from support.stages.hook_stage import UNTIL, Stage

from queue_workflows.repositories.jobs.hooks import HookJobRepository
from queue_workflows.repositories.sql.claimed_job import Fence

OPEN, PLAIN, GO, SHOT, LATE, TIDY = (
    "on_Page__10_open.bg.sh",
    "on_Page__20_plain.sh",
    "on_Page__30_go.sh",
    "on_Page__40_shot.sh",
    "on_Page__60_late.sh",
    "on_PageEnd__10_tidy.sh",
)


@pytest.fixture
def stage(qwf_dsn: str, tmp_path: Path) -> Iterator[Stage]:
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR_WITH_WORKERS)
        yield Stage(qwf_dsn, connection, tmp_path)


def archive(stage: Stage) -> Any:
    """A browser, which is up as long as it runs; go and shot work with it, late too, plain does not.

    The shot is at work until there is a file `go`; a second browser is ready once there is a file `again`.
    """
    says = 'echo "$QWF_HOOK" >> ../ran'
    stage.put(
        f"browser/{OPEN}",
        says,
        "trap 'exit 0' TERM",
        '[ "$(grep -c open ../ran)" = 1 ] || ' + UNTIL.format("../again"),
        "echo $$ > pid.new; mv pid.new up",
        "while :; do sleep 0.1; done",
        **{"x-ready": {"file": "up"}, "x-retry-s": 0},
    )
    alive = "kill -0 $(cat ../browser/up)"
    stage.put(f"plain/{PLAIN}", says)
    stage.put(f"browser/{GO}", says, alive)
    stage.put(f"shot/{SHOT}", says, UNTIL.format("../go"), alive, required_plugins=["browser"])
    stage.put(f"late/{LATE}", says, alive, required_plugins=["shot"])
    stage.put(f"tidy/{TIDY}", says)
    return stage.start()


def at_work(stage: Stage, run_id: Any) -> bool:
    """Whether the shot is being made."""
    ran = stage.file(run_id, "ran")
    return ran.exists() and SHOT in ran.read_text()


def of_the_nodes(stage: Stage) -> dict[str, tuple[str, str | None]]:
    """State and kind of error of each node that was touched, but for the seal."""
    rows = stage.connection.execute(
        "SELECT node_id, state, error ->> 'kind' FROM workflow_nodes WHERE node_id <> 'seal'"
    )
    return {node: (state, why) for node, state, why in rows}


def ended_anew(stage: Stage, run_id: Any, *, in_vain: bool = False) -> None:
    """Let the session begin again, and see the run to its end.

    The shot may have run once more `in_vain`: a worker can have it before anybody has heard of the loss.
    """
    stage.file(run_id, "go").touch()
    stage.file(run_id, "again").touch()
    stage.until(lambda: stage.status(run_id) == "completed")
    ran = stage.file(run_id, "ran").read_text().split()
    before, after = ran[: ran.index(SHOT) + 1], ran[ran.index(SHOT) + 1 :]
    assert before == [OPEN, PLAIN, GO, SHOT]
    if in_vain and SHOT in after[: after.index(GO)]:
        after.remove(SHOT)
    assert [hook for hook in after if hook != OPEN] == [GO, SHOT, LATE, TIDY]
    assert after[0] == OPEN
    rows = stage.connection.execute(
        "SELECT node_module, failures, generation FROM workflow_node_jobs WHERE node_module <> %s", [OPEN]
    )
    assert {name: tuple(rest) for name, *rest in rows} == {
        PLAIN: (0, 1),
        GO: (0, 2),
        SHOT: (0, 2),
        LATE: (0, 1),
        TIDY: (0, 1),
    }


def test_a_session_that_crashes_begins_anew_with_what_works_with_it(stage: Stage) -> None:
    """What is at work is ended without counting a failure; what has not begun waits until it is ready."""
    run_id = archive(stage)
    waiting = {
        "browser__10_open_bg_sh": ("active", "session_lost"),
        "plain__20_plain_sh": ("completed", None),
        "browser__30_go_sh": ("waiting", "session_lost"),
        "shot__40_shot_sh": ("waiting", "session_lost"),
        "late__60_late_sh": ("waiting", None),
    }
    with stage.worker("--concurrency", "2", QWF_BACKOFF_JITTER="0"):
        stage.until(lambda: at_work(stage, run_id))
        os.kill(int(stage.file(run_id, "browser/up").read_text()), signal.SIGKILL)
        stage.until(lambda: stage.jobs()[OPEN] == ("running", 2) and of_the_nodes(stage) == waiting)
        said = qwf_here("--db", stage.dsn, "explain", str(run_id), "shot__40_shot_sh", "--json").stdout
        (why,) = [one for one in json.loads(said)["reasons"] if one["code"] == "session_lost"]
        assert "browser__10_open_bg_sh was lost" in why["text"]
        ended_anew(stage, run_id)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_session_that_ends_with_its_worker_begins_anew_on_the_next(
    stage: Stage, how: signal.Signals
) -> None:
    """Killed, when its lease has lapsed; stopped, at once, as it is given back."""
    run_id = archive(stage)
    with stage.worker("--concurrency", "2", QWF_GRACE_S="0.5") as first:
        stage.until(lambda: at_work(stage, run_id))
        first.send_signal(how)
        first.wait(150)
    stage.connection.execute(
        "UPDATE workflow_node_jobs SET lease_expires_at = statement_timestamp() - interval '1 second'"
        " WHERE status = 'running'"
    )
    with stage.worker("--concurrency", "2"):
        ended_anew(stage, run_id, in_vain=True)


def test_a_loss_that_no_orchestrator_has_seen_is_acted_upon_by_the_next(stage: Stage) -> None:
    """It is in the outbox from the statement on that takes the session back."""
    run_id = archive(stage)
    with stage.worker("--concurrency", "2", QWF_BACKOFF_JITTER="0"):
        stage.until(lambda: at_work(stage, run_id))
        os.kill(int(stage.file(run_id, "browser/up").read_text()), signal.SIGKILL)
        # Nobody dispatches here, so all of this happens before anybody hears of the loss.
        stage.file(run_id, "go").touch()
        stage.file(run_id, "again").touch()
        until(lambda: stage.jobs()[OPEN] == ("running", 2))
        until(lambda: stage.jobs()[SHOT][0] != "running")
        stage.until(lambda: stage.status(run_id) == "completed")
    ran = stage.file(run_id, "ran").read_text().split()
    assert [hook for hook in ran if hook != OPEN][-4:] == [GO, SHOT, LATE, TIDY]


def test_a_beginning_is_not_told_of_an_attempt_that_is_being_taken_back(stage: Stage) -> None:
    """It waits for the row, and then there is nothing to tell, as the end is told already."""
    archive(stage)
    (job,) = HookJobRepository.at("one")(stage.connection).claim_background(
        worker_id="one:hooks:1", lease_s=30, limit=1
    )
    with psycopg.connect(stage.dsn) as sweeper, psycopg.connect(stage.dsn, autocommit=True) as worker:
        HookJobRepository(sweeper).reclaim_worker("one:hooks:1", crashed=True, max_crashes=3)
        fence = Fence(job.id, job.attempt, "one:hooks:1")
        tells = threading.Thread(target=HookJobRepository(worker).tell_ready, args=[fence])
        tells.start()
        until(lambda: _waits_for_a_lock(stage, worker.info.backend_pid))
        sweeper.commit()
        tells.join(150)
    kinds = stage.connection.execute(
        "SELECT kind FROM workflow_dispatch_events WHERE node_job_id = %s", [job.id]
    )
    assert kinds.fetchall() == [("lost",)]


def _waits_for_a_lock(stage: Stage, pid: int) -> bool:
    row = stage.connection.execute(
        "SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s", [pid]
    ).fetchone()
    return row == ("Lock",)
