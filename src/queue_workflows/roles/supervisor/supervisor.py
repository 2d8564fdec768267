"""The supervisor: starts workers by exec, watches them by pidfd, replaces those that end, and buries them.

One slot for each process that shall be there; a slot has one incarnation after the other:

    waiting ──due──> living ──pidfd──> ended ──its tree is swept, it is waited for──> buried ──┬──> waiting
       ^               │                 ^                                                     ├──> done
       │               └─ its tree is killed: flagged dead, silent, or too slow to stop        └──> parked
       └──────────── the operator switches its queue on ───────────────────────────────────────────────┘

Everything here runs in the main thread, which is permanent: a child dies with the thread that spawned it. It
never waits for anything but its selector. What takes time is done by other threads, which ring when they are
through: one asks the database, and each process tree that has to end has one of its own.

A child is not waited for until its tree is swept, so that its pid stays its own meanwhile. The sweep comes
before the next incarnation, which may need what the leftovers hold, such as a GPU's memory.

An orchestrator or a scheduler has a slot like a worker's. It holds no jobs, so there is nothing to bury, and
its signs of life come through a pipe; and when all are stopped it comes last, as an orchestrator acts on what
the workers finished.
"""

from __future__ import annotations

import logging
import os
import random
import secrets
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Final

from queue_workflows.errors import ExitCode
from queue_workflows.host.processes.harden import ASKED, RETIRE
from queue_workflows.host.processes.launcher import Started, tell, watch
from queue_workflows.host.processes.oom_kills import MemoryCgroups
from queue_workflows.host.processes.pid1 import TIMER_IN_WORDS, has_announced_kill
from queue_workflows.host.systemd import ServiceManager
from queue_workflows.roles import loop
from queue_workflows.roles.identity import given_to
from queue_workflows.roles.loop import Halt, Urgency, Waiter
from queue_workflows.roles.supervisor.database_thread import DatabaseThread, DeadWorker, Wanted
from queue_workflows.roles.supervisor.gpu_placement import Placement
from queue_workflows.roles.supervisor.liveness import Liveness, Signs
from queue_workflows.roles.supervisor.restarts import Next, Restarts, acted_on, crashed, describe
from queue_workflows.roles.supervisor.single_job_processes import Isolation
from queue_workflows.roles.supervisor.slots import Life, Slot, Spec, slots_of
from queue_workflows.roles.supervisor.spares import Spares
from queue_workflows.roles.supervisor.start_child import Outlet, started
from queue_workflows.roles.tree_end_thread import Sweep
from queue_workflows.settings import Settings

_log = logging.getLogger(__name__)

_LOOK_EVERY_S: Final = 1.0
_RELEASE_S: Final = 5.0  # beyond the grace, for a worker that has to give back its job
_AT_ONCE_S: Final = 2.0
# How long a worker is not replaced until it is known whether it died of its jobs.
_KNOWN_WITHIN_S: Final = 1.0
# So many deaths in a row that no job explains are made good by a start from nothing.
_MENDED_AFTER: Final = 4
# How soon to look again for the spare that a worker is to be forked from.
_SPARE_COMES_S: Final = 0.05
_LAST_BURIALS_S: Final = 5.0
LONGEST_STOP_S: Final = _RELEASE_S + _LAST_BURIALS_S  # beyond the grace; the examples in docs/ allow for it


