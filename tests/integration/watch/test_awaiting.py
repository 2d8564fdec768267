"""`await_for` and `awatch`: any number of callers, one connection of the process, and no thread of theirs."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb
from sqlalchemy.ext.asyncio import create_async_engine
from support.connections.kept import own_connection
from support.processes.workers import until
from support.rows.jobs import Jobs, ending, jobs_of

from queue_workflows import (
    JobCancelled,
    JobFailed,
    PayloadError,
    RunFailed,
    RunOverview,
    RunRepository,
    UnknownJob,
    UnknownRun,
    UnusableConnection,
    WaitTimeout,
    await_for,
    awatch,
    wait_for,
    watch,
)
from queue_workflows.engine.watch.shared_watch import SharedWatch, Wait, shared_watch
from queue_workflows.errors import DatabaseUnreachable
from queue_workflows.repositories import StartedRun
from queue_workflows.repositories.reports.ends import EndOf

OURS = "FROM pg_stat_activity WHERE application_name LIKE 'qwf:waiter%' AND datname = current_database()"
ENOUGH_S = 120


@pytest.fixture
def free_port_dsn() -> Iterator[str]:
    """The address of a server that is not there."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"postgresql://nobody@127.0.0.1:{bound.getsockname()[1]}/none"


@pytest.fixture(params=["node", "ingest"])
def jobs(request: pytest.FixtureRequest, qwf_dsn: str) -> Iterator[Jobs]:
    """An empty table of each family."""
    with jobs_of(request.param, qwf_dsn) as jobs:
        yield jobs


@pytest.fixture
def ingest(qwf_dsn: str) -> Iterator[Jobs]:
    """Empty ingest jobs."""
    with jobs_of("ingest", qwf_dsn) as jobs:
        yield jobs


def played(scene: Coroutine[Any, Any, Any]) -> Any:
    """What the scene returns, within a time that no slow machine needs."""

    async def bounded() -> Any:
        async with asyncio.timeout(ENOUGH_S):
            return await scene

    return asyncio.run(bounded())


def connections(conn: psycopg.Connection[Any]) -> int:
    """How many connections the process has for all that wait."""
    found = conn.execute(f"SELECT count(*) {OURS}").fetchone()
    assert found is not None
    return int(found[0])


async def soon(look: Callable[[], object]) -> None:
    """Until it is so."""
    while not look():
        await asyncio.sleep(0.01)


