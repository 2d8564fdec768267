"""A database with something of everything that the operator's page shows, in every state."""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import psycopg
from support.rows.jobs import Jobs, ending
from support.rows.runs import dispatcher, run_through, settle, start, work

from queue_workflows.engine.operate.many_jobs import Verb
from queue_workflows.repositories import (
    BinaryRepository,
    Ending,
    HeartbeatRepository,
    LimitRepository,
    MachineRepository,
    NodeJobRepository,
    RateRepository,
    ScheduleRepository,
    WorkerControlRepository,
)
from queue_workflows.repositories.claims.end import error_entry
from queue_workflows.repositories.durable.steps import NewStep, StepRepository
from queue_workflows.repositories.durable.waits import ASLEEP, CHILDREN, EVENT, WaitRepository
from queue_workflows.repositories.sql.claimed_job import ClaimedNodeJob
from queue_workflows.repositories.sql.families import named_job
from queue_workflows.repositories.workers.hardware import HardwareRepository
from queue_workflows.repositories.workers.model_memory import ModelMemoryRepository
from queue_workflows.states import JobStatus, StepKind, StepStatus
from queue_workflows.views.jobs.decisions import decide

WORKER: Final = "h1:fetch:1"
LIMIT: Final = "host:example.org"
SCHEDULE: Final = "nightly"
WORKFLOW: Final = "film"
_READING: Final[dict[str, Any]] = {
    "machine": {
        "cpu_percent": 25.0,
        "cores": 16,
        "load": [1.25, 0.5, 0.0],
        "memory_total_mb": 65536,
        "memory_used_mb": 16384,
    },
    "devices": [
        {
            "id": "nvidia:0",
            "vendor": "nvidia",
            "number": 0,
            "uuid": "GPU-00000000-0000-0000-0000-000000000000",
            "name": "NVIDIA H100 80GB HBM3",
            "utilisation_percent": 7.0,
            "memory_total_mb": 81920,
            "memory_used_mb": 40960,
            "temperature_c": 31.0,
            "power_w": 69.97,
            "power_limit_w": 700.0,
            "is_split": False,
            "worker": "h1:gpu:2",
        }
    ],
    "troubles": ["amd-smi gave no answer within 10 s"],
}
_FILM: Final[dict[str, Any]] = {
    "name": WORKFLOW,
    "on_failure": "continue",
    "nodes": [
        {"id": "write", "module": "write"},
        {"id": "draw", "module": "draw", "depends_on": ["write"], "for_each": {"$from": "write.scenes"}},
        {"id": "cut", "module": "cut", "depends_on": ["draw"]},
        {
            "id": "approve",
            "type": "input",
            "prompt": "Publish it?",
            "schema": {"ok": {"type": "boolean"}},
            "depends_on": ["write"],
            "expires_s": 86_400,
        },
        {"id": "publish", "module": "publish", "depends_on": ["cut", "approve"]},
    ],
}
_SCENES: Final = 6
_TIMED_OUT: Final = error_entry(
    "exception",
    "timed out after 30 s",
    error_type="TimeoutError",
    traceback='Traceback (most recent call last):\n  File "fetch.py", line 3\nTimeoutError',
)
# A machine that has been looked at for half an hour, with a wave of work.
HALF_AN_HOUR: Final = """
INSERT INTO host_hardware_history
    (host_label, slot, sampled_at, cpu_percent, memory_used_mb, memory_total_mb, devices)
SELECT %(host)s, n, now() - make_interval(secs => 30 * n), 50 + 40 * sin(n / 8.0), 16384 + 100 * n, 65536,
    jsonb_build_array(
        %(device)s::jsonb || jsonb_build_object('utilisation_percent', round(50 + 45 * cos(n / 5.0)))
    )
FROM generate_series(0, 60) AS n
"""


@dataclass(frozen=True)
class EveryState:
    """Names of what is there, by the statuses of jobs and of runs."""

    jobs: dict[str, str]
    runs: dict[str, uuid.UUID]

    def place(self, address: str, *, job: str = "failed", run: str = "running") -> str:
        """A page's address with the names of things that are there."""
        named = {
            "job": self.jobs[job],
            "run": str(self.runs[run]),
            "node": "approve" if "/answer/" in address else "draw",
            "worker": WORKER,
            "host": "h1",
            "key": LIMIT,
            "queue": "fetch",
            "name": SCHEDULE if address.startswith("/schedules") else WORKFLOW,
            "workflow": WORKFLOW,
            "schedule": SCHEDULE,
        }
        return re.sub(r"\{(\w+)(?::\w+)?\}", lambda part: quote(named[part[1]], safe=":@"), address)


