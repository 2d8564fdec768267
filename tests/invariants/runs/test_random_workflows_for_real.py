"""Random workflows, real workers and orchestrators killed at random: every row can be explained."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from random import Random
from typing import Any

import psycopg
import pytest
from support.processes.workers import SHORT_LEASE, until, worker_environment
from support.reference.random_workflows import random_workflow
from support.reference.replay import Replay, recorded
from support.rows.jobs import CLEAR_WITH_WORKERS
from support.suite import warm_starts

from queue_workflows import cancel_run, start_run, submit_input
from queue_workflows.errors import RunRefused

WORKER = ("worker", "--queue", "cpu")
ORCHESTRATOR = ("orchestrator",)
# A kill is no fault of the job; short leases let the next worker have it soon.
SETTINGS = {**SHORT_LEASE, "QWF_MAX_CRASHES": "1000", "QWF_APP": "support.apps.random_app"}
OPEN = "SELECT count(*) FROM workflow_runs WHERE finished_at IS NULL"
ENDED = "SELECT count(*) FROM workflow_node_jobs WHERE finished_at IS NOT NULL"
EVENTS = "SELECT count(*) FROM workflow_dispatch_events"
ASKED = """
SELECT run_id, node_id FROM workflow_node_jobs WHERE kind = 'input' AND status = 'awaiting_input'
"""
AT_WORK_S = 5.0


class Crew:
    """Two workers and two orchestrators, each replaced as soon as it is gone."""

    def __init__(self, dsn: str) -> None:
        self.environment = worker_environment(dsn, SETTINGS)
        self.processes: dict[int, tuple[tuple[str, ...], subprocess.Popen[str]]] = {}
        self.killed = 0
        for slot, command in enumerate((WORKER, WORKER, ORCHESTRATOR, ORCHESTRATOR)):
            self.start(slot, command)

    def start(self, slot: int, command: tuple[str, ...]) -> None:
        process = warm_starts.start(
            [*warm_starts.MODULE, *command], self.environment, stderr=subprocess.DEVNULL
        )
        self.processes[slot] = command, process

    def kill(self, slot: int) -> None:
        self.end(slot)
        self.killed += 1
        self.start(slot, self.processes[slot][0])

    def revive(self) -> None:
        """Guards end a worker that a busy machine kept from renewing its lease."""
        for slot, (command, process) in list(self.processes.items()):
            if process.poll() is not None:
                self.start(slot, command)

    def end(self, slot: int) -> None:
        process = self.processes[slot][1]
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def crew(dsn: str) -> Iterator[Crew]:
    them = Crew(dsn)
    try:
        yield them
    finally:
        for slot in them.processes:
            them.end(slot)


def value(connection: psycopg.Connection, query: str) -> Any:
    row = connection.execute(query).fetchone()
    return row[0] if row else None


@pytest.mark.parametrize(
    ("count", "within_s"),
    [
        pytest.param(3, 300, marks=pytest.mark.timeout(360)),
        pytest.param(50, 600, marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
        pytest.param(200, 1500, marks=[pytest.mark.nightly, pytest.mark.timeout(1800)]),
    ],
)
def test_every_row_can_be_explained(qwf_dsn: str, count: int, within_s: float) -> None:
    """Whoever died when: runs end as the semantics want, each job's result is that of its inputs."""
    chance = Random(count)
    specs = [random_workflow(chance, f"w{number}") for number in range(count)]
    with psycopg.connect(qwf_dsn, autocommit=True) as connection, crew(qwf_dsn) as them:
        connection.execute(CLEAR_WITH_WORKERS)
        runs = [start_run(spec, conn=connection).id for spec in specs]
        for run_id, spec in zip(runs, specs, strict=True):
            for node in spec["nodes"]:
                if node.get("type") == "input" and chance.random() < 0.5:
                    answer(connection, run_id, node["id"])
        cancelled = chance.sample(runs, count // 8)
        deadline = time.monotonic() + within_s
        seen = 0
        while value(connection, OPEN):
            assert time.monotonic() < deadline, "the runs do not end"
            # A little is done before each misfortune, or nothing would ever be.
            seen = until_more_ended(connection, them, seen)
            for run_id, node_id in connection.execute(ASKED).fetchall():
                answer(connection, run_id, node_id)
            if cancelled and chance.random() < 0.3:
                with suppress(RunRefused):
                    cancel_run(cancelled.pop(), conn=connection)
            if them.killed < count:
                them.kill(chance.randrange(len(them.processes)))
        assert them.killed
        # What came for a run that was over by then is taken up too.
        until(lambda: value(connection, EVENTS) == 0, within_s=120)
        for run_id, spec in zip(runs, specs, strict=True):
            Replay(spec, recorded(connection, run_id)).check()


def answer(connection: psycopg.Connection, run_id: uuid.UUID, node_id: str) -> None:
    """Some answers come before they are asked for, some twice, and some too late."""
    with suppress(RunRefused):
        submit_input(run_id, node_id, {"by": node_id}, conn=connection)


def until_more_ended(connection: psycopg.Connection, them: Crew, seen: int) -> int:
    """Wait for some jobs to end, or for a while; how many there are."""
    deadline = time.monotonic() + AT_WORK_S
    while time.monotonic() < deadline:
        ended = value(connection, ENDED)
        if ended >= seen + 3 or not value(connection, OPEN):
            return int(ended)
        them.revive()
        time.sleep(0.05)
    return int(value(connection, ENDED))
