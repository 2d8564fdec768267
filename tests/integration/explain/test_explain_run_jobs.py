"""The jobs that a run waits for are explained together as each is by itself, in a few statements."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from support.rows.every_state import put_every_state
from support.rows.jobs import CLEAR_WITH_WORKERS
from support.rows.plans import explain as plan_of
from support.rows.runs import dispatcher, settle, start

from queue_workflows.engine.explain.history import Reason
from queue_workflows.engine.explain.job import Knowledge, explain
from queue_workflows.repositories import (
    BinaryRepository,
    HeartbeatRepository,
    LimitRepository,
    MachineRepository,
    WorkerControlRepository,
)
from queue_workflows.repositories.explain import explain_run_jobs
from queue_workflows.repositories.explain.explain_job import Circumstances, ExplainingRepository
from queue_workflows.repositories.explain.explain_run import RunCircumstances, RunExplainingRepository
from queue_workflows.repositories.sql.families import NODE

KNOWN = Knowledge(stale_s=30.0, poll_s=1.0, schema=None, yield_s=60.0)
# What of a job is told of it alone, and not of the others of its group.
ITS_OWN = {"behind", "next", "suspect", "waited", "was_held", "progress"}
# By node, what its job is in.
LANED = "status = 'scheduled', hold_reason = 'limit_full', hold_key = 'host:a', limit_key = 'host:a'"
STATES = {
    "next": "priority = 9",
    "behind": "priority = 1",
    "suspect": "suspect = true, crash_count = 1",
    "later": "status = 'scheduled', run_at = now() + interval '1 h'",
    "due": "status = 'scheduled', run_at = now() - interval '1 h'",
    "retried": "status = 'scheduled', attempt = 1, failures = 1, run_at = now() + interval '1 h',"
    ' errors = \'[{"at": "2026-01-01T00:00:00+00:00", "attempt": 1, "kind": "exception"}]\'',
    "laned": LANED,
    "laned_too": LANED,
    "limited": "limit_key = 'host:b'",
    "exclusive": "limit_key = 'exclusive:c'",
    "locked": "status = 'scheduled', hold_reason = 'host_lock', hold_key = 'dev', host_lock = 'dev'",
    "will_lock": "host_lock = 'dev'",
    "unknown": "status = 'scheduled', hold_reason = 'unknown_module', hold_key = 'm'",
    "hook": "queue = 'hooks', pinned_host = 'h1'",
    "hook_too": "queue = 'hooks', background = true, priority = 3",
    "program": "queue = 'hooks', status = 'scheduled', hold_reason = 'binary_missing', hold_key = 'h1/wget'",
    "model": "queue = 'gpu', required_model = 'llama-7b'",
    "cold": "queue = 'gpu', required_model = 'other'",
    "runs": "status = 'running', attempt = 1, claimed_by = 'h1:cpu:1', started_at = now(), host_lock = 'dev',"
    " lease_expires_at = now() + interval '1 h', created_at = now() - interval '2 days'",
    "lapsed": "status = 'running', attempt = 2, claimed_by = 'gone', started_at = now(),"
    " lease_expires_at = now() - interval '1 h', progress = '{\"message\": \"half\"}'",
}


@pytest.fixture(scope="module")
def full(qwf_dsn: str) -> Iterator[tuple[psycopg.Connection, list[uuid.UUID]]]:
    """Runs in every state, and one whose jobs wait for everything there is to wait for."""
    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        connection.execute(CLEAR_WITH_WORKERS)
        runs = [*put_every_state(connection).runs.values()]
        many = start(connection, {"nodes": [{"id": name, "module": "m"} for name in STATES]})
        settle(dispatcher(connection))
        for name, values in STATES.items():
            connection.execute(
                f"UPDATE workflow_node_jobs SET {values} WHERE run_id = %s AND node_id = %s", [many, name]
            )
        _around(connection)
        yield connection, [*runs, many]
        connection.execute(CLEAR_WITH_WORKERS)


def _around(connection: psycopg.Connection) -> None:
    beats, wishes = HeartbeatRepository(connection), WorkerControlRepository(connection)
    for worker in ("h1:cpu:1", "h2:cpu:2"):
        beats.beat(worker, host_label=worker[:2], queue="cpu", pid=7, state="idle")
    beats.beat("h1:hooks:1", host_label="h1", queue="hooks", pid=7, state="idle")
    LimitRepository(connection).set("host:b", 0, actor="ann")
    wishes.set("*", "cpu", "pause", actor="ada", reason="a deploy")
    wishes.clear("*", "cpu", actor="ada")
    wishes.set("*", "cpu", "off", actor="ada", reason="an audit")
    connection.execute("UPDATE audit_log SET at = at - interval '1 day' WHERE reason = 'a deploy'")
    BinaryRepository(connection).want(
        MachineRepository(connection).seen("h1"), "wget", bin_providers="env", overrides={}
    )
    # Of other runs and the other family, which hold what these wait for.
    connection.execute(
        "INSERT INTO limit_slots (limit_key, slot, job_family, job_id, attempt, claimed_by, lease_expires_at)"
        " VALUES ('host:a', 0, 'ingest', 1, 1, 'w', now() + interval '1 h')"
    )
    connection.execute(
        "INSERT INTO ingest_jobs (task_name, queue, status, host_lock, claimed_by, started_at,"
        " lease_expires_at, attempt)"
        " VALUES ('t', 'load', 'running', 'elsewhere:dev', 'w', now(), now() + interval '1 h', 1)"
    )


def still(there: Circumstances, like: Circumstances) -> Circumstances:
    """By one clock, as each statement has its own."""
    workers = [replace(one, age_s=(like.now - one.last_seen).total_seconds()) for one in there.workers]
    return replace(there, now=like.now, workers=workers)


def told(there: Circumstances, *, is_alone: bool) -> list[Reason]:
    return [one for one in explain(there, KNOWN).reasons if is_alone or one.code not in ITS_OWN]


def seen(connection: psycopg.Connection, run: uuid.UUID) -> RunCircumstances:
    there = RunExplainingRepository(connection).circumstances(run)
    assert there is not None
    return there


def test_jobs_are_explained_together_as_each_is_by_itself(
    full: tuple[psycopg.Connection, list[uuid.UUID]],
) -> None:
    """For each of the first jobs of all groups of all runs, every reason with its data."""
    connection, runs = full
    compared = set()
    for run in runs:
        there = seen(connection, run)
        for group in there.groups:
            together = there.jobs.get(group.first)
            if together is None:
                assert group.status == "awaiting_input"
                continue
            alone = ExplainingRepository(connection).circumstances(NODE, group.first)
            assert alone is not None
            # What its model took is told of a job by itself, where the evidence fits.
            alone = replace(alone, model_memory=())
            is_alone = group.count == 1
            reasons = told(still(together, alone), is_alone=is_alone)
            assert reasons == told(still(alone, alone), is_alone=is_alone), group
            compared |= {one.code for one in reasons}
    assert compared >= {
        *("behind", "suspect", "scheduled", "due", "retry", "limit_full", "host_lock", "running"),
        *("unknown_module", "binary_missing", "model_warm", "model_cold", "lease_lapsed", "was_paused"),
        *("queue_off", "progress"),
    }


def test_their_number_costs_no_statement(
    full: tuple[psycopg.Connection, list[uuid.UUID]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for the run, one for its jobs, and one for limits, locks and programs where a job has any."""
    connection, runs = full
    asked: list[Any] = []
    before = psycopg.Cursor.execute

    def noted(cursor: Any, query: Any, *more: Any, **named: Any) -> Any:
        asked.append(query)
        return before(cursor, query, *more, **named)

    monkeypatch.setattr(psycopg.Cursor, "execute", noted)
    assert len(seen(connection, runs[-1]).jobs) == len(STATES)
    assert len(asked) == 3


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("name", ["JOBS", "AHEAD_OF_EACH", "BEFORE_EACH_IN_LANE"])
def test_they_are_read_by_index(
    full: tuple[psycopg.Connection, list[uuid.UUID]], mode: str, name: str
) -> None:
    """However many other jobs there are."""
    connection, _ = full
    connection.execute("SET enable_seqscan = off")
    params = {"ids": [1, 2], "counted": [1, 2], "limit": 10_001}
    plan = plan_of(connection, mode, getattr(explain_run_jobs, name), params)
    connection.execute("RESET enable_seqscan")
    assert not [node for node in plan if node["Node Type"] == "Seq Scan" and "_jobs" in node["Relation Name"]]