@asynccontextmanager
async def waiting(*waits: Coroutine[Any, Any, Any]) -> AsyncIterator[list[asyncio.Task[Any]]]:
    """Callers that wait, each looked at once; nothing of them is left behind."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def test_the_result_and_why_there_is_none(jobs: Jobs, qwf_dsn: str) -> None:
    """As `wait_for` has it: results, failures, cancels, skips, whatever names the job."""
    done, failed, cancelled, skipped = jobs.enqueue(4)

    async def scene() -> None:
        args: dict[str, Any] = {"family": jobs.family, "db_url": qwf_dsn}
        async with waiting(
            await_for(done, **args),
            await_for(f"{jobs.family}:{failed}", db_url=qwf_dsn),
            await_for(cancelled, 60, **args),
            await_for(skipped, **args),
        ) as tasks:
            await asyncio.sleep(0)
            jobs.repository.complete(jobs.one(), {"pages": 3})
            jobs.repository.end(ending(jobs.one(), "failed", error={"message": "no use"}, counts=True))
            jobs.repository.cancel(cancelled)
            jobs.repository.end(ending(jobs.one(), "skipped"))
            results = await asyncio.gather(*tasks, return_exceptions=True)
        assert (results[0], results[3]) == ({"pages": 3}, None)
        assert isinstance(results[1], JobFailed)
        assert results[1].error["message"] == "no use"
        assert isinstance(results[2], JobCancelled)
        assert await await_for(done, 0, **args) == {"pages": 3}

    played(scene())


def test_patience_ends_and_the_job_goes_on(ingest: Jobs, qwf_dsn: str) -> None:
    """With the status that was seen last."""
    (job_id,) = ingest.enqueue()

    async def scene() -> None:
        for patience in (0, 0.2):
            with pytest.raises(WaitTimeout, match=f"qwf explain ingest:{job_id}") as caught:
                await await_for(job_id, patience, db_url=qwf_dsn)
            assert (caught.value.status, caught.value.exit_code) == ("queued", 73)

    played(scene())
    assert ingest.row(job_id)["status"] == "queued"


def test_what_is_not_there_or_no_job(ingest: Jobs, qwf_dsn: str) -> None:
    """Never there, deleted while somebody waits, and what is refused before anything is asked."""
    (job_id,) = ingest.enqueue()

    async def scene() -> None:
        for absent, error in ((999_999, UnknownJob), (uuid.uuid4(), UnknownRun)):
            with pytest.raises(error, match="is not committed yet"):
                await await_for(absent, db_url=qwf_dsn)
        async with waiting(await_for(job_id, db_url=qwf_dsn)) as (task,):
            await asyncio.sleep(0.1)
            ingest.connection.execute("DELETE FROM ingest_jobs")
            with pytest.raises(UnknownJob):
                await task
        for job, options in ((0, {}), ("run:7", {}), (1, {"family": "film"}), (1, {"timeout": -1})):
            with pytest.raises(PayloadError):
                await await_for(job, db_url=qwf_dsn, **options)

    played(scene())


def test_a_thousand_callers_have_one_connection(ingest: Jobs, qwf_dsn: str) -> None:
    """One, which also asks, and no threads; ends are looked for together, not by each."""
    ids = ingest.enqueue(1000)
    shared = shared_watch(qwf_dsn)

    async def scene() -> None:
        async with waiting(*(await_for(job_id, db_url=qwf_dsn) for job_id in ids)) as tasks:
            await soon(lambda: shared.callers == 1000 and shared.looks > 3)
            await soon(lambda: connections(ingest.connection) == 1)
            threads, looks = threading.active_count(), shared.looks
            for job in ingest.repository.claim("fetch", worker_id="a:fetch:1", lease_s=600, limit=1000):
                ingest.repository.complete(job, {"id": job.id})
            assert await asyncio.gather(*tasks) == [{"id": job_id} for job_id in ids]
            assert shared.looks - looks < 500
            assert (threading.active_count(), connections(ingest.connection)) == (threads, 1)

    played(scene())


def test_an_end_is_announced_while_somebody_waits(jobs: Jobs, qwf_dsn: str) -> None:
    """Once a statement, and to nobody's cost where nobody does."""
    waited, other = jobs.enqueue(2)
    shared = SharedWatch(qwf_dsn, linger_s=0.0)

    async def scene() -> None:
        loop = asyncio.get_running_loop()
        waits = [Wait(EndOf(jobs.family, waited), loop)]
        shared.join(waits[0])
        await soon(lambda: _is_advertised(jobs.connection))
        jobs.repository.complete(jobs.one())
        await soon(lambda: waits[0].seen is not None and waits[0].seen.is_over)
        shared.leave(waits[0])

    with psycopg.connect(qwf_dsn, autocommit=True) as ear:
        ear.execute("LISTEN something_ended")
        played(scene())
        until(lambda: shared.is_idle and not connections(jobs.connection))
        jobs.repository.cancel(other)
        jobs.connection.execute("NOTIFY something_ended, 'the last'")
        assert [note.payload for note in ear.notifies(timeout=150, stop_after=2)] == ["qwf:ended", "the last"]


def test_the_connection_goes_when_nobody_waits(ingest: Jobs, qwf_dsn: str) -> None:
    """And comes again for the next."""
    (job_id,) = ingest.enqueue()
    shared = SharedWatch(qwf_dsn, linger_s=0.0)

    async def scene() -> None:
        for _ in range(2):
            wait = Wait(EndOf("ingest", job_id), asyncio.get_running_loop())
            shared.join(wait)
            await wait.news.wait()
            await soon(lambda: connections(ingest.connection) == 1)
            shared.leave(wait)
            await soon(lambda: shared.is_idle and not connections(ingest.connection))

    until(lambda: not connections(ingest.connection))
    played(scene())


