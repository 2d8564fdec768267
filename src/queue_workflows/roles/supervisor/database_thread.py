"""The supervisor's thread at the database, so that a server that is away never keeps it from its children.

Each round it *buries* the workers that have ended (takes back what they held, forgets their heartbeats, in
short transactions of their own), then *looks* at the signs of life of the others. What it cannot bury now it
buries later; a job's lease does the same if it never can.

    steady ──a round fails──> away ──a round succeeds──> steady since then

A job is not to blame for the end of its worker when that overlaps with an outage: a worker that cannot renew
is killed by its own timer. So an end counts as a crash only if the database was steady for a whole lease
before it. The same goes for a machine that was asleep, where all timers fire at once on its return.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, Final

import psycopg

from queue_workflows.db.connections import sessions
from queue_workflows.db.connections.failures import DATABASE_FAILED, classify_failure
from queue_workflows.db.connections.kept_line import Line
from queue_workflows.engine.limits.lane_upkeep import free_left_by
from queue_workflows.host.processes.lease_timer import boottime
from queue_workflows.repositories import (
    HeartbeatRepository,
    IngestJobRepository,
    NodeJobRepository,
    WorkerControlRepository,
)
from queue_workflows.roles.supervisor.liveness import Signs
from queue_workflows.states import DesiredState

_log = logging.getLogger(__name__)

_FAMILIES: Final = ((NodeJobRepository, "node job"), (IngestJobRepository, "ingest job"))
_ASLEEP_S: Final = 1.0  # how far the clocks may drift apart while the machine is awake


@dataclass(frozen=True)
class Wanted:
    """What to look at: the workers that live, and the queues of which a worker waits for the operator.

    And those of which it matters whether suspects wait; they carry ingest jobs.
    """

    workers: frozenset[str] = frozenset()
    queues: frozenset[str] = frozenset()
    divided: frozenset[str] = frozenset()


@dataclass(frozen=True)
class DeadWorker:
    """A worker that has ended; `crashed` if its job may have caused it, `how` in words.

    Of its jobs only those that it had `begun` can have; empty where that is not known.
    """

    worker_id: str
    ended_at: float
    lease_s: float
    crashed: bool
    how: str = ""
    begun: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Pace:
    """Times in seconds: how often to look, how long to wait for answers and ends, how soon to try again."""

    look_every: float = 1.0
    answer_within: float = 10.0
    session_ends_within: float = 1.0
    retry_first: float = 0.1
    retry_most: float = 5.0

    def retry_after(self, failures: int) -> float:
        """The pause after so many failures in a row."""
        return min(self.retry_most, self.retry_first * 2.0 ** min(failures - 1, 30))


class DatabaseThread(threading.Thread):
    """Buries and looks; `connect` gives an autocommit connection, `tell` is called after each round.

    `errand` is what somebody else has to do at the database in each of them.
    """

    def __init__(
        self,
        connect: Callable[[], psycopg.Connection[Any]],
        *,
        host_label: str,
        max_crashes: int,
        tell: Callable[[], None],
        errand: Callable[[psycopg.Connection[Any]], None] = lambda _: None,
        pace: Pace | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name="qwf-database", daemon=True)
        self._line = Line(connect, now=now)
        self._host_label = host_label
        self._max_crashes = max_crashes
        self._tell = tell
        self._errand = errand
        self._pace = pace or Pace()
        self._now = now
        self._wake = threading.Event()
        self._guard = threading.Lock()
        self._burials: list[DeadWorker] = []
        # Of those that have yet to be buried, also if that failed half-way.
        self._held_jobs: set[str] = set()
        self._verdicts: dict[str, bool] = {}
        self._closing = False
        self._failures = 0
        self._away_since: float | None = None
        self._steady_since = -inf
        self._slept = boottime() - now()
        self.wanted = Wanted()
        self.signs = Signs()

    def bury(self, burial: DeadWorker) -> None:
        """Take back what this worker held, soon."""
        with self._guard:
            self._burials.append(burial)
        self._wake.set()

    def verdicts(self) -> dict[str, bool]:
        """The workers buried since this was asked last, and whether each died of a job: it held some."""
        with self._guard:
            verdicts, self._verdicts = self._verdicts, {}
        return verdicts

    def close(self, *, within_s: float) -> None:
        """Bury the workers that are left, if that can be done in time."""
        self._closing = True
        self._wake.set()
        until = self._now() + within_s
        while self.is_alive() and (left_s := until - self._now()) > 0:
            self.join(min(left_s, 0.2))
            self.cut_if_stuck()
        with self._guard:
            left = [burial.worker_id for burial in self._burials]
        if left:
            _log.warning("%s left to their leases: the database is away", ", ".join(left))

    def cut_if_stuck(self) -> None:
        """End a statement that gets no answer: a black hole may acknowledge for ever."""
        self._line.cut_if_stuck(self._pace.answer_within)

    def run(self) -> None:
        """Rounds, until all is buried after `close`."""
        try:
            while True:
                pause = self._round()
                self._tell()
                if self._closing and not self._burials:
                    return
                self._wake.wait(pause)
                self._wake.clear()
        finally:
            self._line.let_go()

    def _round(self) -> float:
        self._notice_sleep()
        try:
            if self._away_since is not None:
                self._reach()
            left = self._bury_all()
            self._look()
            with self._line.asking() as connection:
                self._errand(connection)
        except DATABASE_FAILED as exc:
            return self._lost(exc)
        self._failures = self._failures + 1 if left else 0
        return self._pace.retry_after(self._failures) if left else self._pace.look_every

    def _bury_all(self) -> bool:
        """Bury everybody in the order of their ends; whether somebody has to be seen to again."""
        with self._guard:
            waiting = list(self._burials)
        left = False
        for burial in waiting:
            if self._buried(burial):
                with self._guard:
                    self._burials.remove(burial)
            else:
                left = True
        return left

    def _buried(self, burial: DeadWorker) -> bool:
        """Take back what can be had; a session that the dead worker left may still hold a row's lock."""
        crashed = burial.crashed and burial.ended_at - self._steady_since >= burial.lease_s
        with self._line.asking() as connection:
            # What is on its way from the dead worker would take a job that nobody runs.
            sessions.end_all(connection, burial.worker_id, within_s=self._pace.session_ends_within)
            for kind, title in _FAMILIES:
                reclaim = partial(
                    kind(connection).reclaim_worker, burial.worker_id, max_crashes=self._max_crashes
                )
                # First what cannot be to blame, in batches: it must not count as held beside the others.
                while crashed and burial.begun and reclaim(crashed=False, kept=burial.begun):
                    self._held_jobs.add(burial.worker_id)
                taken = reclaim(crashed=crashed, how=burial.how)
                if taken:
                    self._held_jobs.add(burial.worker_id)
                for job in taken:
                    counted = ", a crash counted" if job.counted else ""
                    _log.info("took %s %d of %s: %s%s", title, job.id, burial.worker_id, job.status, counted)
            free_left_by(connection, [burial.worker_id])
            heartbeats = HeartbeatRepository(connection)
            holds_more = heartbeats.holds_jobs(burial.worker_id)
            died_of_jobs = crashed and burial.worker_id in self._held_jobs
            self._judge(burial, died_of_jobs=died_of_jobs, is_over=not holds_more)
            if holds_more:
                return False
            heartbeats.delete(burial.worker_id)
        self._held_jobs.discard(burial.worker_id)
        return True

    def _judge(self, burial: DeadWorker, *, died_of_jobs: bool, is_over: bool) -> None:
        """Say once whether a worker died of its jobs: that it did as soon as it is known, else at the end."""
        if died_of_jobs or is_over:
            with self._guard:
                self._verdicts[burial.worker_id] = died_of_jobs or self._verdicts.get(burial.worker_id, False)

    def _look(self) -> None:
        wanted = self.wanted
        read_at = self._now()
        with self._line.asking() as connection:
            beats = HeartbeatRepository(connection).signs(wanted.workers)
            control = WorkerControlRepository(connection)
            wishes = {queue: control.desired(self._host_label, queue) for queue in wanted.queues}
            jobs = IngestJobRepository(connection)
            suspects = {queue: jobs.has_suspect(queue) for queue in wanted.divided}
        on = frozenset(queue for queue, wish in wishes.items() if wish is not DesiredState.OFF)
        self.signs = Signs(read_at, self._steady_since, beats, on, suspects)

    def _notice_sleep(self) -> None:
        slept = boottime() - self._now()
        if slept - self._slept > _ASLEEP_S:
            _log.info("this machine was asleep for %.0f s", slept - self._slept)
            self._steady_since = self._now()
        self._slept = slept

    def _lost(self, exc: Exception) -> float:
        self._line.let_go()
        if self._away_since is None:
            self._away_since = self._now()
            _log.warning("workers cannot be watched: %s", classify_failure(exc, ""))
        self._failures += 1
        return self._pace.retry_after(self._failures)

    def _reach(self) -> None:
        """Note when the database is back, before all else: workers that ended meanwhile are judged by it."""
        away_since = self._away_since or self._now()
        with self._line.asking() as connection:
            connection.execute("SELECT 1")
        self._steady_since = self._now()
        _log.info("the database is back after %.1f s", self._steady_since - away_since)
        self._away_since = None
