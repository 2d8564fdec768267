"""A hook that kills its worker each time ends as failed, whatever else its worker held; listeners go on."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.supervised import Supervised
from support.processes.workers import patiently
from support.rows.jobs import CLEAR
from support.rows.runs import dispatcher, settle, start
from support.stages.hook_stage import UNTIL, Stage

from queue_workflows.repositories.claims.end import Ending
from queue_workflows.repositories.jobs.hooks import HookJobRepository
from queue_workflows.repositories.sql.claimed_job import ClaimedNodeJob
from queue_workflows.states import JobStatus

MAX_CRASHES = 3
TRUSTED, MOST_SHARED, MOST_SHARED_BEHIND = 2, 5, 9
TRIAL_S = 5
# Of a hook: above it are its keeper, the spawner, the worker.
KILL = ("above() { ps -o ppid= -p $1 | tr -d ' '; }", "kill -9 $(above $(above $PPID))", "sleep 600")
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
        """As a worker does that has none yet: one that is on trial, and who may run beside it."""
        where = {"worker_id": f"w{self.number}", "lease_s": 60}
        tried = self.jobs.claim_background(**where, limit=1, suspect=True)
        return tried + self.jobs.claim_background(**where, limit=8, beside=bool(tried))

    def die(self) -> None:
        self.jobs.reclaim_worker(f"w{self.number}", max_crashes=MAX_CRASHES)
        self.number += 1

    def skip(self, *jobs: ClaimedNodeJob) -> None:
        self.connection.execute(
            "UPDATE workflow_node_jobs SET status = 'skipped', claimed_by = NULL, finished_at = now()"
            " WHERE id = ANY (%s)",
            [[job.id for job in jobs]],
        )

    def lives_for(self, seconds: float, job: ClaimedNodeJob) -> bool:
        """It has been running for so long; whether it is trusted again."""
        self.connection.execute(
            "UPDATE workflow_node_jobs SET started_at = now() - make_interval(secs => %s) WHERE id = %s",
            [seconds, job.id],
        )
        return self.jobs.trust(job.fence)

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
    with own_connection(qwf_dsn) as connection:
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
    workers.start(poison, "bg", *([] if mark else [f"step{number}" for number in range(2 * most)]))
    for _ in range(2):
        for death in range(1, most + 1):
            beside = [*workers.background(), *workers.claim(limit=1, alone=mark)]
            assert workers.seen(poison)[0] == "running"
            if mark:
                workers.connection.execute(MARK)
            workers.die()
            workers.skip(*(job for job in beside if job.node_id.startswith("step")))
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
        workers.skip(hook)
        assert workers.seen(listener.node_id)[:2] == ("queued", listener.attempt)


def test_of_several_in_the_background_only_the_killer_ends(workers: Workers) -> None:
    """They are on trial one after the other; who has lived through it is not doubted for the next one."""
    workers.start("bg1", "bg2_poison", "bg3")
    for _ in range(TRUSTED):
        assert len(workers.background()) == 3
        workers.die()
    (first,) = workers.background()
    assert workers.jobs.claim_background(worker_id="w", lease_s=60, limit=9, beside=True) == []
    assert not workers.lives_for(TRIAL_S - 1, first)
    assert workers.lives_for(TRIAL_S + 1, first)
    assert [job.node_id for job in workers.background()] == ["bg2_poison"]
    workers.die()
    assert workers.seen("bg1") == ("queued", TRUSTED + 1, 0, False)
    for death in range(MAX_CRASHES):
        assert workers.seen("bg2_poison")[::2] == ("queued", death)
        assert [job.node_id for job in workers.background()] == ["bg2_poison"]
        workers.die()
    assert (
        workers.last_word("bg2_poison")
        == f"it killed its worker {MAX_CRASHES} times, each time running alone"
    )
    (last,) = workers.background()
    assert (last.node_id, workers.lives_for(TRIAL_S + 1, last)) == ("bg3", True)
    assert [job.node_id for job in workers.background()] == ["bg1"]


def test_who_kills_late_is_found_by_a_longer_trial(workers: Workers) -> None:
    """Who lived through one too short for it is doubted again with all others, each for twice the time."""
    workers.start("bg1_poison", "bg2")
    for _ in range(TRUSTED):
        assert len(workers.background()) == 2
        workers.die()
    for _ in range(2):
        (job,) = workers.background()
        assert workers.lives_for(TRIAL_S + 1, job)
    assert workers.background() == []
    workers.die()
    assert workers.seen("bg1_poison") == workers.seen("bg2") == ("queued", TRUSTED + 1, 0, True)
    (poison,) = workers.background()
    assert not workers.lives_for(TRIAL_S + 1, poison)
    workers.die()
    assert (workers.seen("bg1_poison")[2], workers.seen("bg2")[2]) == (1, 0)


def supervised(stage: Stage, dsn: str) -> Supervised:
    """A supervisor with one worker of hooks."""
    command = [sys.executable, "-m", "queue_workflows", "supervisor", "--worker", "hooks:1"]
    env = {
        "QWF_HOOK_DIRS": str(stage.plugins),
        "QWF_DATA_DIR": str(stage.data),
        "QWF_MAX_CRASHES": str(MAX_CRASHES),
    }
    return Supervised(command, dsn, env=env)


@pytest.mark.slow
def test_beside_a_listener_for_real(qwf_dsn: str, tmp_path: Path) -> None:
    """A supervised worker: the hook costs it so many lives, its listener ends well with the run."""
    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        connection.execute(CLEAR)
        stage = Stage(qwf_dsn, connection, tmp_path)
        stage.put("page/on_Page__05_listen.bg.sh", "exec sleep 600")
        stage.put("page/on_Page__10_kill.sh", *KILL)
        stage.put("page/on_Page__20_good.sh", "true")
        run = stage.start()
        with supervised(stage, qwf_dsn) as supervisor:
            patiently(lambda: settle(stage.dispatcher) or stage.status(run) in ("failed", "completed"))
            assert supervisor.stop() == 0
        jobs = stage.jobs()
    assert jobs["on_Page__10_kill.sh"][0] == "failed"
    assert jobs["on_Page__05_listen.bg.sh"][0] == "completed"
    assert jobs["on_Page__20_good.sh"][0] == "completed"


@pytest.mark.slow
def test_in_the_background_for_real(qwf_dsn: str, tmp_path: Path) -> None:
    """Three of them, and workers that one kills: it alone fails, and the others end well."""
    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        connection.execute(CLEAR)
        stage = Stage(qwf_dsn, connection, tmp_path)
        gate = tmp_path / "gate"
        for name in ("05_first", "07_last"):
            stage.put(f"page/on_Page__{name}.bg.sh", UNTIL.format(gate))
        stage.put("page/on_Page__06_kill.bg.sh", *KILL, **{"x-bg-at-seal": "wait"})
        stage.put("page/on_Page__10_good.sh", "true")
        run = stage.start()
        while stage.jobs()["on_Page__06_kill.bg.sh"][0] != "failed":
            with stage.worker() as worker:
                patiently(lambda: worker.poll() is not None)
                assert worker.returncode == -signal.SIGKILL
            held = "SELECT DISTINCT claimed_by FROM workflow_node_jobs WHERE status = 'running'"
            for (worker_id,) in connection.execute(held).fetchall():
                HookJobRepository(connection).reclaim_worker(worker_id, max_crashes=MAX_CRASHES)
        gate.touch()
        with stage.worker():
            patiently(lambda: settle(stage.dispatcher) or stage.status(run) == "failed")
        jobs = {name: status for name, (status, _) in stage.jobs().items()}
    assert jobs == {
        "on_Page__05_first.bg.sh": "completed",
        "on_Page__06_kill.bg.sh": "failed",
        "on_Page__07_last.bg.sh": "completed",
        "on_Page__10_good.sh": "completed",
    }


@pytest.mark.slow
def test_in_the_background_of_a_worker_that_has_run_others(qwf_dsn: str, tmp_path: Path) -> None:
    """Its supervisor knows what each thread began last, those of the background too: each death counts."""
    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        connection.execute(CLEAR)
        stage = Stage(qwf_dsn, connection, tmp_path)
        gate = tmp_path / "gate"
        kill = (UNTIL.format(gate), *KILL)
        stage.put("page/on_Page__05_kill.bg.sh", *kill, **{"x-bg-at-seal": "wait"})
        stage.put("page/on_Page__10_good.sh", "true")
        stage.start()
        with supervised(stage, qwf_dsn) as supervisor:
            good = "on_Page__10_good.sh"
            patiently(lambda: settle(stage.dispatcher) or stage.jobs().get(good, ("",))[0] == "completed")
            gate.touch()
            patiently(lambda: stage.jobs()["on_Page__05_kill.bg.sh"][0] == "failed")
            assert supervisor.stop() == 0
        (counted,) = connection.execute(
            "SELECT jsonb_path_query_array(errors, '$[*].counted') FROM workflow_node_jobs WHERE background"
        ).fetchall()
    assert counted == ([True] * MAX_CRASHES,)