def test_a_killed_connection_loses_no_end(ingest: Jobs, qwf_dsn: str) -> None:
    """What ends while there is none is found all the same, and the next is one again."""
    first, second = ingest.enqueue(2)

    async def scene() -> None:
        async with waiting(*(await_for(job, 60, db_url=qwf_dsn) for job in (first, second))) as tasks:
            await soon(lambda: _is_advertised(ingest.connection))
            ingest.connection.execute(f"SELECT pg_terminate_backend(pid) {OURS}")
            ingest.repository.complete(ingest.one(), {"ok": 1})
            assert await tasks[0] == {"ok": 1}
            await soon(lambda: _is_advertised(ingest.connection))
            ingest.repository.complete(ingest.one(), {"ok": 2})
            assert await tasks[1] == {"ok": 2}
            await soon(lambda: connections(ingest.connection) == 1)

    played(scene())


def test_without_listen_it_polls(ingest: Jobs, qwf_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a proxy that keeps no sessions."""
    monkeypatch.setenv("QWF_LISTEN", "off")
    (job_id,) = ingest.enqueue()

    async def scene() -> None:
        async with waiting(await_for(job_id, db_url=qwf_dsn)) as (task,):
            await asyncio.sleep(0.1)
            assert not _is_advertised(ingest.connection)
            ingest.repository.complete(ingest.one(), {"ok": True})
            assert await task == {"ok": True}

    until(lambda: not _is_advertised(ingest.connection))
    played(scene())


def test_a_caller_may_be_cancelled_and_a_loop_closed(ingest: Jobs, qwf_dsn: str) -> None:
    """The others wait on, in whichever loop of whichever thread."""
    (job_id,) = ingest.enqueue()
    shared = shared_watch(qwf_dsn)
    before = shared.callers
    closed = asyncio.new_event_loop()
    lost = closed.create_task(await_for(job_id, db_url=qwf_dsn))
    closed.run_until_complete(asyncio.sleep(0.05))
    closed.close()
    results: list[Any] = []
    other = threading.Thread(target=lambda: results.append(played(await_for(job_id, db_url=qwf_dsn))))

    async def scene() -> None:
        async with waiting(*(await_for(job_id, db_url=qwf_dsn) for _ in range(2))) as (gone, stays):
            await soon(lambda: shared.callers == before + 4)
            gone.cancel()
            with pytest.raises(asyncio.CancelledError):
                await gone
            assert shared.callers == before + 3
            ingest.repository.complete(ingest.one(), {"ok": True})
            assert await stays == {"ok": True}

    other.start()
    played(scene())
    other.join(ENOUGH_S)
    assert results == [{"ok": True}]
    until(lambda: shared.callers == before)
    lost._log_destroy_pending = False  # type: ignore[attr-defined]


def test_a_forked_child_has_one_of_its_own(ingest: Jobs, qwf_dsn: str) -> None:
    """And leaves its parent's alone."""
    (job_id,) = ingest.enqueue()
    ingest.repository.complete(ingest.one(), {"ok": True})
    assert played(await_for(job_id, db_url=qwf_dsn)) == {"ok": True}
    child = os.fork()
    if not child:
        os._exit(0 if played(await_for(job_id, db_url=qwf_dsn)) == {"ok": True} else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert played(await_for(job_id, db_url=qwf_dsn)) == {"ok": True}


def test_a_database_that_cannot_be_had_is_said_at_once(free_port_dsn: str) -> None:
    """The first look raises, as that of `wait_for` does; to each that waits for it."""

    async def scene() -> None:
        errors = await asyncio.gather(
            *(await_for(1, db_url=free_port_dsn) for _ in range(3)), return_exceptions=True
        )
        assert [type(error) for error in errors] == [DatabaseUnreachable] * 3

    played(scene())


def test_an_asynchronous_engine_is_refused(qwf_dsn: str) -> None:
    """With the form to call instead."""
    engine: Any = create_async_engine("postgresql+psycopg://")
    with pytest.raises(UnusableConnection, match="asynchronous") as refused:
        wait_for(1, engine=engine)
    assert "await await_for" in str(refused.value.advice)


@pytest.fixture
def runs(qwf_dsn: str) -> Iterator[RunRepository]:
    """Runs of a database without jobs."""
    with own_connection(qwf_dsn) as connection:
        yield RunRepository(connection)


def start(runs: RunRepository) -> StartedRun:
    """A run that nobody advances."""
    return runs.insert("film", spec={}, spec_hash="h")


def end(dsn: str, run: StartedRun, status: str, **columns: Any) -> None:
    """As an orchestrator does it."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "UPDATE workflow_runs SET status = %s, finished_at = now(), outputs = %s, error = %s"
            " WHERE id = %s",
            [status, columns.get("outputs"), columns.get("error"), run.id],
        )


def test_the_outputs_of_a_run(runs: RunRepository, qwf_dsn: str) -> None:
    """Or why it failed."""
    done, failed = start(runs), start(runs)

    async def scene() -> None:
        async with waiting(
            await_for(done, db_url=qwf_dsn), await_for(str(failed.id), db_url=qwf_dsn)
        ) as tasks:
            await asyncio.sleep(0.05)
            end(qwf_dsn, done, "completed", outputs=Jsonb({"url": "x"}))
            end(qwf_dsn, failed, "failed", error=Jsonb({"node": "cut", "message": "no use"}))
            assert await tasks[0] == {"url": "x"}
            with pytest.raises(RunFailed, match="node cut: no use"):
                await tasks[1]

    played(scene())


def test_a_run_is_watched_by_many(runs: RunRepository, qwf_dsn: str) -> None:
    """Each sees it as it is, each change, and the end; it is looked at for all of them at once."""
    run = start(runs)
    shared = shared_watch(qwf_dsn)

    async def watched(seen: list[str]) -> None:
        async for view in awatch(run, db_url=qwf_dsn):
            seen.append(view.status)

    async def scene() -> None:
        seen: list[list[str]] = [[] for _ in range(50)]
        async with waiting(*map(watched, seen)) as tasks:
            await soon(lambda: all(seen))
            looks = shared.looks
            end(qwf_dsn, run, "completed")
            await asyncio.gather(*tasks)
            assert shared.looks - looks < 10
        assert seen == [["queued", "completed"]] * 50

    played(scene())


def test_watching_ends_with_its_caller(runs: RunRepository, qwf_dsn: str) -> None:
    """Nobody looks at a run that nobody watches any more; one that is not there is said."""
    run = start(runs)
    shared = shared_watch(qwf_dsn)

    async def scene() -> None:
        async with aclosing(awatch(run, db_url=qwf_dsn)) as views:
            first = await anext(views)
            assert isinstance(first, RunOverview)
            assert (first.id, first.status, shared.callers) == (run.id, "queued", 1)
        assert shared.callers == 0
        with pytest.raises(UnknownRun):
            await anext(awatch(uuid.uuid4(), db_url=qwf_dsn))
        with pytest.raises(PayloadError):
            await anext(awatch("film", db_url=qwf_dsn))

    played(scene())


def test_the_synchronous_watch(runs: RunRepository, qwf_dsn: str) -> None:
    """Each change once, to the end."""
    run = start(runs)
    seen = []
    for view in watch(run, db_url=qwf_dsn):
        seen.append(view.status)
        if view.status == "queued":
            end(qwf_dsn, run, "completed")
    assert seen == ["queued", "completed"]
    with pytest.raises(UnknownRun):
        next(watch(uuid.uuid4(), db_url=qwf_dsn))


def _is_advertised(conn: psycopg.Connection[Any]) -> bool:
    """Whether writers are asked to announce ends."""
    found = conn.execute(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND mode = 'ShareLock'"
        " AND classid = qwf_wake_class()::oid AND objid::bigint = qwf_wake_key('qwf:ended')::bit(32)::bigint"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    ).fetchone()
    return found != (0,)
