"""Each question of a durable function is answered, the answer is lost, and it is asked again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from queue_workflows.engine.limits.wait_loop import DatabaseCalls
from queue_workflows.engine.registry.tasks import ingest_task
from queue_workflows.repositories import IngestJobRepository
from queue_workflows.repositories.durable.events import EventRepository, emit_event
from queue_workflows.repositories.durable.steps import StepRepository
from queue_workflows.testing import drain, local_worker

CALLS: Counter[str] = Counter()


def count(name: str) -> str:
    """What a step does."""
    CALLS[name] += 1
    return name


@ingest_task("lost_doubled", queue="load")
def lost_doubled(reason: str | None, args: dict[str, Any]) -> int:
    """A child."""
    return 2 * args["n"]


@ingest_task("asks_for_all", queue="fetch", durable=True)
def asks_for_all(reason: str | None, args: dict[str, Any], *, ctx: Any) -> Any:
    """All that a durable function may ask."""
    ctx.now()
    ctx.step("one", count, "one")
    events = [
        ctx.wait_event("first"),
        ctx.wait_event("first"),
        ctx.wait_event("never", timeout=60, default=0),
    ]
    children = [ctx.spawn(lost_doubled, {"n": n}) for n in range(3)]
    ctx.sleep(hours=1)
    found = ctx.gather(*children)
    ctx.step("two", count, "two")
    if not args:
        ctx.continue_as_new({"events": events, "found": found})
    return args


@pytest.fixture
def conn(qwf_configured: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[psycopg.Connection]:
    """An empty queue, and a database which loses each answer once."""
    store, lost = StepRepository.store, [False]

    def forgetful(repository: StepRepository, steps: Any) -> Any:
        answer = store(repository, steps)
        lost[0] = not lost[0]
        if lost[0]:
            raise psycopg.OperationalError("the answer is lost")
        return answer

    def calls(ask: Any) -> DatabaseCalls:
        def twice(job: Any, question: Any) -> Any:
            for _ in range(2):
                answer = until_answered(job, question)
            return answer

        def until_answered(job: Any, question: Any) -> Any:
            while True:
                with suppress(psycopg.OperationalError):
                    return ask(job, question)

        return DatabaseCalls(twice)

    monkeypatch.setattr(StepRepository, "store", forgetful)
    monkeypatch.setattr(local_worker, "DatabaseCalls", calls)
    with psycopg.connect(qwf_configured, autocommit=True) as connection:
        connection.execute("TRUNCATE ingest_jobs, durable_steps, durable_events")
        yield connection


def test_each_question_bears_being_asked_twice(conn: psycopg.Connection):
    """Each event is taken once, each child is enqueued once, and no step runs again."""
    job = asks_for_all.enqueue({}, conn=conn)
    for number in range(5):
        emit_event("first", number, conn=conn)
    drain(conn=conn, with_scheduled=True)
    row = IngestJobRepository(conn).fetch(job.id)
    assert row is not None
    assert (row.status, row.result) == ("completed", {"events": [0, 1, 0], "found": [0, 2, 4]})
    assert CALLS == {"one": 2, "two": 2}
    assert [event.payload for event in EventRepository(conn).kept()] == [4]
    assert conn.execute("SELECT count(*) FROM ingest_jobs").fetchone() == (7,)