def put_every_state(connection: psycopg.Connection[Any]) -> EveryState:
    """Fill empty tables."""
    jobs = _ingest_jobs(connection)
    jobs |= _durable_jobs(connection, jobs["queued"])
    runs = _runs(connection)
    _workers(connection, jobs["running"])
    _rules(connection)
    _hooks(connection, runs["running"])
    return EveryState(jobs, runs)


def _ingest_jobs(connection: psycopg.Connection[Any]) -> dict[str, str]:
    jobs = Jobs("ingest", connection)
    LimitRepository(connection).set("host:*", 1, actor="ann", reason="be kind to small sites")
    completed, failed, again, running, held, cancelled, queued = jobs.enqueue(7, max_attempts=1)
    (later,) = jobs.enqueue(delay=3600)
    connection.execute('UPDATE ingest_jobs SET args = args || \'{"password": "hunter2"}\'')
    timed_out = json.loads(_TIMED_OUT)
    jobs.repository.end(ending(jobs.one(WORKER), result={"bytes": 120}))
    jobs.repository.end(ending(jobs.one(WORKER), "failed", error=timed_out, counts=True))
    jobs.repository.end(ending(jobs.one(WORKER), "failed", error=timed_out, counts=True))
    jobs.one(WORKER, lease_s=3600)
    jobs.repository.hold(jobs.one(WORKER), "limit_full", LIMIT, delay_s=600)
    connection.execute(
        "INSERT INTO limit_slots (limit_key, slot, job_family, job_id, attempt, claimed_by, lease_expires_at)"
        " VALUES (%s, 0, 'ingest', %s, 1, %s, now() + interval '1 h')",
        [LIMIT, running, WORKER],
    )
    found = named_job(f"ingest:{cancelled}")
    assert found is not None
    assert found[0] is not None
    decide(connection, Verb.CANCEL, [(found[0], cancelled)], actor="ada", reason="not wanted any more")
    of = {
        "completed": completed,
        "failed": failed,
        "failed_too": again,
        "running": running,
        "held": held,
        "cancelled": cancelled,
        "queued": queued,
        "scheduled": later,
    }
    return {status: f"ingest:{job}" for status, job in of.items()}


def _durable_jobs(connection: psycopg.Connection[Any], child: str) -> dict[str, str]:
    """Functions that wait for a time, for an event and for a child, with what each has done before."""
    jobs, waits = Jobs("ingest", connection), WaitRepository(connection, "ingest")
    child_id = int(child.removeprefix("ingest:"))
    found = {}
    for reason, kind in ((ASLEEP, StepKind.SLEEP), (EVENT, StepKind.EVENT), (CHILDREN, StepKind.CHILDREN)):
        jobs.enqueue(priorities=(9,))
        job = jobs.one(WORKER)
        letter = json.dumps({"subject": "Welcome", "lines": ["a line of it"] * 40})
        steps = [
            NewStep(job.fence, "write the letter", 1, 1, StepKind.STEP, result=letter, took_s=75.5),
            NewStep(job.fence, "ask the bank", 1, 2, StepKind.STEP, StepStatus.FAILED, error=_TIMED_OUT),
            NewStep(job.fence, "ask the bank", 2, 3, StepKind.STEP, result="null"),
            NewStep(job.fence, "deliver", 1, 4, StepKind.CHILD, child_id=child_id),
        ]
        StepRepository(connection, "ingest").store(steps)
        name = "qwf:gather" if kind is StepKind.CHILDREN else kind.value
        awaited = json.dumps({"children": [child_id]}) if kind is StepKind.CHILDREN else None
        waits.wait(
            NewStep(job.fence, name, 1, 5, kind, result=awaited),
            delay_s=None if kind is StepKind.CHILDREN else 86_400,
            waits_for={EVENT: "paid:7", CHILDREN: f"qwf:children:ingest:{job.id}"}.get(reason),
            look_s=86_400, parks=True, is_first=True,
        )  # fmt: skip
        key = {EVENT: "paid:7", CHILDREN: "1"}.get(reason)
        jobs.repository.end(Ending(job.fence, JobStatus.SCHEDULED, hold_reason=reason, hold_key=key))
        found[reason] = f"ingest:{job.id}"
    return found


