"""The thread that keeps a worker's word: renews its leases, beats, watches, sweeps, and ends what overran.

    main thread                            guardian
    ───────────                            ────────
    claim ────────────> hold() ──────────> renew at a third of the lease, on a connection of its own
    run the job         │                  watch each second: cancelled? lost? what does the operator want?
    (may hold the GIL)  │                  judge: wall clock, stall, the grace of a stop
    end, claim next ──> let_go()           beat, sweep
                                           └─ verdict ──> write the job's end, then end the process, or exec

The job runs in the main thread, so a verdict cannot take it off there: the process goes, and with it the job.
Ending a row and claiming the next are one statement of the main thread. Before the guardian ends a row it
takes the lock under which that statement is sent; else the process could die with a claim that it never read.

The dead man's timer is armed here, after each confirmed claim and renewal, from a clock read before it was
sent. A guardian that cannot renew (no database, or no GIL) leaves it alone, and the kernel ends the process.

Signals arrive by a descriptor that C writes to: a handler in Python would wait for the main thread, which may
be deep in C code for as long as the job likes.
"""

from __future__ import annotations

import json
import logging
import os
import random
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import psutil
import psycopg

from queue_workflows.errors import ExitCode, LeaseLost, QwfError
from queue_workflows.host.deadman import DeadMan, boottime
from queue_workflows.jobs.ending import ending_of, outcome_of
from queue_workflows.jobs.guards import HeldJob, Verdict, next_verdict_at, verdict_on
from queue_workflows.jobs.maintenance import sweep
from queue_workflows.jobs.outcomes import Released, Stop
from queue_workflows.jobs.retries import Backoff
from queue_workflows.repositories.claimable import ClaimableRepository
from queue_workflows.repositories.heartbeats import HeartbeatRepository
from queue_workflows.repositories.holding import Control
from queue_workflows.roles.identity import Identity, versions
from queue_workflows.roles.leaving import execute_anew, leave
from queue_workflows.settings import Settings
from queue_workflows.states import DesiredState, WorkerState

_log = logging.getLogger(__name__)

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_WATCH_EVERY_S: Final = 1.0
_LONGEST_ROUND_S: Final = 1.0
_RECONNECT_EVERY_S: Final = 0.5
# How long a job that an operator switches off may take to stop by itself: `off` is obeyed within two seconds.
_OFF_GRACE_S: Final = 0.5
_MAIN_PATIENCE_S: Final = 0.2
_EXITS: Final = {
    Verdict.WALL_CLOCK: ExitCode.WALL_CLOCK,
    Verdict.STALL: ExitCode.STALL,
    Verdict.LEASE: ExitCode.LEASE_LOST,
}


@dataclass(slots=True)
class _Due:
    """When each duty is due next, on the monotonic clock."""

    watch: float = 0.0
    beat: float = 0.0
    sweep: float = 0.0
    connect: float = 0.0


