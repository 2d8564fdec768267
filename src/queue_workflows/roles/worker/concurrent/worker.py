"""A worker with many jobs at once: the main thread is at the database, others are at the jobs.

    main thread                                     N places: job threads, tasks of one event loop
    ───────────                                     ──────────────────────────────────────────────
    gather what has ended
    end those and claim the next: one statement ──> meanwhile jobs run, and end
    guard what came, hand it over ─────────────────> begin
    gather what has ended meanwhile …

                  ┌───────────── nothing ended, no room: wait for an end ──────────────┐
                  v                                                                    │
    gather ──> may claim? ──> room for more? ──> end and claim ──> hand over ──────────┤
                  │ no             │ no, or the queue is empty                         │
                  │                └──> end what has ended ──> idle: advertised, polls ┤
                  v                                                                    │
               wind down: what is not begun is given back, what runs may end ──────────┘
                  └── nothing is held ──> stop, park, or start afresh (`lifecycle`)

There is never more than one statement on its way, so what ends meanwhile goes with the next one: a finished
job waits for one round to the database at most, and batches are as large as the load makes them. While each
thread has work and there is room for few, ends gather until half of what waits has been begun, or for 10 ms.
A job counts as done when its end is confirmed. How far ahead is claimed is in `claim_ahead`, when a
suspect is given the worker for itself in `suspect_isolation`; what happens when the database goes away in
`common/connection`, and what ends a job that does not end in `guardian/verdicts`.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Collection, Sequence
from typing import Any, Final

import psycopg

from queue_workflows import clock as time
from queue_workflows.db.connections.failures import DATABASE_AWAY
from queue_workflows.engine.execution.guards import HeldJob
from queue_workflows.errors import ExitCode, LeaseLost, QwfError
from queue_workflows.host.processes import last_word
from queue_workflows.repositories.claims.begins import Rules, begin
from queue_workflows.repositories.claims.end import Ending
from queue_workflows.repositories.sql.claimed_job import ClaimedIngestJob, ClaimedJob
from queue_workflows.roles.worker.common.parts import WorkerParts
from queue_workflows.roles.worker.common.worker_base import WorkerBase
from queue_workflows.roles.worker.concurrent.claim_ahead import ClaimAhead
from queue_workflows.roles.worker.concurrent.end_and_claim import EndAndClaim
from queue_workflows.roles.worker.concurrent.event_loop import SharedLoop
from queue_workflows.roles.worker.concurrent.job_threads import JobThreads
from queue_workflows.roles.worker.concurrent.suspect_isolation import SuspectIsolation
from queue_workflows.states import JobStatus, WorkerState

_log = logging.getLogger(__name__)

# How long ends may gather while there is work for each thread and no room for more.
_GATHER_S: Final = 0.01
# How long jobs may take to stop by themselves when their worker cannot go on.
_FAILING_GRACE_S: Final = 1.0


class ConcurrentWorker(WorkerBase):
    """The main thread's loop, which asks the database while threads run the jobs."""

    def __init__(self, parts: WorkerParts, loop: SharedLoop) -> None:
        """Async jobs run on `loop`, each as a task of it."""
        super().__init__(
            parts,
            make_durable=self._make_durable_beside,
            after_job=parts.guardian.damage.after_one_of_several,
            # Of hooks nothing is left.
            leftovers=parts.leftovers(is_concurrent=True) if parts.hooks is None else None,
        )
        self._settings = parts.settings
        self._job_log = parts.guardian.job_log
        self._side_connection = parts.side_connection
        self.job_threads = JobThreads(
            parts.options.concurrency,
            perform=self._perform,
            ring=parts.listener.interrupt,
            begins=last_word.own.begins,
            loop=loop,
        )
        loop.serve(
            lambda held: self._job_runner.run_on_loop(held, parts.windows.calls.apart),
            begins=self._begins_on_loop,
            over=self._over_on_loop,
            broke=self._broke_on_loop,
        )
        self._room = ClaimAhead(parts.options.concurrency, parts.settings.claim_ahead)
        self._suspect_isolation = SuspectIsolation(
            parts.settings.poll_s, is_last=parts.hooks is None, rng=parts.rng
        )
        self._exchange = EndAndClaim(parts, self)
        # What the last claims have shown: nothing to claim beside other jobs, nothing to claim alone.
        self._is_empty = self._is_empty_alone = False
        self._look_at = 0.0
        # Whether a wake is certain, so that the next look is no more than the poll behind it.
        self._is_settled = False
        # When it was woken for what others of this host are to look for first.
        self._woken_at: float | None = None

    def run(self) -> ExitCode:
        """Claim and work until there is a reason to stop."""
        self._worker_connection.connected()
        self._turns.begin()
        self._lifecycle.fetch_what_waited_for_us()
        self._guardian.is_claiming = True
        # What is there by now stays: to look through it again and again would cost every job its share.
        gc.freeze()
        try:
            while (status := self._turn()) is None:
                pass
        except (psycopg.Error, QwfError):
            self._let_go_of_all()
            raise
        self.job_threads.close()
        return status

    def _turn(self) -> ExitCode | None:
        """One round: at most one statement, or a wait."""
        self._guardian.main_at = now = time.monotonic()
        self._gather(now)
        if now >= self._job_log.due:
            self._job_log.say_counted()
        may_claim = self._lifecycle.may_claim()
        if self._exchange.must_read or not may_claim or self._has_another_question(now):
            self._exchange.read()
        if not may_claim:
            return self._wind_down()
        if not self._exchange.unread:
            self._ask_else(now)
        self._see_to_wake(now)
        limit, alone = self._wanted(now)
        waiting = self.job_threads.waiting
        if limit and self._room.is_little(limit, self._in_hand() - waiting - self._over(), waiting):
            limit, alone = self._wanted_later()
        if limit:
            self._claims()
            self._woken_at = None
            self._exchange.exchange(limit, alone)
        elif self._exchange.unread:
            self._exchange.read()
        elif self._exchange.unwritten:
            self._exchange.write()
        elif self._parts.options.drain and self._is_drained():
            return None if self._fetches_more(now, at_last=True) else ExitCode.DONE
        else:
            self._wait(now)
        return None

    def _ask_else(self, now: float) -> None:
        """What there is to ask beside ends and claims."""
        if self._lifecycle.fetch_again(now):
            self.unsure()
        if self._unknown.is_due(now):
            if self._exchange.unwritten:
                # Among them are the holds that it is about.
                self._exchange.write()
            self._unknown.settle(self._worker_connection, now)
        if self._is_empty:
            self._fetches_more(now)

    # What to do next.

    @property
    def is_for_a_suspect(self) -> bool:
        """Whether all jobs were let end for a suspect, which then comes before what is not suspect."""
        return self._suspect_isolation.is_wanted

    def _is_drained(self) -> bool:
        return self._is_empty_alone and not self._holdings.count()

    def _in_hand(self) -> int:
        """How many jobs are held that take a place."""
        return self._holdings.count()

    def _over(self) -> int:
        """How many of these have ended, and are held until that is confirmed."""
        return len(self._exchange.unwritten) + self._exchange.ending

    def _has_another_question(self, now: float) -> bool:
        """Whether the database is to be asked something else than to end and to claim."""
        suspect_isolation = self._suspect_isolation
        return (
            self._unknown.is_due(now)
            or suspect_isolation.is_wanted
            or suspect_isolation.must_look(now)
            or self._lifecycle.must_ask(now)
        )

    def _gather(self, now: float) -> None:
        """Gather what has ended, and what has waited for too long."""
        ended = self.job_threads.ended()
        if ended:
            self._room.ended(len(ended), sum([held.ended - held.started for held in ended]))
            self._exchange.unwritten += ended
            self._look_pace.found(now)
        waiting = self.job_threads.waiting
        give_back_at = self._room.give_back_at(waiting)
        if give_back_at is not None and now >= give_back_at and not self._room.keeps(waiting, now):
            self._take_back()

    def _take_back(self) -> None:
        """What no thread has begun goes back to its place, uncounted."""
        back = self.job_threads.take_back()
        self._room.taken_back(len(back))
        for held in back:
            held.ending, held.is_ending = Ending(held.job.fence, JobStatus.QUEUED), True
        self._exchange.unwritten += back

    def _wanted(self, now: float) -> tuple[int, bool]:
        """How many jobs to claim now, and whether alone."""
        in_hand, unread = self._in_hand(), self._exchange.unread
        if not in_hand and (self._suspect_isolation.is_wanted or self._is_empty):
            # Whatever there is beside this worker's own jobs has been looked at: the head, whatever it is.
            return (0, False) if self._is_empty_alone and now < self._look_at else (1, True)
        if self._is_being_alone(in_hand, now):
            return 0, False
        if self._is_empty and now < self._look_at:
            return 0, False
        waiting = self.job_threads.waiting
        free = self._room.free(in_hand - waiting - self._over(), waiting, now, unread=unread)
        left = self._lifecycle.left() - self._holdings.count() - unread
        return int(max(0, min(free, left, self._room.at_a_time))), False

    def _wanted_later(self) -> tuple[int, bool]:
        """How many jobs to claim, and whether alone, when the threads have begun half of theirs, or soon."""
        if (waiting := self.job_threads.waiting) > 1:
            self.job_threads.gathered(lambda: self._listen(_GATHER_S), waiting=waiting // 2)
        else:
            self._listen(_GATHER_S)
        now = time.monotonic()
        self._gather(now)
        return self._wanted(now)

    def _is_being_alone(self, in_hand: int, now: float) -> bool:
        """Whether a suspect is held, or all other jobs are let end for one."""
        if in_hand == 1 and any(held.job.suspect for held in self._holdings.all()):
            return True
        if in_hand and self._suspect_isolation.must_look(now):
            self._suspect_isolation.seen(self._suspect_waits(), now)
            if self._suspect_isolation.is_wanted:
                _log.info("it is a suspect's turn: claiming nothing until the jobs in hand have ended")
                self._take_back()
        return self._suspect_isolation.is_wanted and not self._suspect_isolation.lost_patience(now)

    def _suspect_waits(self) -> bool:
        try:
            return self._worker_connection.repository().has_suspect(
                self._queue, but=self._guardian.terms.lacked
            )
        except DATABASE_AWAY as exc:
            self._exchange.lost(exc)
            return False

    def _wind_down(self) -> ExitCode | None:
        """Nothing more is claimed; when nothing is held this ends, parks, or starts the worker afresh."""
        if self.job_threads.waiting:
            self._take_back()
        if self._exchange.unwritten:
            self._exchange.write()
        elif self._holdings.count():
            self._await(self._settings.poll_s)
        elif (status := self._lifecycle.reason_to_stop()) is not None:
            return status
        elif self._guardian.wish is not None:
            self._lifecycle.park(self._guardian.wish)
            self._is_empty = self._is_empty_alone = False
        return None

    def _let_go_of_all(self) -> None:
        """What runs goes back before a failure ends the worker: no job is to blame for it."""
        self._exchange.read()
        self._guardian.release_all("its worker failed", time.monotonic() + _FAILING_GRACE_S)
        while self._holdings.count():
            self._guardian.main_at = now = time.monotonic()
            self._gather(now)
            self._take_back()
            if self._exchange.unwritten:
                self._exchange.write()
            else:
                self._await(self._settings.poll_s)

    def _wait(self, now: float) -> None:
        """Wait for the end of a job, or where a writer's NOTIFY finds us."""
        timeout = self._settings.poll_s
        if self._is_empty and self._look_at > now:
            timeout = min(self._idle_for(now), self._lifecycle.fetch_in(now))
        else:
            # There is no room, also for what may have come; a job that makes some by its end rings.
            self.unsure()
            self._turns.leave()
            self._lifecycle.leave_idle()
        give_back_at = self._room.give_back_at(self.job_threads.waiting)
        if give_back_at is not None:
            timeout = min(timeout, give_back_at - now)
        timeout = min(timeout, self._job_log.due_in(now))
        self._await(timeout)

    def _idle_for(self, now: float) -> float:
        """How long to wait for a wake, once this queue is advertised."""
        if not self._holdings.count():
            self._guardian.doing(WorkerState.IDLE)
        self._turns.wait_in_line(is_free=not self._holdings.count())
        self._advertise()
        if (again := self._look_again_in(now)) is not None:
            self._look_at = min(self._look_at, now + again)
        self._is_settled = again is None
        return self._look_at - now

    def _await(self, timeout: float) -> None:
        self.job_threads.awaited(lambda: self._listen(max(0.0, timeout)))

    def _listen(self, timeout: float) -> None:
        if (wake := self._listener.wait(timeout)) is None:
            self._guardian.cut_if_stuck()
            self._side_connection.cut_if_stuck(self._settings.stale_heartbeat_s)
            if not self._holdings.count():
                self._rest()
            is_known = self._is_settled and self._is_empty_alone
            # What was polled before a wake says nothing of what that is for.
            if self._woken_at is None and is_known and self._is_polled_for():
                self._look_at = time.monotonic() + self._poll_s()
        elif self._guardian.poll.take_found():
            self.unsure()
        elif wake.reason != "interrupted":
            self._look_pace.found(time.monotonic())
            self._is_woken(for_a_job=wake.reason == "notified")

    def _is_woken(self, *, for_a_job: bool) -> None:
        """There may be something to claim: look in turn with the other workers of this host, or at once."""
        now = time.monotonic()
        must_look = not (for_a_job and self._is_settled and self._is_empty)
        pause = 0.0 if must_look else self._turns.pause(is_resting=self._guardian.is_resting)
        if pause:
            self._looks_unless_seen_to(now, now + pause)
        else:
            self.unsure()

    def _looks_unless_seen_to(self, woken: float, at: float) -> None:
        # Woken again while it waits it looks no later, unless another has looked since this wake.
        self._look_at = min(self._look_at, at) if self._woken_at is None else self._look_at
        self._woken_at = woken

    def _see_to_wake(self, now: float) -> None:
        """Look for what this worker was woken for, unless another has since, and left nothing."""
        if self._woken_at is None or now < self._look_at:
            return
        if self._is_empty and self._turns.is_seen_to(self._woken_at):
            self._look_at = now + self._poll_s()
        else:
            self.unsure()
        self._woken_at = None

    # What a claim brought.

    def held(self, jobs: Sequence[ClaimedJob], reading: float) -> list[HeldJob]:
        """Jobs that were claimed after this reading of the clock, as they are guarded.

        But for what runs here already, as a server that crashed had forgotten the claim: that goes on.
        """
        return [self._held_job(job, reading) for job in jobs if not self._holdings.has_attempt(job)]

    def taken(self, claimed: list[HeldJob], *, alone: bool) -> None:
        """The claimed jobs are guarded, and may begin."""
        self._learn(alone)
        if claimed:
            self._look_pace.found(time.monotonic())
        self._hand_over(claimed)

    def unsure(self) -> None:
        """There may be something to claim, whatever was seen before."""
        self._is_empty = self._is_empty_alone = False

    def _fetches_more(self, now: float, *, at_last: bool = False) -> bool:
        """Whether there is something to claim after all, in an empty queue: what others do not know."""
        if is_more := super()._fetches_more(now, at_last=at_last):
            self.unsure()
        return is_more

    def _learn(self, alone: bool) -> None:
        """Whether the queue is empty, and when to look again."""
        if alone:
            self._suspect_isolation.had()
        if self._marks.full:
            self._is_empty = self._is_empty_alone = False
        elif self._marks.empty:
            self._is_empty = True
            self._is_empty_alone = alone
            self._look_at = time.monotonic() + self._poll_s()
        else:
            # Short, but it has not looked at everything.
            self._is_empty = self._is_empty_alone = False

    def _hand_over(self, claimed: list[HeldJob]) -> None:
        unknown, on_loop = self._job_runner.sort([held.job for held in claimed])
        if unknown:
            claimed = [held for held in claimed if not self._puts_aside(held, unknown)]
        if on_loop:
            for held in claimed:
                held.is_async = isinstance(held.job, ClaimedIngestJob) and held.job.task_name in on_loop
        self._room.is_at(self._guardian.round_trip_s)
        self._room.asked(self._exchange.took_s)
        self._room.handed(len(claimed), time.monotonic())
        self.job_threads.put(claimed)

    def _puts_aside(self, held: HeldJob, unknown: Collection[str]) -> bool:
        job = held.job
        if not isinstance(job, ClaimedIngestJob) or job.task_name not in unknown:
            return False
        held.ending, held.is_ending = self._job_runner.put_aside(job), True
        self._exchange.unwritten.append(held)
        self._unknown.met(job.task_name)
        return True

    # In the threads of the jobs.

    def _make_durable_beside(self, job: ClaimedJob, rules: Rules | None = None, /) -> bool:
        repository, lease_s = self._guardian.terms.repository, self._holdings.lease_s

        def write(connection: psycopg.Connection[Any]) -> None:
            if rules is not None:
                begin(connection, job, rules, lease_s=lease_s)
            else:
                repository(connection).make_durable(job.fence, lease_s=lease_s)

        try:
            self._side_connection.ask(job, write)
        except LeaseLost:
            return False
        return True

    def _perform(self, held: HeldJob) -> None:
        try:
            held.ending = self._run_job(held)
        except BaseException as exc:
            held.ending = self._ending_without_run(held, exc)

    def _ending_without_run(self, held: HeldJob, exc: BaseException) -> Ending | None:
        self._guardian.damage.leave_if_at_fault(exc)
        if isinstance(exc, DATABASE_AWAY):
            return self._job_runner.not_run(held.job, held.ctx)
        _log.error("job %d could not be run: %s", held.job.id, type(exc).__name__)
        return self._job_runner.failed(exc, held.job, held.ctx)

    # On the event loop.

    def _begins_on_loop(self, place: int, job_id: int) -> None:
        # What coroutines start is nobody's in particular: it is ended with the worker, by its mark.
        if self._leftovers is not None:
            self._leftovers.mark()
        last_word.own.begins(place, job_id)

    def _over_on_loop(self, place: int, held: HeldJob) -> HeldJob | None:
        self._after_job()
        return self.job_threads.over_on_loop(place, held)

    def _broke_on_loop(self, held: HeldJob, exc: BaseException) -> Ending | None:
        if isinstance(exc, asyncio.CancelledError):
            return self._job_runner.ended_from_outside(exc, held.job, held.ctx)
        return self._ending_without_run(held, exc)
