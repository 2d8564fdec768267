"""A hook that kills its worker each time ends as failed, whatever else its worker held; listeners go on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.hook_stage import Stage
from support.jobs import CLEAR
from support.runs import dispatcher, settle, start
from support.supervised import Supervised
from support.workers import patiently

from queue_workflows.repositories.claimed import ClaimedNodeJob
from queue_workflows.repositories.ending import Ending
from queue_workflows.repositories.hook_jobs import HookJobRepository
from queue_workflows.states import JobStatus

MAX_CRASHES = 3
TRUSTED, MOST_SHARED, MOST_SHARED_BEHIND = 2, 5, 9
MARK = (
    "UPDATE workflow_node_jobs SET errors = errors || jsonb_build_array("
    "jsonb_build_object('kind', 'suspect', 'attempt', attempt)) WHERE status = 'running'"
)
NODE = {"module": "m", "plugin": "p", "queue": "hooks", "step": 0}


class Workers:
    """Workers of hooks on one host, one after the other; each claims what it may, and dies or works."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        self.jobs = HookJobRepository.at("here")(connection)
        self.number = 0

    def start(self, *nodes: str) -> None:
        """A run of such hooks; those whose name begins so are background hooks."""
        document = [{**NODE, "id": name, "background": name.startswith("bg")} for name in nodes]
        start(self.connection, {"on_failure": "continue", "nodes": document})
        settle(dispatcher(self.connection))

    def claim(self, *, alone: bool = False, limit: int = 9) -> list[ClaimedNodeJob]:
        return self.jobs.claim(
            "hooks", worker_id=f"w{self.number}", lease_s=60, limit=1 if alone else limit, alone=alone
        )

    def background(self) -> list[ClaimedNodeJob]:
        return self.jobs.claim_background(worker_id=f"w{self.number}", lease_s=60, limit=9)

    def die(self) -> None:
        self.jobs.reclaim_worker(f"w{self.number}", max_crashes=MAX_CRASHES)
        self.number += 1

    def seen(self, name: str) -> tuple[Any, ...]:
        row = self.connection.execute(
            "SELECT status, attempt, crash_count, suspect FROM workflow_node_jobs WHERE node_id = %s", [name]
        ).fetchone()
        assert row is not None
        return row

    def last_word(self, name: str) -> str:
        row = self.connection.execute(
            "SELECT errors -> -1 ->> 'message' FROM workflow_node_jobs WHERE node_id = %s", [name]
        ).fetchone()
        assert row is not None
        return str(row[0])


@pytest.fixture
def workers(qwf_dsn: str) -> Iterator[Workers]:
    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        connection.execute(CLEAR)
        yield Workers(connection)


def test_one_shared_death_makes_no_suspects(workers: Workers) -> None:
    """A worker that is killed once, with whatever it held, is no hook's fault: they go on together."""
    workers.start("a", "b", "bg")
    assert len(workers.claim() + workers.background()) == 3
    workers.die()
    assert [workers.seen(name) for name in ("a", "b", "bg")] == [("queued", 1, 0, False)] * 3
    assert len(workers.claim()) == 2


def test_who_was_there_again_runs_alone_and_is_found_out(workers: Workers) -> None:
    """Beside a suspect no listener is doubted, however often their worker dies."""
    workers.start("poison", "good", "bg")
    for _ in range(TRUSTED):
        assert len(workers.claim() + workers.background()) == 3
        workers.die()
    assert (workers.seen("poison"), workers.seen("good")) == (("queued", TRUSTED, 0, True),) * 2
    assert workers.claim() == []
    # A worker that held a listener when it claimed the suspect: another shared death, not the listener's.
    for _ in range(MOST_SHARED - TRUSTED - 1):
        assert [job.node_id for job in workers.background() + workers.claim(alone=True)] == ["bg", "poison"]
        workers.die()
    for _ in range(MAX_CRASHES):
        assert [job.node_id for job in workers.claim(alone=True)] == ["poison"]
        workers.die()
    assert workers.seen("poison")[0] == "failed"
    assert workers.last_word("poison") == f"it killed its worker {MAX_CRASHES} times, each time running alone"
    (good,) = workers.claim(alone=True)
    for each in (good, *workers.background()):
        workers.jobs.end(Ending(each.fence, JobStatus.COMPLETED))
    assert (workers.seen("good")[0], workers.seen("bg")[0]) == ("completed", "completed")


