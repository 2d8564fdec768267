"""Workers that share the agent of their host are woken as surely as by connections of their own.

The poll is so far away that a wake that got lost once could not be mistaken for anything else. The agent is
killed and stopped at any moment: its workers go on by themselves, until it is back.
"""

from __future__ import annotations

import os
import signal
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import psutil
import psycopg
import pytest
from support.processes.supervised import Supervised, idle, supervisor_of
from support.processes.workers import until
from support.stages.floor import Floor

from queue_workflows.repositories import WorkerControlRepository

FAR_AWAY = {"QWF_POLL_S": "600"}
AT_ONCE = {"QWF_REST_S": "0.2"}
INSERT = "INSERT INTO ingest_jobs (task_name, queue) VALUES ('note', 'fetch'), ('note', 'fetch') RETURNING id"
LEFT = "SELECT FROM ingest_jobs WHERE id = ANY (%s) AND status <> 'completed'"
OURS = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
SILENT = "SELECT count(*) FROM worker_heartbeats WHERE last_seen < now() - interval '12 seconds'"
BEATS = "SELECT array_agg(last_seen ORDER BY worker_id) FROM worker_heartbeats"


def agent_of(supervisor: Supervised) -> int | None:
    """The pid of its agent, if there is one at this moment."""
    for child in psutil.Process(supervisor.pid).children():
        try:
            if "agent" in child.cmdline() and child.status() != psutil.STATUS_ZOMBIE:
                return child.pid
        except psutil.Error:
            pass
    return None


def connections(floor: Floor) -> int:
    """How many there are but for the test's own."""
    (count,) = floor.connection.execute(OURS).fetchone() or (0,)
    return int(count)


def until_over(floor: Floor, pair: list[int]) -> None:
    """Wait for both jobs, and be there the moment that they are over."""
    deadline = time.monotonic() + 150
    while floor.connection.execute(LEFT, [pair]).fetchone() is not None:
        assert time.monotonic() < deadline, "a wake was lost"
        time.sleep(0.0005)


def with_agent(floor: Floor, workers: int, concurrency: int = 1, **settings: str) -> Supervised:
    """A supervisor of workers, with an agent."""
    worker = f"fetch:{workers} --concurrency {concurrency}"
    return supervisor_of(floor.dsn, "--agent", "--no-spare", "--worker", worker, env=settings)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_workers_that_rest_have_no_connection(floor: Floor, concurrency: int) -> None:
    """There are four: the supervisor's, the agent's, and two of the worker that is first in line."""
    with with_agent(floor, 5, concurrency, **AT_ONCE):
        idle(floor.connection, 5)
        until(lambda: connections(floor) == 4)
        (before,) = floor.connection.execute(BEATS).fetchone() or ([],)

        def all_beat() -> bool:
            (now,) = floor.connection.execute(BEATS).fetchone() or ([],)
            return len(now) == 5 and all(one > other for one, other in zip(now, before, strict=True))

        until(all_beat)
        assert connections(floor) == 4
        floor.until_completed(*[floor.enqueue() for _ in range(20)])


def test_an_operator_is_heard_by_all_that_rest(floor: Floor) -> None:
    """A pause is obeyed by workers without a connection, and the next word too."""
    control = WorkerControlRepository(floor.connection)
    with with_agent(floor, 3, **AT_ONCE):
        idle(floor.connection, 3)
        until(lambda: connections(floor) == 4)
        control.set("*", "fetch", "pause", actor="test")
        count = "SELECT count(*) FROM worker_heartbeats WHERE state = %s"
        until(lambda: floor.connection.execute(count, ["paused"]).fetchone() == (3,))
        control.clear("*", "fetch", actor="test")
        floor.until_completed(floor.enqueue())


def _sockets(pid: int) -> int:
    """How many a process has open: one with connections has the most."""
    there = [os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir() if each.is_symlink()]
    return sum(each.startswith("socket:") for each in there)


def test_what_is_due_runs_while_the_first_in_line_is_stopped(floor: Floor) -> None:
    """It sweeps for all that rest; where it does not, one of these is told to."""
    with with_agent(floor, 3, **AT_ONCE):
        idle(floor.connection, 3)
        until(lambda: connections(floor) == 4)
        pids = [pid for (pid,) in floor.connection.execute("SELECT pid FROM worker_heartbeats")]
        first = max(pids, key=_sockets)
        os.kill(first, signal.SIGSTOP)
        try:
            floor.until_completed(floor.enqueue(run_at=datetime.now(UTC) + timedelta(seconds=1)))
        finally:
            os.kill(first, signal.SIGCONT)


def test_an_agent_that_hangs_is_done_without(floor: Floor) -> None:
    """Its workers beat and poll by themselves, and rest again once it answers."""
    with with_agent(floor, 3, **AT_ONCE) as supervisor:
        idle(floor.connection, 3)
        until(lambda: connections(floor) == 4)
        agent = until(lambda: agent_of(supervisor))
        os.kill(agent, signal.SIGSTOP)
        try:
            floor.until_completed(floor.enqueue())
            until(lambda: connections(floor) > 4)
            assert floor.connection.execute(SILENT).fetchone() == (0,)
        finally:
            os.kill(agent, signal.SIGCONT)
        until(lambda: connections(floor) == 4)


@pytest.mark.parametrize(
    "rounds", [200, pytest.param(2_000, marks=[pytest.mark.slow, pytest.mark.timeout(1_800)])]
)
def test_killed_at_any_moment(floor: Floor, rounds: int) -> None:
    """Pairs of jobs are committed at the moment of going idle, while the agent comes and goes."""
    random = Random(rounds)
    settings = FAR_AWAY | AT_ONCE
    with with_agent(floor, 2, **settings) as supervisor, psycopg.connect(floor.dsn) as producer:
        idle(floor.connection, 2)
        pair: list[int] = []
        for _ in range(rounds):
            if random.random() < 0.05 and (agent := agent_of(supervisor)) is not None:
                os.kill(agent, signal.SIGKILL)
            following = [job for (job,) in producer.execute(INSERT)] if random.random() < 0.5 else []
            until_over(floor, pair)
            time.sleep(random.choice([0.0, random.uniform(0, 0.003), random.uniform(0, 0.5)]))
            pair = following or [job for (job,) in producer.execute(INSERT)]
            producer.commit()
        until_over(floor, pair)