class Supervisor:
    """Keeps the workers of `specs` running until it is told to stop or all have finished.

    `command_for` says what to exec for a spec; it finds its incarnation, and with it its worker id, in the
    environment.
    """

    def __init__(
        self,
        specs: Sequence[Spec],
        *,
        command_for: Callable[[Spec], Sequence[str]],
        settings: Settings,
        database_thread: DatabaseThread,
        waiter: Waiter,
        halt: Halt,
        spares: Spares[Spec],
        placement: Placement | None = None,
        outlet: Outlet | None = None,
        manager: ServiceManager | None = None,
        restarts: Restarts | None = None,
        memory_cgroups: MemoryCgroups | None = None,
        late: Callable[[], Sequence[Spec]] = tuple,
        now: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._command_for = command_for
        self._settings = settings
        self._database_thread = database_thread
        self._placement = placement or Placement(None)
        self._waiter = waiter
        self._halt = halt
        self._spares = spares
        self._outlet = outlet or (lambda _name: nullcontext())
        self._manager = manager or ServiceManager(None)
        self._restarts = restarts or Restarts()
        self._memory_cgroups = memory_cgroups or MemoryCgroups()
        self._late = late
        self._now = now
        self._chance = chance
        self._liveness = Liveness(stale_s=settings.stale_heartbeat_s, first_s=settings.first_heartbeat_s)
        self._isolation = Isolation(
            now,
            spares.can_fork,
            most=settings.single_job_processes,
            workers=lambda: sum(self._isolation.may_divide(slot) for slot in self._slots),
        )
        self._slots = [*slots_of(specs, now()), *self._placement.first_slots()]
        self._obeyed = Urgency.NONE
        self._kill_at: float | None = None
        self._judged = Signs()
        self._alone = False

    def run(self) -> ExitCode:
        """Work from the first start to the last burial; a failure if the latter could not be seen to."""
        _log.info("supervising %s", ", ".join(slot.name for slot in self._slots))
        self._database_thread.start()
        self._placement.start()
        self._start_due()
        self._manager.tell("READY=1", f"STATUS=workers: {len(self._slots)}")
        loop.run(self._tick, self._waiter.wait)
        self._spares.dismiss_all()
        patience_s = _LAST_BURIALS_S if self._obeyed < Urgency.AT_ONCE else _AT_ONCE_S
        until = self._now() + patience_s
        self._database_thread.close(within_s=patience_s)
        self._spares.close(within_s=until - self._now())
        self._placement.close(within_s=until - self._now())
        _log.info("every worker has ended")
        return ExitCode.FAILED if self._alone else self._halt.exit_code

    def _tick(self) -> float | None:
        self._miss_database_thread()
        self._obey()
        for slot in self._slots:
            if slot.life is not None:
                self._see_to_the_end(slot, slot.life)
        self._judge()
        self._unpark()
        self._tend_parts()
        fresh = [*self._placement.tend(), *slots_of(self._late(), self._now())]
        self._slots += [] if self._obeyed else fresh
        self._memory_cgroups.look()
        self._start_due()
        self._spares.tend(self._now())
        self._tell_database_thread()
        self._database_thread.cut_if_stuck()
        if self._manager.watchdog_s is not None:
            self._manager.tell("WATCHDOG=1")
        if not self._obeyed and self._is_left_to_attendants():
            self._halt.ask()
        return None if all(slot.done for slot in self._slots) else self._delay()

    def _is_left_to_attendants(self) -> bool:
        principals = [slot for slot in self._slots if not slot.spec.is_attendant]
        return len(principals) not in (0, len(self._slots)) and all(slot.done for slot in principals)

    def _delay(self) -> float:
        # A slot that waits for a device is woken by the look that sees it free.
        due = [
            slot.start_at
            for slot in self._slots
            if slot.start_at is not None and self._placement.admits(slot)
        ]
        due += [self._kill_at] if self._kill_at is not None else []
        return min(
            [_LOOK_EVERY_S, self._manager.watchdog_s or _LOOK_EVERY_S, *(at - self._now() for at in due)]
        )

    # Starting

    def _start_due(self) -> None:
        for slot in self._slots:
            is_due = slot.start_at is not None and slot.start_at <= self._now()
            if is_due and slot.urgent and self._spares.is_coming(slot.spec):
                slot.start_at = self._now() + _SPARE_COMES_S
            elif is_due and self._placement.admits(slot):
                slot.start_at = None
                self._start(slot)

    def _start(self, slot: Slot) -> None:
        incarnation = secrets.token_hex(6)
        worker_id = slot.spec.worker_id(self._settings.host_label, incarnation)
        started_at = self._now()
        self._spares.started(started_at)
        try:
            child: Started | None = self._spared(slot, incarnation)
            heartbeat_pipe = None
            if child is None:
                # Not under the name that a fork was asked for which may come too late.
                incarnation = secrets.token_hex(6)
                worker_id = slot.spec.worker_id(self._settings.host_label, incarnation)
                child, heartbeat_pipe = started(
                    slot.spec,
                    self._command_for(slot.spec),
                    given_to(incarnation, slot.part),
                    output=self._outlet(slot.name),
                    given=self._placement.hand_over(slot, worker_id),
                    settings=self._settings,
                    now=started_at,
                )
        except OSError as exc:
            self._placement.vacated(slot)
            self._follow(slot, _log.error, f"could not be started: {exc}", ExitCode.FAILED, 0)
            return
        slot.life = Life(worker_id, child, None, started_at, heartbeat_pipe=heartbeat_pipe)
        slot.life.oom_kills = self._memory_cgroups.of(child.pid)
        try:
            slot.life.fd = fd = watch(child)
        except OSError as exc:
            _log.error("%s: pid %d cannot be watched: %s", slot.name, child.pid, exc)
            slot.life.ended_at = self._now()
            slot.life.sweep = Sweep(child, self._waiter.ring)
            slot.life.sweep.start()
            return
        self._waiter.watch(fd, lambda: self._ended(slot))
        if worker_id is not None:
            self._liveness.begin(worker_id, started_at)
        _log.info("%s: started, pid %d%s", slot.name, child.pid, f", as {worker_id}" if worker_id else "")

    def _spared(self, slot: Slot, incarnation: str) -> Started | None:
        """A spare is as old as what it imported; what was stopped or mended comes back with what is new."""
        if slot.urgent:
            return self._spares.take(slot.spec, given_to(incarnation, slot.part))
        self._spares.dismiss(slot.spec)
        return None

    # Ending

    def _ended(self, slot: Slot) -> None:
        """Note the end of a slot's process: its pidfd is readable."""
        life = slot.life
        if life is None or life.fd is None:
            return
        self._waiter.forget(life.fd)
        os.close(life.fd)
        life.fd = None
        life.ended_at = self._now()
        self._judge_no_more(life)
        if life.sweep is None or life.sweep.over:
            self._end(life)

    def _end(self, life: Life) -> None:
        life.sweep = Sweep(life.child, self._waiter.ring)
        if life.fd is None and life.child.has_left_nothing():
            life.sweep.over = True
        else:
            life.sweep.start()

    def _see_to_the_end(self, slot: Slot, life: Life) -> None:
        """Wait for the child once its tree is swept; then what it held can be taken back."""
        if life.sweep is None or not life.sweep.over:
            return
        if life.fd is not None:
            self._give_up(slot, life, life.sweep, life.fd)
            return
        is_announced = has_announced_kill(life.child.pid)
        status = life.child.poll()
        if status is None:
            return
        if life.sweep.left:
            _log.warning("%s: left behind, and not to be killed: %s", slot.name, life.sweep.left)
        slot.life = None
        self._placement.vacated(slot, life.sweep.left)
        if life.heartbeat_pipe is not None:
            life.heartbeat_pipe.close()
        chosen = life.child.chose(status)
        how, status = describe(status, chosen=chosen), acted_on(status, chosen=chosen)
        if status == -signal.SIGKILL:
            how = f"killed {TIMER_IN_WORDS}" if is_announced else how + _if_out_of_memory(life)
        if life.worker_id is not None:
            blamed = crashed(status) and self._kill_at is None
            lease_s = self._settings.lease_for(slot.spec.queue)
            begun = life.child.begun()
            self._database_thread.bury(DeadWorker(life.worker_id, life.ended_at, lease_s, blamed, how, begun))
            slot.unexplained = {*slot.unexplained, life.worker_id} if blamed else set()
        lived_s = life.ended_at - life.started_at
        say = _log.info if status == ExitCode.DONE or self._obeyed else _log.warning
        self._follow(slot, say, f"pid {life.child.pid} {how} after {lived_s:.1f} s", status, lived_s)

    def _give_up(self, slot: Slot, life: Life, sweep: Sweep, fd: int) -> None:
        """A child that the kernel has yet to let go of is waited for, but not once all are to stop."""
        if self._obeyed and life.child.pid in sweep.left:
            _log.error("%s: pid %d does not die; left behind", slot.name, life.child.pid)
            self._waiter.forget(fd)
            os.close(fd)
            slot.life = None

    def _follow(self, slot: Slot, say: Callable[..., None], what: str, status: int, lived_s: float) -> None:
        """Decide what comes after an end, and say both in one line."""
        if self._obeyed:
            say("%s: %s", slot.name, what)
            return
        if self._isolation.is_rejoining(slot) and (status == -RETIRE or not crashed(status)):
            _log.info("%s: %s", slot.name, what)
            return
        overran = slot.part and status in (ExitCode.WALL_CLOCK, ExitCode.STALL)
        if slot.part and crashed(status) and not overran:
            self._isolation.crashed(slot)
        follows = self._restarts.after(
            status,
            lived_s=lived_s,
            deaths=slot.deaths,
            last_ends=slot.spec.last_ends,
            chance=self._chance(),
        )
        if overran:
            # Its job was ended by its own guard, as it would have been beside others without the end of all.
            follows = Next(0.0, slot.deaths)
        slot.deaths = follows.deaths
        # Most crashes turn out to be of a job; a worker that crashes without one may have been mended since.
        slot.urgent = crashed(status) and (follows.delay_s == 0 or follows.deaths < _MENDED_AFTER)
        if follows.delay_s is None:
            pass
        elif follows.parked:
            slot.parked_at = self._now() + follows.delay_s
        else:
            slot.start_at, slot.else_at = self._now() + follows.delay_s, None
            if slot.unexplained and self._isolation.may_divide(slot):
                # If it died of its jobs others take its place, which is known in a moment.
                slot.start_at, slot.else_at = max(slot.start_at, self._now() + _KNOWN_WITHIN_S), slot.start_at
        say("%s: %s; %s", slot.name, what, follows.in_words(status))

    def _tend_parts(self) -> None:
        """Start again at once what died of its jobs, as that says nothing of the next; join what is calm."""
        verdicts = self._database_thread.verdicts()
        for slot in self._slots if verdicts else []:
            if slot.hear(verdicts, self._now()) and (parts := self._isolation.crashed(slot)):
                slot.start_at = None
                self._slots = [*self._slots, *parts]
                _log.warning("%s: %s", slot.name, self._isolation.in_words(slot))
        if not self._obeyed:
            over = self._isolation.tend(self._database_thread.signs)
            self._slots = [slot for slot in self._slots if slot not in over]

    # Stopping

    def _obey(self) -> None:
        urgency = self._halt.urgency
        if urgency > self._obeyed:
            at_once = urgency is Urgency.AT_ONCE
            patience = _AT_ONCE_S if at_once else self._settings.grace_s + _RELEASE_S
            by = self._halt.by.name if self._halt.by else "request"
            _log.info("%s: stopping%s, for %g s at most", by, " at once" if at_once else "", patience)
            self._obeyed, self._kill_at = urgency, self._now() + patience
            self._manager.tell("STOPPING=1", f"STATUS=stopping after {by}")
            self._spares.dismiss_all()
        if self._kill_at is None:
            return
        self._ask_to_stop(self._kill_at)
        if self._now() >= self._kill_at:
            for slot in self._slots:
                self._kill(slot, "did not stop in time")

    def _ask_to_stop(self, kill_at: float) -> None:
        """Ask all once for each urgency; those that act on what workers finish when no worker is left."""
        working = any(slot.life is not None and slot.life.worker_id is not None for slot in self._slots)
        every = not working or self._obeyed is Urgency.AT_ONCE or self._now() >= kill_at - _AT_ONCE_S
        for slot in self._slots:
            slot.start_at = slot.parked_at = None
            life = slot.life
            if life is None or life.fd is None or life.asked is self._obeyed:
                continue
            if every or life.worker_id is not None:
                life.asked = self._obeyed
                _log.info("%s: asked to stop", slot.name)
                tell(life.child, life.fd, signal.SIGTERM if life.worker_id is None else ASKED)

    def _judge(self) -> None:
        """Judge by what the database thread read last, by heartbeat pipes and by devices.

        Nothing is judged once all are to stop: a process that is stopping need not beat any more.
        """
        signs = self._database_thread.signs
        if self._obeyed:
            return
        for slot in self._slots:
            if slot.life is not None and slot.life.heartbeat_pipe is not None:
                reason = slot.life.heartbeat_pipe.judge(self._now())
                if reason is not None:
                    self._kill(slot, reason)
            if (reason := self._placement.evicts(slot)) is not None:
                self._kill(slot, reason)
        if signs is self._judged:
            return
        self._judged = signs
        for worker_id, reason in self._liveness.judge(signs).items():
            for slot in self._slots:
                if slot.life is not None and slot.life.worker_id == worker_id:
                    self._kill(slot, reason)

    def _kill(self, slot: Slot, reason: str) -> None:
        life = slot.life
        if life is None or life.fd is None or life.killed:
            return
        _log.warning("%s: killing pid %d: %s", slot.name, life.child.pid, reason)
        life.killed = True
        if life.child.is_lost:
            # Nobody keeps its pid from becoming a stranger's, so the sweep goes by its mark alone.
            tell(life.child, life.fd, signal.SIGKILL)
        self._judge_no_more(life)
        self._end(life)

    def _judge_no_more(self, life: Life) -> None:
        if life.worker_id is not None:
            self._liveness.end(life.worker_id)

    # Workers that the operator switched off, and that ended because of it

    def _unpark(self) -> None:
        signs = self._database_thread.signs
        for slot in self._slots:
            parked_at = slot.parked_at
            if parked_at is not None and signs.read_at > parked_at and slot.spec.queue in signs.switched_on:
                _log.info("%s: switched on again", slot.name)
                slot.parked_at, slot.start_at = None, self._now()

    # The thread at the database

    def _miss_database_thread(self) -> None:
        """Stop if the database thread has died, as none is judged or buried then; we may be started anew."""
        if not self._alone and not self._database_thread.is_alive():
            _log.critical("the thread that watches the workers has died: stopping them all")
            self._alone = True
            if self._halt.urgency is Urgency.NONE:
                self._halt.ask()

    def _tell_database_thread(self) -> None:
        lives = frozenset(
            slot.life.worker_id for slot in self._slots if slot.life is not None and slot.life.worker_id
        )
        parked = frozenset(slot.spec.queue for slot in self._slots if slot.parked_at is not None)
        self._database_thread.wanted = Wanted(lives, parked, self._isolation.queues)


def _if_out_of_memory(life: Life) -> str:
    """That it was the kernel which sent SIGKILL and not we, and why, if a cgroup tells."""
    out_of_memory = None if life.killed or life.oom_kills is None else life.oom_kills.explain()
    return f" {out_of_memory.in_words()}" if out_of_memory else ""