# A foreground hook is given up also where each of its deaths leaves the mark of another's.
@pytest.mark.parametrize(
    ("poison", "most", "mark"), [("poison", MOST_SHARED, True), ("bg_poison", MOST_SHARED_BEHIND, False)]
)
def test_who_is_never_alone_is_given_up(workers: Workers, poison: str, most: int, mark: bool) -> None:
    """After so many deaths that it shared, in one generation; a retry begins to count anew."""
    workers.start(poison, "bg")
    for _ in range(2):
        for death in range(1, most + 1):
            workers.background()
            workers.claim(alone=True)
            assert workers.seen(poison)[0] == "running"
            if mark:
                workers.connection.execute(MARK)
            workers.die()
            assert workers.seen(poison)[0] == ("failed" if death == most else "queued")
        assert workers.last_word(poison).startswith(f"{most} workers died while it ran beside")
        workers.connection.execute(
            "UPDATE workflow_node_jobs SET status = 'queued', generation = generation + 1, suspect = false,"
            " finished_at = NULL, claimed_by = NULL WHERE status = 'failed'"
        )


def test_a_listener_outlives_a_death_in_each_step(workers: Workers) -> None:
    """Who stands beside it is another one each time, so nobody is a suspect, and it is not given up."""
    steps = [f"step{number}" for number in range(MOST_SHARED_BEHIND - 1)]
    workers.start("bg", *steps)
    for _ in steps:
        (listener,), (hook,) = workers.background(), workers.claim(limit=1)
        workers.die()
        workers.connection.execute(
            "UPDATE workflow_node_jobs SET status = 'skipped', claimed_by = NULL, finished_at = now()"
            " WHERE id = %s",
            [hook.id],
        )
        assert workers.seen(listener.node_id)[:2] == ("queued", listener.attempt)


@pytest.mark.slow
def test_beside_a_listener_for_real(qwf_dsn: str, tmp_path: Path) -> None:
    """A supervised worker: the hook costs it so many lives, its listener ends well with the run."""
    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        connection.execute(CLEAR)
        stage = Stage(qwf_dsn, connection, tmp_path)
        stage.put("page/on_Page__05_listen.bg.sh", "exec sleep 600", **{"x-bg-at-seal": "kill"})
        # Its keeper, the spawner, the worker.
        stage.put(
            "page/on_Page__10_kill.sh",
            "above() { ps -o ppid= -p $1 | tr -d ' '; }",
            "kill -9 $(above $(above $PPID))",
            "sleep 600",
        )
        stage.put("page/on_Page__20_good.sh", "true")
        run = stage.start()
        command = [sys.executable, "-m", "queue_workflows", "supervisor", "--worker", "hooks:1"]
        env = {
            "QWF_HOOK_DIRS": str(stage.plugins),
            "QWF_DATA_DIR": str(stage.data),
            "QWF_MAX_CRASHES": str(MAX_CRASHES),
        }
        with Supervised(command, qwf_dsn, env=env) as supervisor:
            patiently(lambda: settle(stage.dispatcher) or stage.status(run) in ("failed", "completed"))
            assert supervisor.stop() == 0
        jobs = stage.jobs()
    assert jobs["on_Page__10_kill.sh"][0] == "failed"
    assert jobs["on_Page__05_listen.bg.sh"][0] == "completed"
    assert jobs["on_Page__20_good.sh"][0] == "completed"