def _runs(connection: psycopg.Connection[Any]) -> dict[str, uuid.UUID]:
    desk = dispatcher(connection)

    def draws(job: ClaimedNodeJob) -> dict[str, Any] | None:
        if job.node_id == "draw" and job.map_index == 1:
            raise ValueError("the pen is dry")
        return {"scenes": [{"n": n} for n in range(_SCENES)]}

    # What is over first: whatever is queued is worked on.
    completed = start(connection, {"nodes": [{"id": "write", "module": "write"}]})
    failed = start(connection, {**_FILM, "nodes": _FILM["nodes"][:3]})
    running = start(connection, _FILM, labels={"customer": "acme"})
    run_through(connection, desk, draws)
    at_work = start(connection, {**_FILM, "nodes": _FILM["nodes"][:3]})
    settle(desk)
    work(connection, draws)
    settle(desk)
    assert len(NodeJobRepository(connection).claim("cpu", worker_id="h2:cpu:3", lease_s=3600, limit=2)) == 2
    return {"completed": completed, "failed": failed, "running": running, "at_work": at_work}


def _workers(connection: psycopg.Connection[Any], job: str) -> None:
    beats = HeartbeatRepository(connection)
    family, _, job_id = job.partition(":")
    now_at = (family, int(job_id))
    beats.beat(
        WORKER, host_label="h1", queue="fetch", pid=7, state="busy", current_job=now_at, jobs_held=1,
        versions={"queue_workflows": "1"},
    )  # fmt: skip
    beats.beat(
        "h1:gpu:2", host_label="h1", queue="gpu", pid=8, state="idle", current_model="llama-7b",
        cached_models=["llama-7b", "whisper"], load={"device": "nvidia:0"},
    )  # fmt: skip
    device = _READING["devices"][0]["name"]
    ModelMemoryRepository(connection).store(
        "llama-7b", device, load_mb=[14_336.0], peak_mb=[17_408.0], declared_mb=13_312.0
    )
    beats.beat("h2:cpu:3", host_label="h2", queue="cpu", pid=9, state="idle")
    connection.execute(
        "UPDATE worker_heartbeats SET last_seen = now() - interval '10 min' WHERE worker_id = 'h2:cpu:3'"
    )
    HardwareRepository(connection).report("h1", _READING, every_s=3600.0, parts=[])
    connection.execute(HALF_AN_HOUR, {"host": "h1", "device": json.dumps(_READING["devices"][0])})
    wishes = WorkerControlRepository(connection)
    wishes.set("h2", "*", "pause", actor="ada", reason="its disk is being replaced", expires_in=7200)


def _rules(connection: psycopg.Connection[Any]) -> None:
    rates = RateRepository(connection)
    rates.set("api:*", 2.0, 4.0, actor="ann", reason="as they ask for")
    rates.take("api:example.org", 1.0)
    ScheduleRepository(connection).upsert(SCHEDULE, cron="0 3 * * *", task_name="task", queue="fetch")
    ScheduleRepository(connection).upsert("off", cron="0 4 * * *", task_name="task", queue="fetch")
    ScheduleRepository(connection).set_enabled("off", False, actor="ada", reason="not before Monday")


def _hooks(connection: psycopg.Connection[Any], run: uuid.UUID) -> None:
    machine = MachineRepository(connection).seen("h1")
    BinaryRepository(connection).want(machine, "wget", bin_providers="env,apt", overrides={})
    connection.execute(
        "INSERT INTO hook_records (run_id, node_job_id, attempt, plugin, hook, line_no, type, payload)"
        " SELECT run_id, id, 1, 'title', 'on_page__title', 1, 'Result', '{\"title\": \"Example\"}'::jsonb"
        " FROM workflow_node_jobs WHERE run_id = %s AND node_id = 'write'",
        [run],
    )
