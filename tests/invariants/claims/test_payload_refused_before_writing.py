"""What cannot be stored is refused before a statement runs, so it spoils nobody's transaction."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from queue_workflows.config import configure, reset_config
from queue_workflows.errors import ConfigurationError, PayloadError
from queue_workflows.repositories import (
    DispatchEventRepository,
    HeartbeatRepository,
    IngestJobRepository,
    InputSubmissionRepository,
    LimitRepository,
    NewIngestJob,
    NewNodeJob,
    NodeJobRepository,
    PayloadLimits,
    RunRepository,
    ScheduleRepository,
    WorkerControlRepository,
    enqueue_ingest_job,
    enqueue_many,
)

RUN = uuid.uuid4()
CYCLE: list[Any] = []
CYCLE.append(CYCLE)
DEEP: Any = 0
for _ in range(10_000):
    DEEP = [DEEP]

BAD_JSON = {
    "NUL": {"a": "x\x00y"},
    "NaN": {"a": [float("nan")]},
    "infinity": {"a": float("inf")},
    "50 MB": {"a": "x" * 50_000_000},
    "10,000 deep": {"a": DEEP},
    "cycle": {"a": CYCLE},
    "number as key": {1: "a"},
    "surrogate": {"a": "\ud800"},
    "bytes": {"a": b"x"},
    "a list": [1, 2],
    "a string": "text",
}


@pytest.fixture
def quiet(qwf_engine: sa.Engine) -> Iterator[Session]:
    """A Session on which no statement of anybody's may run."""
    statements: list[str] = []
    with Session(qwf_engine) as session:

        def note(*given: Any) -> None:
            statements.append(given[2])

        sa.event.listen(qwf_engine, "before_cursor_execute", note)
        yield session
        sa.event.remove(qwf_engine, "before_cursor_execute", note)
        assert statements == []
        assert not session.in_transaction()


VERBS: dict[str, Callable[[Session, Any], object]] = {
    "enqueue": lambda s, bad: IngestJobRepository(s).enqueue("t", queue="fetch", args=bad),
    "enqueue_many": lambda s, bad: IngestJobRepository(s).enqueue_many(
        [
            *[NewIngestJob(task_name="t", queue="fetch")] * 5000,
            NewIngestJob(task_name="t", queue="fetch", args=bad),
        ]
    ),
    "run spec": lambda s, bad: RunRepository(s).insert("w", spec=bad, spec_hash="h"),
    "run inputs": lambda s, bad: RunRepository(s).insert("w", spec={}, spec_hash="h", inputs=bad),
    "run labels": lambda s, bad: RunRepository(s).insert("w", spec={}, spec_hash="h", labels=bad),
    "run filter": lambda s, bad: RunRepository(s).list(labels=bad),
    "node inputs": lambda s, bad: NodeJobRepository(s).insert_many(
        [NewNodeJob(run_id=RUN, node_id="n", queue="cpu", inputs=bad)]
    ),
    "submission": lambda s, bad: InputSubmissionRepository(s).insert(RUN, "n", bad),
    "event": lambda s, bad: DispatchEventRepository(s).insert(
        RUN, "ended", node_job_id=1, generation=1, attempt=1, payload=bad
    ),
    "heartbeat": lambda s, bad: HeartbeatRepository(s).beat(
        "w", host_label="h", queue="cpu", pid=1, state="idle", load=bad
    ),
    "schedule": lambda s, bad: ScheduleRepository(s).upsert(
        "s", cron="* * * * *", task_name="t", queue="fetch", args=bad
    ),
}


@pytest.mark.parametrize("bad", BAD_JSON.values(), ids=BAD_JSON.keys())
@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS.keys())
def test_bad_json(quiet: Session, verb: Callable[[Session, Any], object], bad: Any) -> None:
    """Every verb that takes JSON refuses it with one exception class and runs nothing."""
    with pytest.raises(PayloadError):
        verb(quiet, bad)


