"""The figures of a deployment, read from its database seldom enough to be asked for often.

Each caller gets what was read last if that is young enough; else the first one reads and the others wait
for it. A database that does not answer is a figure too, and is asked again no sooner.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg import errors

from queue_workflows.db.connections.failures import DATABASE_FAILED
from queue_workflows.db.connections.kept_line import Line
from queue_workflows.db.connections.snapshot_read import at_one_moment
from queue_workflows.repositories.limits.adapted import AdaptedRepository, Lowered
from queue_workflows.repositories.reports.metrics import FigureRepository
from queue_workflows.repositories.reports.queue_statistics import COUNTED, Statistics, StatisticsRepository
from queue_workflows.repositories.retention import RetentionTimes
from queue_workflows.repositories.workers.hardware import HardwareRepository
from queue_workflows.roles.probes.hardware_figures import of_hardware
from queue_workflows.telemetry.exposition import Figures, Point, Points

_log = logging.getLogger(__name__)

WINDOW_S: Final = 300.0
STATEMENT_S: Final = 5.0
# Longer than a reading may take while the server answers; shorter than Prometheus waits.
PATIENCE_S: Final = 8.0
# As the settings are by themselves.
KEPT: Final = RetentionTimes()
# Of the last five minutes so many parts, and so many jobs of each family and part.
WAIT_SLICES: Final = 5
WAITS_EACH: Final = 100
# What is not read of a part is counted, up to this in all of them together.
WAITS_COUNTED: Final = 100_000
AWAY: Final[Figures] = {"qwf.database.up": [((), 0.0)]}


class FigureReader:
    """Reads on a connection of its own, opened when it is first asked; from any thread."""

    def __init__(
        self,
        connect: Callable[[], psycopg.Connection[Any]],
        *,
        stale_s: float,
        every_s: float,
        kept: RetentionTimes = KEPT,
        waits: bool = True,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._line = Line(connect)
        self._stale_s = stale_s
        self._every_s = every_s
        self._kept = kept
        self._waits = waits
        self._now = now
        self._reading = threading.Lock()
        self._figures: Figures = AWAY
        self._read_at: float | None = None
        self._is_closed = False

    def figures(self) -> Figures:
        """The figures of now, or of a few seconds ago; none any more once the reader is closed."""
        if self._is_closed:
            return {}
        if not self._reading.acquire(timeout=PATIENCE_S):
            # The thread that reads gets no answer; nor would we.
            self._line.cut_if_stuck(PATIENCE_S)
            return AWAY
        try:
            if self._read_at is None or self._now() - self._read_at >= self._every_s:
                self._figures = self._read_or_away()
                self._read_at = self._now()
            return self._figures
        finally:
            self._reading.release()

    def close(self) -> None:
        """Let go of the connection, if the thread that reads gives it back in time."""
        self._is_closed = True
        if self._reading.acquire(timeout=1.0):
            self._line.let_go()

    def _read_or_away(self) -> Figures:
        was_up = self._figures is not AWAY
        try:
            begun = self._now()
            with self._line.asking() as connection, _bounded(connection):
                figures = read_figures(connection, stale_s=self._stale_s, kept=self._kept, waits=self._waits)
        except DATABASE_FAILED as exc:
            self._line.let_go()
            if was_up or self._read_at is None:
                _log.warning("no figures: %s", " ".join(str(exc).split()))
            return AWAY
        if not was_up and self._read_at is not None:
            _log.info("the database answers again")
        return {**figures, "qwf.figures.duration": [((), self._now() - begun)]}


@contextmanager
def _bounded(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """One snapshot for all that is read, and a limit to what each statement may take."""
    with at_one_moment(connection):
        connection.execute(f"SET LOCAL statement_timeout = {int(STATEMENT_S * 1000)}")
        yield


def read_figures(
    connection: psycopg.Connection[Any],
    *,
    stale_s: float,
    kept: RetentionTimes = KEPT,
    most: int = COUNTED,
    waits: bool = True,
) -> Figures:
    """All that `telemetry.names.FIGURES` names; counts go up to `most`.

    Without `waits` nothing of what jobs waited for, which is the dearest of it.
    """
    seen = StatisticsRepository(connection).read(stale_s=stale_s, window_s=WINDOW_S, most=most)
    more = FigureRepository(connection)
    outbox, runs, schedules = more.outbox(most=most), more.runs(most=most), more.schedules()
    return {
        "qwf.database.up": [((), 1.0)],
        **_of_queues(seen),
        **(_of_waits(connection) if waits else {}),
        "qwf.outbox.events": [(("pending",), outbox.pending), (("poisoned",), outbox.poisoned)],
        "qwf.outbox.lag": [((), outbox.lag_s)],
        "qwf.runs": [
            (("queued",), runs.queued),
            (("held",), runs.held),
            (("running",), runs.running),
        ],
        "qwf.runs.poisoned": [((), outbox.poisoned_runs)],
        "qwf.schedules": [
            (("on",), schedules.on),
            (("paused",), schedules.paused),
            (("late",), schedules.late),
        ],
        "qwf.schedules.lag": [((), schedules.lag_s)],
        **_of_limits(AdaptedRepository(connection).lowered(limit=most)),
        **_of_pruning(connection, kept),
        "qwf.jobs.stored": [((family,), max(rows, 0)) for family, rows in seen.stored.items()],
        **of_hardware(HardwareRepository(connection).readings(), stale_s=stale_s),
    }


def _of_pruning(connection: psycopg.Connection[Any], kept: RetentionTimes) -> dict[str, Points]:
    """Nothing where the table or a grant is not there yet: all else is to be seen."""
    try:
        with connection.transaction():
            lags = FigureRepository(connection).pruning_lag(kept)
    except (errors.InsufficientPrivilege, errors.UndefinedTable):
        return {}
    return {"qwf.retention.lag": [((family,), lag_s) for family, lag_s in lags.items()]}


def _of_waits(connection: psycopg.Connection[Any]) -> dict[str, Points]:
    """Of each queue by the cause; keys are not told apart, as there may be as many as there are hosts."""
    # With SQLAlchemy, which an orchestrator that nobody asks for figures does without.
    from queue_workflows.engine.explain.queue_waits import queue_waits

    found = queue_waits(
        connection, since_s=WINDOW_S, slices=WAIT_SLICES, each=WAITS_EACH, counted=WAITS_COUNTED
    )
    waited: dict[tuple[str, ...], float] = {}
    for one in found.queues:
        for cause in one.causes:
            at = one.family, one.queue, cause.cause.label
            waited[at] = waited.get(at, 0.0) + cause.seconds
    return {"qwf.queue.waited": sorted(waited.items())}


def _of_limits(lowered: Sequence[Lowered]) -> dict[str, Points]:
    shares: dict[str, list[float]] = {"cap": [], "rate": []}
    for one in lowered:
        if one.value is not None and one.most is not None:
            shares[one.kind].append(one.value / one.most)
    return {
        "qwf.limits.lowered": [((kind,), len(found)) for kind, found in shares.items()],
        "qwf.limits.share": [((kind,), min(found, default=1.0)) for kind, found in shares.items()],
    }


def _of_queues(seen: Statistics) -> dict[str, Points]:
    jobs: list[Point] = []
    held: list[Point] = []
    waits: list[Point] = []
    ages: list[Point] = []
    ended: list[Point] = []
    rates: list[Point] = []
    workers: list[Point] = []
    for one in seen.queues:
        at = (one.family, one.queue)
        states = {
            "queued": one.queued,
            "scheduled": one.scheduled,
            "held": one.held.total(),
            "awaiting_input": one.awaiting_input,
            "running": one.running,
        }
        jobs += [((*at, state), count) for state, count in states.items()]
        held += [((*at, reason), count) for reason, count in sorted(one.held.items())]
        waits.append((at, one.oldest_queued_s or 0.0))
        ages.append((at, one.longest_running_s or 0.0))
        ended += [((*at, outcome), count) for outcome, count in sorted(one.finished.items())]
        rates.append((at, one.per_minute["1m"] / 60))
        workers += [((one.queue, state), count) for state, count in sorted(one.workers.items())]
        workers.append(((one.queue, "silent"), one.silent_workers))
    return {
        "qwf.queue.jobs": jobs,
        "qwf.queue.held": held,
        "qwf.queue.wait": waits,
        "qwf.queue.running.age": ages,
        "qwf.queue.ended": ended,
        "qwf.queue.rate": rates,
        "qwf.workers": workers,
    }
