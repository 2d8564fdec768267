"""Watching a run until it is over: woken when something changes, looking once a second all the same.

A process that advances the run or reports progress notifies only because this advertises the run; claims
notify nobody, so that a node is seen to run up to a second late. An outage of the database is waited out.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from queue_workflows.db.connections.engine import Database
from queue_workflows.db.connections.failures import DATABASE_AWAY
from queue_workflows.db.connections.snapshot_read import KeptConnection, at_one_moment
from queue_workflows.db.listen.listener import Listener
from queue_workflows.engine.watch.run_reader import RunReader
from queue_workflows.engine.watch.run_view import RunOverview
from queue_workflows.errors import PayloadError
from queue_workflows.repositories.runs.runs import StartedRun, named_run

CHANNEL: Final = "run_changed"
LOOK_EVERY_S: Final = 1.0
# A busy run changes thousands of times a second; nobody can read that.
LOOK_AT_MOST_EVERY_S: Final = 0.1
# While a writer that began before we advertised may still write without a word to us.
SETTLING_S: Final = 0.3


def watch(run: StartedRun | uuid.UUID | str, *, db_url: str | None = None) -> Iterator[RunOverview]:
    """A run with its nodes as it is, and again whenever it has changed, until it is over.

    `run` is what `start_run` returned, or an id. Raises `UnknownRun` where there is none; an outage of the
    database is waited out once the run has been seen.
    """
    run_id = watched_run(run)
    with Database.open(db_url, role="watcher", pool_size=1) as database:
        last: RunOverview | None = None
        for seen in watch_run(database, run_id):
            if seen is not None and is_other(last, seen):
                last = seen
                yield seen


def watched_run(run: StartedRun | uuid.UUID | str) -> uuid.UUID:
    """The run that a caller means; `PayloadError` if it is none."""
    run_id = named_run(run) if isinstance(run, str) else run.id if isinstance(run, StartedRun) else run
    if not isinstance(run_id, uuid.UUID):
        raise PayloadError(
            f"{run!r:.80} is no run", path="run", advice="give what start_run returned, or its id"
        )
    return run_id


def is_other(before: RunOverview | None, seen: RunOverview) -> bool:
    """Whether something has changed, beside the time."""
    return before is None or replace(before, at=seen.at) != seen


def watch_run(
    database: Database,
    run_id: uuid.UUID,
    *,
    look_every_s: float = LOOK_EVERY_S,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[RunOverview | None]:
    """The run at each look, the last of them when it is over; None while the database is away.

    The first look, which finds out whether the database and the run are there, raises.
    """
    overlook = RunReader(run_id)
    with (
        KeptConnection(database) as kept,
        Listener.on(database, [CHANNEL], payloads=[str(run_id)]) as listener,
    ):
        listener.advertise(f"run:{run_id}")
        looked_at = now()
        seen: RunOverview | None = _look(kept, overlook)
        while True:
            yield seen
            if seen is not None and seen.is_over:
                return
            is_settling = listener.must_look_again() and listener.state == "listening"
            patience = min(SETTLING_S, look_every_s) if is_settling else look_every_s
            listener.wait(max(0.0, patience - (now() - looked_at)))
            sleep(max(0.0, LOOK_AT_MOST_EVERY_S - (now() - looked_at)))
            looked_at = now()
            seen = _look_again(kept, overlook)


def _look(kept: KeptConnection, overlook: RunReader) -> RunOverview:
    connection = kept.connection()
    with at_one_moment(connection):
        return overlook.look(connection)


def _look_again(kept: KeptConnection, overlook: RunReader) -> RunOverview | None:
    try:
        return _look(kept, overlook)
    except DATABASE_AWAY:
        return None