BAD_VALUES: dict[str, dict[str, Any]] = {
    "NUL in task_name": {"task_name": "a\x00b"},
    "NUL in reason": {"reason": "a\x00b"},
    "NUL in dedupe_key": {"dedupe_key": "a\x00b"},
    "NUL in limit_key": {"limit_key": "a\x00b"},
    "NUL in host_lock": {"host_lock": "a\x00b"},
    "host_lock of nothing": {"host_lock": "elsewhere:"},
    "host_lock with its policy twice": {"host_lock": "elsewhere:elsewhere:a"},
    "newline in host_lock": {"host_lock": "elsewhere:a\nb"},
    "NUL in traceparent": {"traceparent": "a\x00b"},
    "surrogate in dedupe_key": {"dedupe_key": "\udfff"},
    "empty task_name": {"task_name": ""},
    "empty dedupe_key": {"dedupe_key": ""},
    "task_name too long": {"task_name": "t" * 513},
    "dedupe_key too long": {"dedupe_key": "é" * 513},
    "reason too long": {"reason": "r" * 65_537},
    "task_name no text": {"task_name": 7},
    "dedupe_key no text": {"dedupe_key": 7},
    "pattern as limit_key": {"limit_key": "host:*"},
    "priority too high": {"priority": 10},
    "priority negative": {"priority": -1},
    "priority true": {"priority": True},
    "priority fraction": {"priority": 5.5},
    "no attempts": {"max_attempts": 0},
    "too many attempts": {"max_attempts": 40_000},
    "no timeout": {"timeout_s": 0},
    "endless timeout": {"timeout_s": float("inf")},
    "timeout NaN": {"timeout_s": float("nan")},
    "negative backoff": {"backoff_s": -1},
    "naive run_at": {"run_at": datetime(2030, 1, 1)},
    "run_at text": {"run_at": "tomorrow"},
    "negative delay": {"delay": timedelta(seconds=-1)},
    "run_at and delay": {"run_at": datetime(2030, 1, 1, tzinfo=UTC), "delay": 5},
}


@pytest.mark.parametrize("bad", BAD_VALUES.values(), ids=BAD_VALUES.keys())
def test_bad_values(quiet: Session, bad: dict[str, Any]) -> None:
    """Text, times and numbers that a row cannot hold are refused, by the bulk verb with the job's number."""
    job = {"task_name": "t", "queue": "fetch"} | bad
    with pytest.raises(PayloadError) as alone:
        IngestJobRepository(quiet).enqueue(
            job["task_name"], **{k: v for k, v in job.items() if k != "task_name"}
        )
    with pytest.raises(PayloadError) as many:
        IngestJobRepository(quiet).enqueue_many(
            [NewIngestJob(task_name="t", queue="fetch"), NewIngestJob(**job)]
        )
    assert alone.value.path in bad
    assert many.value.path == f"jobs[1].{alone.value.path}"
    assert isinstance(alone.value, ValueError)


@pytest.mark.parametrize("queue", ["", "a:b", "*", "cpu", "gpu", "hooks", "GPU", None, 7, "x" * 64])
def test_bad_queue(quiet: Session, queue: Any) -> None:
    """A name that is no queue's, or one that is reserved for node jobs, takes no ingest jobs."""
    for enqueue in (
        lambda: IngestJobRepository(quiet).enqueue("t", queue=queue),
        lambda: IngestJobRepository(quiet).enqueue_many([NewIngestJob(task_name="t", queue=queue)]),
        lambda: enqueue_ingest_job("t", queue=queue, conn=quiet),
        lambda: enqueue_many([NewIngestJob(task_name="t", queue=queue)], conn=quiet),
    ):
        with pytest.raises((ConfigurationError, PayloadError)):
            enqueue()


def test_public_face_knows_the_host_apps_queues(quiet: Session, qwf_conn: psycopg.Connection) -> None:
    """A queue that nobody configured is refused, as no worker would ever be started for it."""
    with pytest.raises(ConfigurationError, match="fetch, load"):
        enqueue_ingest_job("t", queue="render", conn=quiet)
    configure(ingest_queues={"render"})
    try:
        assert enqueue_ingest_job("t", queue="render", conn=qwf_conn).created
        with pytest.raises(ConfigurationError):
            enqueue_many([NewIngestJob(task_name="t", queue="fetch")], conn=quiet)
    finally:
        reset_config()


