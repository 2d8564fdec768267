"""How full the ingest queues are, for a host app's own page or probe; `qwf queue stats` reads the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from queue_workflows.config import current_config, effective_settings
from queue_workflows.db.connections.engine import Database
from queue_workflows.db.connections.snapshot_read import at_one_moment
from queue_workflows.repositories.reports.queue_statistics import COUNTED, QueueStats, StatisticsRepository
from queue_workflows.repositories.sql.configured_database import check_database
from queue_workflows.repositories.sql.connection import AsyncHandle, Handle, awaited
from queue_workflows.repositories.sql.families import INGEST
from queue_workflows.states import JobStatus


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """One queue; a count that `at_least` names stopped at its bound.

    `queued` can be claimed, `scheduled` is for later or put aside with a reason; what is over is counted for
    the window; `workers` are those heard of lately, whatever they do.
    """

    queue: str
    queued: int = 0
    scheduled: int = 0
    running: int = 0
    completed: int = 0
    skipped: int = 0
    failed: int = 0
    cancelled: int = 0
    workers: int = 0
    at_least: frozenset[str] = frozenset()


def ingest_snapshot(
    *, conn: Handle | None = None, window_s: float = 3600.0, most: int = COUNTED
) -> dict[str, QueueSnapshot]:
    """Each ingest queue by its name: those of this host app, and whichever else has jobs or workers.

    What is over is counted for the last `window_s`, and each count goes up to `most`, so that looking is
    cheap however much is stored. Without `conn` it is read from the configured database, as of one moment.
    """
    with _connected(conn) as handle:
        stats = StatisticsRepository(handle).read(
            stale_s=effective_settings().stale_heartbeat_s, window_s=window_s, most=most, families=[INGEST]
        )
    found = {one.queue: _snapshot(one) for one in stats.queues}
    ours = {queue: QueueSnapshot(queue) for queue in sorted(current_config().ingest_queues)}
    return ours | found


async def aingest_snapshot(
    *, conn: AsyncHandle | None = None, window_s: float = 3600.0, most: int = COUNTED
) -> dict[str, QueueSnapshot]:
    """`ingest_snapshot`, awaited, on an asynchronous connection."""
    return await awaited(conn, lambda usable: ingest_snapshot(conn=usable, window_s=window_s, most=most))


@contextmanager
def _connected(conn: Handle | None) -> Iterator[Handle]:
    if conn is not None:
        check_database(conn, "ingest_jobs")
        yield conn
        return
    with (
        Database.open(role="snapshot", pool_size=1, creates=False) as database,
        closing(database.connect(autocommit=True)) as connection,
        at_one_moment(connection),
    ):
        yield connection


def _snapshot(one: QueueStats) -> QueueSnapshot:
    ended = {name: one.finished[JobStatus(name)] for name in ("completed", "skipped", "failed", "cancelled")}
    bounded = {
        *(one.at_least & {"queued", "scheduled"}),
        *(("scheduled",) if "held" in one.at_least else ()),
        *(ended if "finished" in one.at_least else ()),
    }
    return QueueSnapshot(
        one.queue,
        queued=one.queued,
        scheduled=one.scheduled + one.held.total(),
        running=one.running,
        workers=one.workers.total(),
        at_least=frozenset(bounded),
        **ended,
    )
