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

While the database is away nothing here waits for it but the next try to connect.
"""

from __future__ import annotations

import logging
import math
import random
import signal
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

import psycopg

from queue_workflows import clock as time
from queue_workflows.config import HOOKS_QUEUE
from queue_workflows.db.connections.failures import DATABASE_FAILED
from queue_workflows.db.connections.kept_line import Line
from queue_workflows.db.listen.listener import Listener
from queue_workflows.engine.execution.guards import HeldJob, next_verdict_at
from queue_workflows.engine.limits.lane_upkeep import LaneWalk
from queue_workflows.engine.outcomes import Stop
from queue_workflows.engine.upkeep.tick import Seen, look_with, sweep
from queue_workflows.errors import ExitCode, QwfError
from queue_workflows.host.kernel import LEFT_ALONE
from queue_workflows.host.processes.harden import RETIRE
from queue_workflows.host.processes.lease_timer import DeadMan
from queue_workflows.host.processes.tree_by_mark import die_with_parent
from queue_workflows.repositories.claims.hold_lease import Watched
from queue_workflows.repositories.sql.connection import Questions
from queue_workflows.repositories.workers.control import Control
from queue_workflows.roles.identity import Identity
from queue_workflows.roles.probes.health import Pulse
from queue_workflows.roles.process_exit import die_of, end_children, execute_anew
from queue_workflows.roles.process_exit import leave as leave_process
from queue_workflows.roles.worker.claims.terms import ClaimTerms
from queue_workflows.roles.worker.guardian.claim_mutex import FairMutex
from queue_workflows.roles.worker.guardian.heartbeat import Telling
from queue_workflows.roles.worker.guardian.held_jobs import HeldJobs
from queue_workflows.roles.worker.guardian.idle_poll import IdlePoll
from queue_workflows.roles.worker.guardian.lease_watch import LeaseWatch
from queue_workflows.roles.worker.guardian.lost_leases import LostLeases
from queue_workflows.roles.worker.guardian.outage import OutageWatch
from queue_workflows.roles.worker.guardian.process_damage import ProcessDamage
from queue_workflows.roles.worker.guardian.process_end import FLUSH_S, ProcessEnd
from queue_workflows.roles.worker.guardian.stop_requests import StopRequests
from queue_workflows.roles.worker.guardian.stop_signals import StopSignals
from queue_workflows.roles.worker.guardian.verdicts import Judge
from queue_workflows.roles.worker.job_log import JobLog
from queue_workflows.settings import Settings
from queue_workflows.states import DesiredState, WorkerState
from queue_workflows.telemetry.provider import flush

if TYPE_CHECKING:
    from queue_workflows.gpu.cache import ModelCache
    from queue_workflows.gpu.kept_sizes import KeptSizes
    from queue_workflows.roles.agent_link.watch import AgentWatch

_log = logging.getLogger(__name__)

_WATCH_EVERY_S: Final = 1.0
_LONGEST_ROUND_S: Final = 1.0
_SHORTEST_ROUND_S: Final = 0.005
_ABSORB_AGAIN_S: Final = 0.02
# So many workers sweep each second, each; more of them take turns, and how long one's turn may take to come.
_SWEEPERS: Final = 4
_SWEEPS_AFTER_S: Final = 1.0
_LONGEST_TURN_S: Final = 5.0
# What is due so soon is seen to in the same round: to be woken costs more than most duties.
_TOGETHER_S: Final = 0.25
_RECONNECT_EVERY_S: Final = 0.5
# How long a job that an operator switches off may take to stop by itself: `off` is obeyed within two seconds.
_OFF_GRACE_S: Final = 0.5
# Of so many watches, one a second, the quickest answer says how far away the server is: busy processors make
# some of them late, not all.
_ROUND_TRIPS: Final = 60
# How long the end of the process waits for a statement of this thread that gets no answer.
_LAST_ROUND_S: Final = 5.0


def _nothing() -> None:
    """What most ends do last."""


def _sizes_of(models: ModelCache | None) -> KeptSizes | None:
    """For workers that load models; the others have no use for what it takes."""
    if models is None:
        return None
    from queue_workflows.gpu.kept_sizes import KeptSizes

    return KeptSizes(models)


@dataclass(slots=True)
class _Due:
    """When each duty is due next, on the monotonic clock."""

    watch: float = 0.0
    sweep: float = 0.0
    declare: float = 0.0
    publish: float = 0.0
    sizes: float = 0.0
    connect: float = 0.0
    absorb: float = 0.0


class Guardian:
    """Guards the jobs that its worker holds; started before the first claim, closed after the last."""

    def __init__(
        self,
        identity: Identity,
        settings: Settings,
        terms: ClaimTerms,
        *,
        connect: Callable[[], psycopg.Connection[Any]],
        deadman: DeadMan,
        listener: Listener,
        grace_s: float,
        launcher_pid: int | None = None,
        withdraws: bool = True,
        is_barred: Callable[[HeldJob], bool] | None = None,
        declare: Callable[[psycopg.Connection[Any]], float] | None = None,
        agent: AgentWatch | None = None,
        slots: int = 1,
    ) -> None:
        """The main thread waits at `listener`: it is woken there, and has its notifications read meanwhile.

        The guardian `withdraws` what the main thread advertised while that is at a job for longer; where
        threads run the jobs, it never is.

        `is_barred` is given where jobs share the process: it says whether one is kept from going on by
        another, and one that overruns is asked to stop before the others are given back for it. `declare`
        puts into force what this code says of limits, and tells in how many seconds to call it again. While
        the worker rests, `agent` asks for it. Heartbeats tell how many `slots` it has for jobs.
        """
        self.identity = identity
        self.settings = settings
        self.terms = terms
        self.holdings = HeldJobs(deadman, terms.lease_s)
        self.claiming = FairMutex()
        self.is_claiming = False
        self.stopping: int | None = None
        self.wish: Control | None = None
        self.jobs_done = 0
        self.main_at = self._round_at = self._database_at = time.monotonic()
        self._line = Line(connect)
        self._deadman = deadman
        self._listener = listener
        self._withdraws = withdraws
        self._grace_s = grace_s
        self._launcher_pid = launcher_pid
        self.outage = OutageWatch(self.holdings, deadman, self.terms.kept)
        self.outage.cuts(self._line.cut_if_stuck)
        self._round_s = min(_LONGEST_ROUND_S, settings.renew_for(identity.queue) / 2)
        self._rng = random.Random()  # noqa: S311
        self._telling = Telling(identity, settings, self.holdings, terms.models, terms.published, slots=slots)
        self._sizes = _sizes_of(terms.models)
        self._connected_at = 0.0
        self._questions: Questions | None = None
        self.poll = IdlePoll(terms, settings.poll_s, random.Random())  # noqa: S311
        self._took_s: deque[float] = deque(maxlen=_ROUND_TRIPS)
        self.round_trip_s = 0.0
        self._was_away = False
        self._agent = agent
        self._heard_at = -math.inf
        # Whether the main thread leaves waiting to others of this host, and whether the agent asks meanwhile.
        self.is_resting = self.is_served = False
        # What may die of its first job leaves sweeping to those that live.
        self._due = _Due(sweep=time.monotonic() + _SWEEPS_AFTER_S if identity.part else 0.0)
        self._lanes = LaneWalk()
        self._declare = declare
        self.lost = LostLeases(self.holdings)
        self.job_log = JobLog()
        self._leases = LeaseWatch(
            identity,
            settings,
            terms,
            connected=self.connected,
            holdings=self.holdings,
            claiming=self.claiming,
            lost=self.lost,
        )
        self._closing = False
        self.stops = StopRequests(
            self.holdings,
            grace_s=grace_s,
            asked_s=settings.cancel_grace_s,
            has_hooks=identity.queue == HOOKS_QUEUE,
            launcher_pid=launcher_pid,
        )
        self._judge = Judge(
            self.holdings,
            self.stops,
            models=terms.models,
            load_timeout_s=settings.model_load_timeout_s,
            is_barred=is_barred,
        )
        self._process_end = ProcessEnd(self, self._judge)
        self.stop_signals = StopSignals(self._stop_is_asked)
        self.damage = ProcessDamage(self.stop_signals, self.holdings)
        self._thread = threading.Thread(target=self._run, name="qwf-guardian", daemon=True)

    # What the main thread calls.

    def start(self) -> None:
        """Take the signals, say hello, learn what the operator wants; raises if the database is away."""
        self.stop_signals.begin()
        die_with_parent(self._launcher_pid, with_signal=LEFT_ALONE)
        now = time.monotonic()
        self._watch(now)
        self._publish(now)
        self._see_to_sizes(now)
        self._tell(now)
        # Only from here on is this worker seen by those that ask for something and then look at all workers.
        self._watch(now)
        self._see_to_declarations(now)
        if not self.identity.part:
            # A drain would else find nothing, and leave what is taken back a moment later.
            with suppress(*DATABASE_FAILED):
                self._sweep(now)
        self._thread.start()
        self.outage.start()

    def close(self) -> None:
        """Stop guarding a worker that holds nothing, and take the heartbeat back; signals are heard on."""
        self._closing = True
        self.stop_signals.ring()
        self._thread.join(_LAST_ROUND_S)
        self.outage.close()
        self._deadman.disarm()
        if not self._thread.is_alive():
            self._farewell()

    def hold(self, held: HeldJob) -> None:
        """Guard a job with a confirmed claim; one that meets a stop on its way here is not begun."""
        self.exchange([held], [])

    def exchange(self, taken: Sequence[HeldJob], dropped: Sequence[HeldJob]) -> None:
        """Guard a batch of jobs with confirmed claims, and guard no more a batch with confirmed ends."""
        for before in self.holdings.exchange(taken, dropped):
            _log.warning("job %d: it was lost, and is claimed here again", before.job.id)
            self.lost.add(before.job)
            before.tell(Stop.LEASE_LOST, "", time.monotonic())
            self.stop_signals.ring()
        if self.stopping is not None:
            for held in taken:
                held.tell(Stop.RELEASE, "its worker stops", time.monotonic() + self._grace_s)
        elif self.wish is not None:
            for held in taken:
                held.tell(Stop.RELEASE, "its queue is not on", time.monotonic() + _OFF_GRACE_S)

    def release_all(self, reason: str, end_at: float) -> None:
        """Ask every job to stop, and end those that have not by then."""
        self.holdings.tell_all(lambda held: held.tell(Stop.RELEASE, reason, end_at))

    @property
    def looking(self) -> int:
        """How many others looked at this worker's queue, as they hear no wake, when it beat last."""
        return self._telling.others.looking

    def doing(self, state: WorkerState, reason: str | None = None) -> None:
        """What the next heartbeat says; a change is told at once."""
        if self._telling.doing(state, reason):
            self.stop_signals.ring()

    def cut_if_stuck(self) -> None:
        """Let the guarding thread connect anew if it gets no answer; with a job in hand the timer sees to it.

        The operator's word comes by its connection: behind a network that acknowledges for ever a worker that
        is parked would never hear it.
        """
        if not self.holdings.all():
            self._line.cut_if_stuck(self.settings.stale_heartbeat_s)

    def pulse(self) -> Pulse:
        """How this worker gets on, for a probe; from any thread."""
        wish = self.wish
        obstacle = None
        if self.stopping is not None:
            obstacle = "it was told to stop"
        elif wish is not None:
            obstacle = f"the operator asked for {wish.desired}: {wish.reason or wish.actor}"
        elif not (self._line.is_up or self.is_served):
            obstacle = "it has no database"
        elif not self.is_claiming:
            obstacle = "it is starting"
        return Pulse(
            worker_id=self.identity.worker_id,
            state=self._telling.state,
            main_at=self.main_at,
            guardian_at=self._round_at,
            database_at=self._database_at,
            is_busy=bool(self.holdings.all()),
            obstacle=obstacle,
        )

    def execute_anew(self, last: Callable[[], None] = _nothing) -> NoReturn:
        """Start this worker afresh, under the same name, or end it if it was told to stop.

        It must hold nothing but what it gives back by `last`, which is done at the very last moment.
        """
        end_children()
        self.job_log.say_counted(at_last=True)
        if not self.holdings.all():
            flush(FLUSH_S)
        if self.stop_signals.hand_over() or self.stopping is not None:
            self.leave(ExitCode.DONE, last)
        execute_anew(self._launcher_pid, self.identity, self.identity.jobs_done + self.jobs_done, last)

    def _stop_is_asked(self, number: int) -> None:
        """Note a stop in the main thread: an idle worker stops also if the guardian waits for an answer."""
        if self.stopping is None:
            self.stopping = number
        self._listener.interrupt()

    # The thread.

    def _run(self) -> None:
        try:
            while not self._closing:
                self._hear(self._next_round(time.monotonic()))
                self._round()
            # An idle worker may have stopped for a signal that came in this round: the log says so.
            self._hear(0)
        except MemoryError:
            _log.critical("there is no memory left to guard jobs with, so the worker ends")
            self.leave(ExitCode.FAILED)
        except BaseException as exc:
            self.damage.leave_if_closed()
            self.damage.leave_if_at_fault(exc)
            # What it holds is taken back when the lease lapses. A job may have replaced what writes the log.
            try:
                _log.exception("the guardian failed, so the worker ends")
            finally:
                self.leave(ExitCode.FAILED)

    def _next_round(self, now: float) -> float:
        if self.is_served:
            lifecycle = min(self._telling.due_at, self._due.watch)
        elif self._line.is_up:
            lifecycle = min(self._telling.due_at, self._due.watch, self._due.sweep)
        else:
            lifecycle = self._due.connect
        verdict = min(map(next_verdict_at, self.holdings.all()), default=lifecycle)
        return max(_SHORTEST_ROUND_S, min(verdict, lifecycle, self._due.absorb, now + self._round_s) - now)

    def _hear(self, within_s: float) -> None:
        for number in self.stop_signals.wait(within_s):
            self._stop(number)

    def _stop(self, number: int) -> None:
        if number == RETIRE:
            # Those that it holds may take as long as they like; only no other is begun.
            self.stopping = self.stopping or number
        else:
            self.stopping = number if self.stopping in (None, RETIRE) else self.stopping
            self.stops.hear(number)
        self.doing(WorkerState.STOPPING)
        self._listener.interrupt()

    def _round(self) -> None:
        self.damage.leave_if_closed()
        self._round_at = now = time.monotonic()
        for ruling in self._judge.rulings(now, is_stopping=self.stopping is not None):
            self._process_end.carry_out(ruling, now)
        if now + _TOGETHER_S >= self._due.absorb:
            self._due.absorb = now + _WATCH_EVERY_S
            self.terms.locks.follow()
            with suppress(QwfError):
                if self._listener.absorb(withdraw=lambda: self._withdraws and self._is_at_a_job(now)):
                    self._due.absorb = now + _ABSORB_AGAIN_S
        self._deadman.recheck()
        self.is_served = self._is_seen_to(now)
        if self.is_served or (not self._line.is_up and now < self._due.connect):
            return
        try:
            self.connected()
            with self._line.asking():
                self._see_to_duties(now)
        except DATABASE_FAILED as exc:
            self._lost_touch(exc)

    def _is_seen_to(self, now: float) -> bool:
        """Heed what the host's agent tells, where it asks for this worker; then no connection is needed."""
        if self._agent is None:
            return False
        is_idle = self._telling.state is WorkerState.IDLE and not self.holdings.count()
        if not (self.is_resting and is_idle and self.stopping is None):
            self._agent.leave()
            return False
        if (told := self._agent.told(now)) is None or not self._agent.is_steady(now):
            if self.is_served:
                # It may have gone with what it was to write.
                self._telling.hurry()
            return False
        is_news, self._heard_at = told.heard_at != self._heard_at, told.heard_at
        if is_news and told.sweeps:
            # Nobody else does: for this round it asks by itself.
            self._due.sweep = now
            return False
        self._line.let_go()
        self._due.watch, self._database_at = now + _WATCH_EVERY_S, told.heard_at
        if is_news:
            self._heed(told.watched)
            if self.poll.told(told.heard_at, told.found):
                self._listener.interrupt()
        if self._must_tell(now):
            hears = self._listener.state == "listening"
            return self._agent.beat(self.identity.worker_id, self._telling.words(now, hears=hears), now)
        return True

    def _is_at_a_job(self, now: float) -> bool:
        return self._telling.lasting_job(now) is not None

    def _see_to_duties(self, now: float) -> None:
        self._leases.renew()
        self.write_progress(now)
        soon = now + _TOGETHER_S
        watches, sweeps = soon >= self._due.watch, soon >= self._due.sweep
        if watches and self.terms.models is not None:
            self.terms.models.look_at_peak()
        questions = self._asking()
        # What an idle worker asks is one transaction for all of it.
        heard = self._tell_with(questions, now) if self._must_tell(now) else None
        watched = self._leases.look_with(questions, now) if watches else None
        seen = look_with(questions, self.settings) if sweeps else None
        found = self._poll_with(questions, now) if watches else None
        questions.ask()
        if heard is not None:
            heard()
        if watched is not None:
            self._due.watch = now + _WATCH_EVERY_S
            self._answered(questions.took_s)
            self._heed(watched())
            self._database_at = now
        if found is not None and found():
            self._listener.interrupt()
        if self._telling.is_due(now):
            self._tell(now)
        if seen is not None:
            self._sweep(now, seen())
            if now >= self._due.declare:
                self._see_to_declarations(now)
            if now >= self._due.publish:
                self._publish(now)
            if now >= self._due.sizes:
                self._see_to_sizes(now)
        self.lost.clear(self.connected())

    def _must_tell(self, now: float) -> bool:
        return now + _TOGETHER_S >= self._telling.due_at or self._telling.is_due(now)

    def _asking(self) -> Questions:
        connection = self.connected()
        if self._questions is None or self._questions.handle is not connection:
            self._questions = Questions(connection)
        return self._questions

    def _poll_with(self, questions: Questions, now: float) -> Callable[[], bool] | None:
        is_idle = self._telling.state is WorkerState.IDLE and not self.holdings.count()
        return self.poll.ask_with(questions, now, now + _TOGETHER_S) if is_idle else None

    def connected(self) -> psycopg.Connection[Any]:
        if self._line.is_up:
            return self._line.connected()
        connection = self._line.connected()
        self._connected_at = time.monotonic()
        if self._was_away:
            _log.info("the database answers again")
        return connection

    def _lost_touch(self, exc: Exception) -> None:
        self.damage.leave_if_closed()
        self.damage.leave_if_at_fault(exc)
        if self._line.let_go() or not self._was_away:
            _log.warning("the guardian has no database: %s", " ".join(str(exc).split()))
        self._was_away = True
        self._due.connect = time.monotonic() + _RECONNECT_EVERY_S * (0.5 + self._rng.random())

    # The duties, each of which may find the database gone.

    def _watch(self, now: float) -> None:
        self._due.watch = now + _WATCH_EVERY_S
        questions = self._asking()
        watched = self._leases.look_with(questions, now)
        questions.ask()
        self._answered(questions.took_s)
        self._heed(watched())

    def _answered(self, took_s: float) -> None:
        """Learn how far away the server is, by the answer to questions that take it no time."""
        self._took_s.append(took_s)
        self.round_trip_s = min(self._took_s)

    def _heed(self, seen: Watched) -> None:
        control, version = seen.control, seen.control_version
        if version != self._telling.control_version:
            # What changed something waits until we say that we know, even if it means nothing to us.
            self._telling.control_version = version
            self._telling.hurry()
        if control is not None and control.desired is DesiredState.ON:
            control = None
        before, self.wish = self.wish, control
        if (before and before.version) == (control and control.version):
            return
        self._telling.hurry()
        if control is not None:
            _log.info("operator: %s (%s)", control.desired, control.reason or control.actor)
            if control.desired is DesiredState.OFF:
                self.release_all(f"switched off by {control.actor}", time.monotonic() + _OFF_GRACE_S)
        self._listener.interrupt()

    def _tell_with(self, questions: Questions, now: float) -> Callable[[], None]:
        try:
            return self._telling.tell_with(questions, now, hears=self._listener.state == "listening")
        except QwfError as refused:
            # What else is asked in this round, a cancel above all, does not wait for better words.
            _log.warning("a heartbeat is not written: %s", refused)
            return _nothing

    def _tell(self, now: float) -> None:
        questions = self._asking()
        heard = self._tell_with(questions, now)
        questions.ask()
        heard()

    def _sweep(self, now: float, seen: Seen | None = None) -> None:
        # Not from `now`, which was read before this round connected.
        recovered_s = time.monotonic() - self._connected_at if self._was_away else None
        swept = sweep(self.connected(), self.settings, recovered_s=recovered_s, lanes=self._lanes, seen=seen)
        # Each look reads an entry of all that runs: where there are hundreds they would cost the server more
        # than their jobs do.
        workers = 1 + self._telling.others.number
        turn_s = min(_LONGEST_TURN_S, max(1.0, workers / _SWEEPERS) * swept.next_in_s)
        self._due.sweep = now + turn_s * (0.75 + self._rng.random() / 2)

    def _see_to_declarations(self, now: float) -> None:
        if self._declare is not None:
            self._due.declare = now + self._declare(self.connected())

    def _publish(self, now: float) -> None:
        """Tell what this worker's code knows, before its first heartbeat names it."""
        if self.terms.published is not None:
            self._due.publish = now + self.terms.published.keep(self.connected())

    def _see_to_sizes(self, now: float) -> None:
        """Keep what models took of the device."""
        if self._sizes is None:
            self._due.sizes = math.inf
            return
        self._due.sizes = now + self._sizes.keep(self.connected(), now)

    def write_progress(self, now: float, *, final: bool = False) -> None:
        said = [(one, one.ctx.take_progress(now=now, final=final)) for one in self.holdings.all()]
        if not (beats := [(one.job.fence, text) for one, text in said if text is not None]):
            return
        repository = self.terms.repository(self.connected())
        # A lost lease is for the watch to find out, which knows whether the job has just ended.
        try:
            repository.beat_many(beats)
        except psycopg.DataError:
            # What the server will not have of one job is nothing to the others.
            for beat in beats:
                with suppress(psycopg.DataError):
                    repository.beat_many([beat])

    # The end.

    def leave(self, status: int, last: Callable[[], None] = _nothing) -> NoReturn:
        """End the process; `last` is the last that it does."""
        try:
            self.job_log.say_counted(at_last=True)
            self._farewell(lets_go=last is _nothing)
        finally:
            leave_process(status, last)

    def crash(self) -> NoReturn:
        self.stop_signals.hand_over()
        die_of(self.stopping or signal.SIGTERM)

    def _farewell(self, *, lets_go: bool = True) -> None:
        if self.terms.published is not None:
            with suppress(*DATABASE_FAILED):
                self.terms.published.seen_last(self.connected())
        if self._sizes is not None:
            with suppress(*DATABASE_FAILED):
                self._sizes.keep(self.connected(), time.monotonic())
        with suppress(*DATABASE_FAILED):
            self._telling.farewell(self.connected())
            if lets_go:
                self._line.let_go()
