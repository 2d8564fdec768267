"""Waiting for an end and watching a run, awaited: with one connection of the process, however many wait."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator
from typing import Any

from queue_workflows.engine.watch.follow import watched_run
from queue_workflows.engine.watch.run_view import RunOverview
from queue_workflows.engine.watch.shared_watch import RunWatcher, Wait, shared_watch
from queue_workflows.engine.watch.wait_for import Waitable, named_end, outcome
from queue_workflows.errors import WaitTimeout
from queue_workflows.repositories.runs.runs import StartedRun
from queue_workflows.repositories.sql.checks import seconds_or_none
from queue_workflows.states import JobFamily


async def await_for(
    job: Waitable,
    timeout: float | None = None,
    *,
    family: str = JobFamily.INGEST,
    db_url: str | None = None,
) -> Any:
    """`wait_for`, awaited: it takes, returns and raises what that does, but for an `engine`.

    All callers of this process share one connection, of a thread of ours, and one look. Being cancelled ends
    the wait and not the job.
    """
    wanted = named_end(job, family)
    patience = seconds_or_none("timeout", timeout, zero=True)
    loop = asyncio.get_running_loop()
    started = loop.time()
    shared, wait = shared_watch(db_url), Wait(wanted, loop)
    shared.join(wait)
    try:
        await wait.news.wait()
        while True:
            if wait.trouble is not None:
                raise wait.trouble
            if wait.seen is not None and wait.seen.is_over:
                return outcome(wanted, wait.seen)
            wait.news.clear()
            waited = loop.time() - started
            if not await _is_set(wait.news, None if patience is None else patience - waited):
                status = None if wait.seen is None else wait.seen.status
                raise WaitTimeout(wanted.name, loop.time() - started, status)
    finally:
        shared.leave(wait)


async def awatch(
    run: StartedRun | uuid.UUID | str, *, db_url: str | None = None
) -> AsyncGenerator[RunOverview, None]:
    """`watch`, awaited: the run as it is, and again whenever it has changed, until it is over.

    All callers of this process share one connection, and each run is looked at once for all that watch it. A
    caller that is slow gets the latest only.
    """
    run_id = watched_run(run)
    shared, watcher = shared_watch(db_url), RunWatcher(run_id, asyncio.get_running_loop())
    shared.watch(watcher)
    try:
        while True:
            await watcher.news.wait()
            watcher.news.clear()
            if watcher.trouble is not None:
                raise watcher.trouble
            if (seen := watcher.latest) is not None:
                yield seen
                if seen.is_over:
                    return
    finally:
        shared.unwatch(watcher)


async def _is_set(event: asyncio.Event, within_s: float | None) -> bool:
    if event.is_set():
        return True
    try:
        async with asyncio.timeout(None if within_s is None else max(0.0, within_s)):
            await event.wait()
    except TimeoutError:
        return False
    return True