def test_public_face_takes_the_settings(quiet: Session, qwf_conn: psycopg.Connection) -> None:
    """The host app's limits and number of attempts hold for what is enqueued through the public face."""
    configure(payload_max_bytes=1024, max_attempts=7)
    try:
        with pytest.raises(PayloadError, match="1,024 bytes"):
            enqueue_ingest_job("t", queue="fetch", args={"a": "x" * 1024}, conn=quiet)
        made = enqueue_many([NewIngestJob(task_name="t", queue="fetch")], conn=qwf_conn)
        made.append(enqueue_ingest_job("t", queue="fetch", max_attempts=2, conn=qwf_conn))
    finally:
        reset_config()
    jobs = [IngestJobRepository(qwf_conn).fetch(each.id) for each in made]
    assert [job.max_attempts for job in jobs if job] == [7, 2]


def test_limits_are_the_repositorys(quiet: Session) -> None:
    """A repository may be made with other limits than the defaults."""
    repository = IngestJobRepository(quiet, payload_limits=PayloadLimits(max_bytes=20, max_depth=2))
    for bad in ({"a": "x" * 20}, {"a": {"b": {}}}):
        with pytest.raises(PayloadError):
            repository.enqueue("t", queue="fetch", args=bad)


BAD_ELSEWHERE: dict[str, Callable[[Session], object]] = {
    "unknown status": lambda s: IngestJobRepository(s).list(status="complete"),
    "awaiting what": lambda s: RunRepository(s).list(status=["running", "awaiting"]),
    "page too long": lambda s: RunRepository(s).list(limit=10_001),
    "page of none": lambda s: NodeJobRepository(s).list(limit=0),
    "naive range": lambda s: RunRepository(s).list(created_from=datetime(2030, 1, 1)),
    "no lease": lambda s: IngestJobRepository(s).claim("fetch", worker_id="w", lease_s=0),
    "claim none": lambda s: IngestJobRepository(s).claim("fetch", worker_id="w", lease_s=5, limit=0),
    "claim for nobody": lambda s: IngestJobRepository(s).claim("fetch", worker_id="", lease_s=5),
    "wish for on": lambda s: WorkerControlRepository(s).set("h", "q", "on", actor="me"),
    "wish for nonsense": lambda s: WorkerControlRepository(s).set("h", "q", "sleep", actor="me"),
    "wish of nobody": lambda s: WorkerControlRepository(s).set("h", "q", "off", actor=""),
    "star inside": lambda s: LimitRepository(s).set("host:*:get", 3, actor="me"),
    "fewer than none": lambda s: LimitRepository(s).set("host:a", -1, actor="me"),
    "limit of a pattern": lambda s: LimitRepository(s).effective("host:*"),
    "state": lambda s: HeartbeatRepository(s).beat("w", host_label="h", queue="q", pid=1, state="bored"),
    "catch-up": lambda s: ScheduleRepository(s).upsert(
        "s", cron="* * * * *", task_name="t", queue="fetch", catch_up="some"
    ),
    "map_index": lambda s: NodeJobRepository(s).insert_many(
        [NewNodeJob(run_id=RUN, node_id="n", queue="cpu", map_index=-2)]
    ),
}


@pytest.mark.parametrize("call", BAD_ELSEWHERE.values(), ids=BAD_ELSEWHERE.keys())
def test_bad_values_elsewhere(quiet: Session, call: Callable[[Session], object]) -> None:
    """Every other verb refuses what makes no sense as well, a misspelt filter among it."""
    with pytest.raises(PayloadError):
        call(quiet)


class Word(StrEnum):
    """A host app's own words."""

    TASK = "task"
    QUEUE = "fetch"
    KEY = "key"


def test_what_is_at_the_limit_is_stored(qwf_conn: psycopg.Connection) -> None:
    """The longest names and keys fit their index, and a StrEnum's member is stored as what it says."""
    repository = IngestJobRepository(qwf_conn)
    key = "".join(chr(0x4E00 + n) for n in range(341)) + "x"
    longest = {"dedupe_key": key, "queue": "fetch", "limit_key": "k" * 512, "host_lock": "h" * 512}
    assert repository.enqueue("t" * 512, **longest).created
    made = repository.enqueue_many(
        [
            NewIngestJob(task_name=Word.TASK, queue=Word.QUEUE, dedupe_key=Word.KEY),
            NewIngestJob(task_name="task", queue="fetch", dedupe_key="other"),
        ]
    )
    jobs = [repository.fetch(each.id) for each in made]
    assert [(job.task_name, job.queue, job.dedupe_key) for job in jobs if job] == [
        ("task", "fetch", "key"),
        ("task", "fetch", "other"),
    ]