class Guardian:
    """Guards the jobs that its worker holds; started before the first claim, closed after the last."""

    def __init__(
        self,
        identity: Identity,
        settings: Settings,
        *,
        repository: type[ClaimableRepository[Any, Any]],
        connect: Callable[[], psycopg.Connection[Any]],
        deadman: DeadMan,
        on_news: Callable[[], None],
        grace_s: float,
        launcher_pid: int | None = None,
    ) -> None:
        """`on_news` is called, from this thread, when the main loop should look at `wish` and `stopping`."""
        self.identity = identity
        self.settings = settings
        self.lease_s = settings.lease_for(identity.queue)
        self.claiming = threading.Lock()
        self.stopping: int | None = None
        self.wish: Control | None = None
        self._control_version = 0
        self._repository = repository
        self._open = connect
        self._deadman = deadman
        self._on_news = on_news
        self._grace_s = grace_s
        self._launcher_pid = launcher_pid
        self._backoff = Backoff(settings.backoff_s, settings.backoff_jitter_s)
        self._renew_s = settings.renew_for(identity.queue)
        self._margin_s = max(self.lease_s / 10, 0.1)
        self._beat_every_s = min(5.0, settings.stale_heartbeat_s / 6)
        self._round_s = min(_LONGEST_ROUND_S, self._renew_s / 2)
        self._rng = random.Random()  # noqa: S311
        self._lock = threading.Lock()
        self._held: dict[int, HeldJob] = {}
        self._state = WorkerState.STARTING
        self._state_reason: str | None = None
        self._connection: psycopg.Connection[Any] | None = None
        self._connected_at = 0.0
        self._was_away = False
        self._due = _Due()
        self._closing = False
        self._process = psutil.Process()
        self._bell_out, self._bell_in = os.pipe()
        for end in (self._bell_out, self._bell_in):
            os.set_blocking(end, False)
        self._thread = threading.Thread(target=self._run, name="qwf-guardian", daemon=True)

    # What the main thread calls.

    def start(self) -> None:
        """Take the signals, say hello, learn what the operator wants; raises if the database is away."""
        for number in STOP_SIGNALS:
            signal.signal(number, _heard)
        signal.set_wakeup_fd(self._bell_in, warn_on_full_buffer=False)
        now = time.monotonic()
        self._connected()
        self._watch(now)
        self._beat(now)
        self._thread.start()

    def close(self) -> None:
        """Stop guarding, which only a worker that holds nothing may ask for, and take the heartbeat back."""
        self._closing = True
        self._ring()
        self._thread.join()
        signal.set_wakeup_fd(-1)
        self._deadman.disarm()
        self._farewell()
        for end in (self._bell_out, self._bell_in):
            os.close(end)

    def hold(self, held: HeldJob) -> None:
        """Guard a job whose claim is confirmed."""
        with self._lock:
            self._held[held.job.id] = held
            self._arm()
        if self.stopping is not None:
            self._ring()

    def held(self, job_id: int) -> HeldJob:
        """The job as it is guarded."""
        with self._lock:
            return self._held[job_id]

    def let_go(self, job_id: int) -> None:
        """The job's end is confirmed."""
        with self._lock:
            self._held.pop(job_id, None)
            self._arm()

    @contextmanager
    def bounded(self) -> Iterator[float]:
        """A statement of the main thread, from the clock reading given: no answer within a lease ends us.

        Only until the answer: what waits for work, or for the operator, may wait longer than a lease.
        """
        reading = boottime()
        with self._lock:
            if not self._held:
                self._deadman.arm(reading + self.lease_s)
        try:
            yield reading
        finally:
            with self._lock:
                self._arm()

    def doing(self, state: WorkerState, reason: str | None = None) -> None:
        """What the next heartbeat says; a change is told at once."""
        if (state, reason) != (self._state, self._state_reason):
            # Between two jobs is not idle: only what lasts is worth a beat of its own.
            tell = WorkerState.BUSY not in (state, self._state)
            self._state, self._state_reason = state, reason
            if tell:
                self._due.beat = 0.0
                self._ring()

    def execute_anew(self) -> NoReturn:
        """Start this worker afresh, under the same name; it must hold nothing."""
        execute_anew(self._launcher_pid)

    # The thread.

    def _run(self) -> None:
        try:
            while not self._closing:
                self._listen(self._next_round(time.monotonic()))
                self._round()
        except BaseException:
            # A worker without guards must not go on; what it holds is taken back when the lease lapses.
            _log.exception("the guardian failed, so the worker ends")
            self._leave(ExitCode.FAILED)

    def _next_round(self, now: float) -> float:
        with self._lock:
            first = min(map(next_verdict_at, self._held.values()), default=now + self._round_s)
        return max(
            0.0, min(first, self._due.beat, self._due.watch, self._due.sweep, now + self._round_s) - now
        )

    def _listen(self, timeout: float) -> None:
        """Wait for a signal, a call of the main thread, or the time."""
        select.select([self._bell_out], [], [], max(timeout, 0.005))
        with suppress(BlockingIOError):
            for number in os.read(self._bell_out, 4096):
                if number in STOP_SIGNALS:
                    self._stop(number)

    def _stop(self, number: int) -> None:
        """The first signal lets the jobs finish within the grace, the second ends them at once."""
        grace_s = 0.0 if self.stopping is not None else self._grace_s
        if self.stopping is None:
            _log.info("%s: stopping, with %g s for the current job", signal.Signals(number).name, grace_s)
        self.stopping = self.stopping or number
        end_at = time.monotonic() + grace_s
        with self._lock:
            for held in self._held.values():
                held.finish_by(end_at)
        self.doing(WorkerState.STOPPING)
        self._on_news()

    def _round(self) -> None:
        now = time.monotonic()
        self._judge(now)
        self._deadman.recheck()
        if self._connection is None and now < self._due.connect:
            return
        try:
            self._connected()
            self._renew()
            self._write_progress(now)
            if now >= self._due.watch:
                self._watch(now)
            if now >= self._due.beat:
                self._beat(now)
            if now >= self._due.sweep:
                self._sweep(now)
        except (psycopg.Error, QwfError, OSError) as exc:
            self._lost_touch(exc)

    def _connected(self) -> psycopg.Connection[Any]:
        if self._connection is None:
            self._connection = self._open()
            self._connected_at = time.monotonic()
            if self._was_away:
                _log.info("the database answers again")
        return self._connection

    def _lost_touch(self, exc: Exception) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        if not self._was_away or connection is not None:
            _log.warning("the guardian has no database: %s", " ".join(str(exc).split()))
        self._was_away = True
        self._due.connect = time.monotonic() + _RECONNECT_EVERY_S * (0.5 + self._rng.random())

    # The duties, each of which may find the database gone.

    def _renew(self) -> None:
        reading = boottime()
        with self._lock:
            due = [
                held
                for held in self._held.values()
                if reading >= held.lease_until - self.lease_s + self._renew_s
            ]
        if not due:
            return
        alive = self._repository(self._connected()).renew(
            [held.job.fence for held in due], lease_s=self.lease_s
        )
        lost = []
        for held in due:
            if held.job.id not in alive:
                lost.append(held)
                continue
            held.lease_until = reading + self.lease_s
            if alive[held.job.id] is not None:
                self._cancel(held)
        with self._lock:
            self._arm()
        self._disown(lost)

    def _watch(self, now: float) -> None:
        self._due.watch = now + _WATCH_EVERY_S
        with self._lock:
            held = dict(self._held)
        seen = self._repository(self._connected()).watch(
            [one.job.fence for one in held.values()],
            host_label=self.identity.host_label,
            queue=self.identity.queue,
        )
        for job_id in seen.cancelled & held.keys():
            self._cancel(held[job_id])
        self._disown([held[job_id] for job_id in seen.lost & held.keys()])
        self._heed(seen.control, seen.control_version)

    def _cancel(self, held: HeldJob) -> None:
        if held.ctx.stopping is None or held.ctx.stopping < Stop.CANCEL:
            _log.info("job %d was cancelled", held.job.id)
            held.tell(Stop.CANCEL, "", time.monotonic() + self.settings.cancel_grace_s)

    def _disown(self, lost: list[HeldJob]) -> None:
        """A fence that does not hold: unless the main thread has just ended the job, its lease is lost."""
        if not lost or not self.claiming.acquire(timeout=_MAIN_PATIENCE_S):
            return
        try:
            with self._lock:
                for held in lost:
                    if self._held.get(held.job.id) is held and not held.is_ending:
                        held.tell(Stop.LEASE_LOST, "", time.monotonic())
        finally:
            self.claiming.release()

    def _heed(self, control: Control | None, version: int) -> None:
        if version != self._control_version:
            # Whoever changed something waits for us to say that we know, also where it means nothing to us.
            self._control_version, self._due.beat = version, 0.0
        if control is not None and control.desired is DesiredState.ON:
            control = None
        before, self.wish = self.wish, control
        if (before and before.version) == (control and control.version):
            return
        self._due.beat = 0.0
        if control is not None:
            _log.info("operator: %s (%s)", control.desired, control.reason or control.actor)
            if control.desired is DesiredState.OFF:
                self._release_all(f"switched off by {control.actor}", time.monotonic() + _OFF_GRACE_S)
        self._on_news()

    def _release_all(self, reason: str, end_at: float) -> None:
        with self._lock:
            for held in self._held.values():
                held.tell(Stop.RELEASE, reason, end_at)

    def _beat(self, now: float) -> None:
        self._due.beat = now + self._beat_every_s
        with self._lock:
            held = list(self._held.values())
        state = self._state if not held or self._state is WorkerState.STOPPING else WorkerState.BUSY
        with self._process.oneshot():
            load = {"rss_mb": self._process.memory_info().rss >> 20, "threads": self._process.num_threads()}
        HeartbeatRepository(self._connected()).beat(
            self.identity.worker_id,
            host_label=self.identity.host_label,
            queue=self.identity.queue,
            pid=self.identity.pid,
            state=state,
            state_reason=self._state_reason,
            current_job=(held[0].job.family, held[0].job.id) if held else None,
            jobs_held=len(held),
            versions=versions(),
            load=load,
            control_version=self._control_version,
        )

    def _sweep(self, now: float) -> None:
        recovered_s = now - self._connected_at if self._was_away else None
        swept = sweep(self._connected(), self.settings, recovered_s=recovered_s)
        self._due.sweep = now + swept.next_in_s * (0.75 + self._rng.random() / 2)

    def _write_progress(self, now: float, *, final: bool = False) -> None:
        with self._lock:
            held = list(self._held.values())
        for one in held:
            text = one.ctx.take_progress(now=now, final=final)
            if text is not None:
                # A lease that is lost is the watch's to find out, who knows whether the job has just ended.
                with suppress(LeaseLost):
                    self._repository(self._connected()).beat(one.job.fence, json.loads(text))

    # The end.

    def _arm(self) -> None:
        """To the earliest lease, under the lock."""
        first = min((held.lease_until for held in self._held.values()), default=None)
        if first is None:
            self._deadman.disarm()
        else:
            self._deadman.arm(first - self._margin_s)

    def _judge(self, now: float) -> None:
        with self._lock:
            found = [(held, verdict_on(held, now)) for held in self._held.values()]
        for held, verdict in found:
            if verdict is not None:
                self._carry_out(held, verdict, now)

    def _carry_out(self, held: HeldJob, verdict: Verdict, now: float) -> None:
        """End the job, give the others back, and end the process; the lock is never given back."""
        if not self.claiming.acquire(timeout=_MAIN_PATIENCE_S):
            return  # the main thread is writing its end right now; else we come again
        with self._lock:
            others = [one for one in self._held.values() if one is not held]
            gone = self._held.get(held.job.id) is not held
        if gone:
            self.claiming.release()
            return
        outcomes = [(held, outcome_of(verdict, held, now))]
        outcomes += [(one, Released("its worker had to end another job")) for one in others]
        endings = [ending_of(how, one.job, self._backoff, self._rng.random()) for one, how in outcomes]
        _log.error("job %d: %s, so its process ends", held.job.id, verdict.value.replace("_", " "))
        try:
            self._write_progress(now, final=True)
            self._repository(self._connected()).end_many([each for each in endings if each is not None])
        except (psycopg.Error, QwfError, OSError) as exc:
            _log.warning("its end could not be written, its lease will lapse: %s", " ".join(str(exc).split()))
            self._leave(_EXITS.get(verdict, ExitCode.LEASE_LOST))
        if verdict is not Verdict.STOP:
            self._leave(_EXITS[verdict])
        if self.stopping is not None:
            self._leave(128 + self.stopping)
        self.execute_anew()

    def _leave(self, status: int) -> NoReturn:
        self._farewell()
        leave(status)

    def _farewell(self) -> None:
        with suppress(psycopg.Error, QwfError, OSError):
            HeartbeatRepository(self._connected()).delete(self.identity.worker_id)
            self._connected().close()

    def _ring(self) -> None:
        with suppress(BlockingIOError):
            os.write(self._bell_in, b"\0")


def _heard(_number: int, _frame: object) -> None:
    """The guardian has it from the descriptor; this keeps the default action from happening."""
