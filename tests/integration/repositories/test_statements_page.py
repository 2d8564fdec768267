"""docs/reference/statements.md is what the server is asked: the very texts, and the plans that it makes."""

from __future__ import annotations

import re
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import psycopg
import pytest

from queue_workflows.repositories import (
    Ending,
    Fence,
    IngestJobRepository,
    NewIngestJob,
    NewNodeJob,
    NodeJobRepository,
)
from queue_workflows.repositories.claims import sweep_look
from queue_workflows.repositories.claims.by_host_lock import HostLockRepository
from queue_workflows.repositories.claims.claim_by_model import AffinityRepository, Preference
from queue_workflows.repositories.durable.steps import NewStep, StepRepository
from queue_workflows.repositories.durable.waits import NewsRepository, WaitRepository
from queue_workflows.repositories.jobs.hooks import HookJobRepository
from queue_workflows.repositories.limits.lanes import LaneRepository
from queue_workflows.repositories.runs.nodes import WorkflowNodeRepository
from queue_workflows.repositories.runs.outbox import DispatchRepository, LockedRun
from queue_workflows.repositories.sql.families import FAMILIES
from queue_workflows.states import JobStatus, NodeState, RunStatus, StepKind
from queue_workflows.workflow.planning.progress import Counters, RunCounters

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "scripts" / "docs.py"
VERSION = 18
RUN = uuid.UUID(int=1)
WORKER: Any = {"worker_id": "w", "lease_s": 30.0}
ALIKE = [Ending(Fence(number, 1, "w"), JobStatus.COMPLETED) for number in (1, 2)]
ANY = [ALIKE[0], Ending(Fence(2, 1, "w"), JobStatus.FAILED, error='{"kind": "failed"}')]


def the_same(sql: str) -> str:
    """A statement without its space, and its parameters without their names or numbers."""
    return "".join(re.sub(r"%\(\w+\)[sb]|\$\d+", "$", sql).replace("%%", "%").split())


def enqueued(connection: psycopg.Connection[Any]) -> None:
    jobs = IngestJobRepository(connection)
    for _ in range(2):
        # Twice, as what is asked again and again is sent otherwise.
        jobs.enqueue("task", queue="web")
    for more in ({"dedupe_key": "a"}, {"dedupe_key": "a"}, {"limit_key": "k"}):
        jobs.enqueue("task", queue="web", **more)
    for number in range(2):
        keys = [{}, {"dedupe_key": "a"}, {"limit_key": "a"}], [{}, {"dedupe_key": "b"}, {"limit_key": "b"}]
        for one, other in zip(*keys, strict=True):
            args = [{"n": number}, {"n": number + 1}]
            given = [
                NewIngestJob(task_name="task", queue="web", args=each, **more)
                for each, more in zip(args, (one, other), strict=True)
            ]
            jobs.enqueue_many(given)
    connection.execute("SET session_replication_role = replica")
    news = [NewNodeJob(run_id=RUN, node_id=name, queue="cpu", inputs={"n": name}) for name in "ab"]
    NodeJobRepository(connection).open_many(news)


def worked(connection: psycopg.Connection[Any]) -> None:
    hooks = HookJobRepository.at("h")(connection)
    for jobs, queue in (
        (NodeJobRepository(connection), "cpu"),
        (IngestJobRepository(connection), "web"),
        (hooks, "hooks"),
    ):
        jobs.claim(queue, **WORKER)
        jobs.claim(queue, **WORKER, alone=True)
        for endings in (ALIKE, ANY):
            jobs.end_many(endings)
            jobs.end_and_claim(endings, queue, **WORKER)
        jobs.renew([Fence(1, 1, "w")], lease_s=30)
        jobs.beat_many([(Fence(1, 1, "w"), "{}")])
    hooks.claim_background(**WORKER, limit=1)
    for first in ("high", "low"):
        AffinityRepository(connection).ask("gpu", Preference(first=first), **WORKER)()
    for family in FAMILIES:
        HostLockRepository(connection).take(family, ["lock"], queue="cpu", **WORKER, limit=1, alone=False)


def swept(connection: psycopg.Connection[Any]) -> None:
    sweep_look.look(connection)
    for family, repository in zip(FAMILIES, (NodeJobRepository, IngestJobRepository), strict=True):
        jobs = repository(connection)
        jobs.reclaim(max_crashes=3, lease_s=30)
        jobs.reclaim_worker("w", max_crashes=3)
        jobs.promote()
        jobs.promote_held("limit", ["k"], queue="web")
        LaneRepository(connection, family).admit(["k"])


def durable(connection: psycopg.Connection[Any]) -> None:
    step = NewStep(Fence(1, 1, "w"), "step", 1, 1, StepKind.STEP)
    for family in FAMILIES:
        steps = StepRepository(connection, family.name)
        steps.stored(1)
        steps.store([step])
        WaitRepository(connection, family.name).wait(
            step, delay_s=1.0, waits_for="event", look_s=1.0, parks=True, is_first=True
        )
    news = NewsRepository(connection)
    news.news()
    news.wake(["event"])


def dispatched(connection: psycopg.Connection[Any]) -> None:
    runs, nodes = DispatchRepository(connection), WorkflowNodeRepository(connection)
    runs.look(RUN)()
    runs.lock_and_take(RUN)()
    nodes.read(RUN, ["a"])
    nodes.write(RUN, [Counters("a", NodeState.ACTIVE)], [])
    below = (None, None, None, None, False, False, None, False)
    locked = LockedRun(RUN, RunStatus.RUNNING, RunCounters(), "w", "h", 5, 0, *below, "on", "1", "2")
    runs.save(locked, RunCounters())
    runs.add_event(RUN, "begin")


def test_each_statement_on_the_page_is_sent(
    qwf_conn: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the verbs of the repositories, as the server has it among its prepared statements."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    from statements import statements

    with psycopg.connect(qwf_conn.info.dsn, autocommit=True, prepare_threshold=0) as connection:
        for verbs in (enqueued, worked, swept, durable, dispatched):
            verbs(connection)
        found = {
            the_same(sql) for (sql,) in connection.execute("SELECT statement FROM pg_prepared_statements")
        }
    assert [one.title for one in statements() if the_same(one.sql) not in found] == []


def test_the_plans_on_the_page_are_those_of_a_server(qwf_dsn: str, qwf_new_database: Any) -> None:
    """Node types and indexes, on tables with much in them; of the version that is embedded."""
    with psycopg.connect(qwf_dsn) as connection:
        if (version := connection.info.server_version // 10_000) != VERSION:
            pytest.skip(f"the page has the plans of PostgreSQL {VERSION}, and this is {version}")
    command = [sys.executable, str(DOCS), "--check", "--plans", qwf_new_database(template=True)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=150)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
