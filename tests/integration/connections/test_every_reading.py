"""Every reading verb of the repositories on every kind of connection: the same rows, whichever the driver."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from support.connections.kinds import KINDS, Brought

from queue_workflows import (
    BinaryRepository,
    DispatchEventRepository,
    HeartbeatRepository,
    HookRecordRepository,
    IngestJobRepository,
    InputSubmissionRepository,
    LimitRepository,
    MachineRepository,
    NodeJobRepository,
    RateRepository,
    RunRepository,
    ScheduleRepository,
    WorkerControlRepository,
    enqueue_ingest_job,
    start_run,
    submit_input,
)
from queue_workflows.models import Base

DOCUMENT = {"name": "film", "nodes": [{"id": "ask", "type": "input"}]}


@pytest.fixture(scope="module")
def run_id(qwf_dsn: str) -> uuid.UUID:
    """A run; beside it a row or two of all that is read."""
    with psycopg.connect(qwf_dsn) as conn:
        run = start_run(DOCUMENT, conn=conn, labels={"a": "é"}, parcel_id="p", dedupe_key="d")
        submit_input(run, "ask", {"ok": [1.5, None]}, conn=conn)
        enqueue_ingest_job("t", queue="fetch", args={"n": 1}, limit_key="host:a", dedupe_key="k", conn=conn)
        LimitRepository(conn).set("host:*", 2, actor="me", reason="why")
        RateRepository(conn).set("host:*", 1.5, actor="me")
        WorkerControlRepository(conn).set("*", "fetch", "pause", actor="me", expires_in=3600)
        ScheduleRepository(conn).upsert("hourly", cron="0 * * * *", task_name="t", queue="fetch")
        HeartbeatRepository(conn).beat("h:fetch:1", host_label="h", queue="fetch", pid=7, state="idle")
        machine = MachineRepository(conn).seen("h", {"os": "linux"})
        BinaryRepository(conn).want(machine, "ffmpeg", bin_providers="env", overrides={"a": 1})
    return run.id


def readings(run_id: uuid.UUID) -> list[tuple[type[Any], str, tuple[Any, ...], dict[str, Any]]]:
    """Each verb with all that it may be asked by."""
    page = {"created_before": datetime(2100, 1, 1, tzinfo=UTC), "limit": 7}
    return [
        (RunRepository, "fetch", (run_id,), {}),
        (RunRepository, "counts", (), {}),
        (RunRepository, "list", (), {"labels": {"a": "é"}, "status": ["queued"], "parcel_id": "p", **page}),
        (InputSubmissionRepository, "counts", (run_id,), {}),
        (InputSubmissionRepository, "list", (), {"run_id": run_id, "node_id": "ask", "status": "pending"}),
        (DispatchEventRepository, "counts", (), {}),
        (DispatchEventRepository, "poisoned", (), {}),
        (DispatchEventRepository, "list", (), {"run_id": run_id}),
        (NodeJobRepository, "counts", (), {}),
        (NodeJobRepository, "list", (), {"run_id": run_id, "status": ("queued", "failed")}),
        (IngestJobRepository, "counts", (), {}),
        (IngestJobRepository, "list", (), {"queue": "fetch", "limit_key": "host:a", "newest_first": False}),
        (LimitRepository, "fetch", ("host:*",), {}),
        (LimitRepository, "effective", ("host:a",), {}),
        (LimitRepository, "slots", (), {"after": ("a", 1)}),
        (LimitRepository, "slots", ("host:a",), {}),
        (LimitRepository, "list", (), {"after": "a"}),
        (RateRepository, "fetch", ("host:*",), {}),
        (RateRepository, "list", (), {"set_only": True}),
        (WorkerControlRepository, "matching", ("h", "fetch"), {}),
        (WorkerControlRepository, "blocking", (), {}),
        (WorkerControlRepository, "effective", ("h", "fetch"), {}),
        (WorkerControlRepository, "desired", ("h", "fetch"), {}),
        (WorkerControlRepository, "list", (), {"queue": "fetch", "desired": "pause"}),
        (ScheduleRepository, "fetch", ("hourly",), {}),
        (ScheduleRepository, "list", (), {"enabled": True, "queue": "fetch"}),
        (HeartbeatRepository, "fetch", ("h:fetch:1",), {}),
        (HeartbeatRepository, "counts", (), {}),
        (HeartbeatRepository, "standing", ("h",), {}),
        (HeartbeatRepository, "standing_of", ("h:fetch:1",), {}),
        (HeartbeatRepository, "list", (), {"state": ["idle"], "flagged_dead": False}),
        (HookRecordRepository, "counts", (run_id,), {}),
        (HookRecordRepository, "list", (run_id,), {"kind": "Snapshot", "warnings": True}),
        (MachineRepository, "list", (), {"after": 0}),
        (BinaryRepository, "named", (1, ["ffmpeg", "no,pe"]), {}),
        (BinaryRepository, "of_hosts", ("h",), {}),
        (BinaryRepository, "list", (), {"machine_id": 1, "status": "queued"}),
    ]


def plain(found: Any) -> Any:
    """Rows by their columns, and without the age that a worker's beat has when it is looked at."""
    if isinstance(found, Base):
        return {column.key: getattr(found, column.key) for column in found.__table__.columns}
    if isinstance(found, list | tuple):
        return [plain(each) for each in found]
    if isinstance(found, dict):
        return {key: plain(each) for key, each in found.items()}
    if hasattr(found, "age_s"):
        return {name: plain(getattr(found, name)) for name in found.__slots__ if name != "age_s"}
    return found


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_reading_brings_the_same(kind: type[Brought], qwf_dsn: str, run_id: uuid.UUID) -> None:
    """As on a plain connection of psycopg; and the server's clock is a moment with its zone."""

    async def scene() -> None:
        async with kind(qwf_dsn) as brought:
            with psycopg.connect(qwf_dsn) as conn:
                for repository, name, args, options in readings(run_id):
                    here = await brought.reading(repository, name, *args, **options)
                    there = getattr(repository(conn), name)(*args, **options)
                    assert plain(here) == plain(there), (repository, name)
            assert (await brought.reading(RateRepository, "now")).utcoffset() is not None

    asyncio.run(scene())


def test_no_reading_verb_is_left_out() -> None:
    """Each that has an awaitable form is asked here, but for those of single jobs and the server's clock."""
    asked = {(repository, name) for repository, name, _, _ in readings(uuid.uuid4())}
    for repository in {repository for repository, _ in asked}:
        forms = {name[1:] for name in vars(repository) if name[0] == "a" and hasattr(repository, name[1:])}
        left_out = forms - {name for kind, name in asked if kind is repository}
        assert left_out <= {"enqueue", "enqueue_many", "insert", "now", "fetch", "pending"}, repository
