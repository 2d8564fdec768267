"""An orchestrator: advances runs, and does the upkeep that needs no worker. Any number may run at once.

    start ──> migrate, or wait for the schema ──> turn ──nothing to do──> idle: advertised, LISTENing, polling
                                                   ^ │                      │
                                                   └─┴──────────────────────┘  signal ──> ends after this run

What it is at is in the database alone. Cut off, it starts from the beginning; killed, nobody misses it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

import psycopg

from queue_workflows.db.connections.failures import DATABASE_AWAY
from queue_workflows.db.listen.listener import Listener
from queue_workflows.engine.limits.lane_upkeep import LaneWalk
from queue_workflows.engine.runs.dispatcher import Dispatcher, Woken
from queue_workflows.engine.upkeep.retention import Pruning
from queue_workflows.engine.upkeep.tick import sweep
from queue_workflows.errors import ExitCode
from queue_workflows.repositories.runs.parked import ParkedJobRepository
from queue_workflows.roles.connection import RoleConnection
from queue_workflows.roles.look_pace import LookPace
from queue_workflows.roles.loop import Halt
from queue_workflows.roles.probes.health import Pulse
from queue_workflows.settings import Settings

_log = logging.getLogger(__name__)

CHANNEL: Final = "dispatch_ready"
# What an idle orchestrator advertises, and what the wake carries.
WAKE: Final = "qwf:dispatch"
_LONGEST_BATCH_S: Final = 600.0
# What is silence in others, so many times: an answer that takes as long was swallowed on its way.
STALE_TIMES: Final = 4
# Busy for so many turns, it need not be woken any more, and writers need not notify.
_BUSY_TURNS: Final = 20
# A turn that leaves a run alone counts as so many: ends come faster than they need be heard of.
_REST_TURNS: Final = 5
# While a run is left alone that has news, others are looked for so often.
_DEAF_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class OrchestratorOptions:
    """What the command line says of one orchestrator."""

    once: bool = False
    schema_wait_s: float = 60.0
    health: tuple[str, int] | None = None
    health_file: Path | None = None


class Orchestrator:
    """The main thread's loop."""

    def __init__(
        self,
        connect: Callable[[], psycopg.Connection[Any]],
        settings: Settings,
        *,
        name: str,
        listener: Listener,
        halt: Halt,
        dispatcher: Callable[[psycopg.Connection[Any]], Dispatcher],
        on_news: Callable[[], None],
        rng: Random | None = None,
    ) -> None:
        self._settings = settings
        self._name = name
        self._listener = listener
        self._halt = halt
        self._new_dispatcher = dispatcher
        self._on_news = on_news
        self._pruning = Pruning(settings)
        self._rng = rng or Random()  # noqa: S311
        self._reach = RoleConnection(connect, role="orchestrator", wait=listener.wait, rng=self._rng)
        self._dispatcher: Dispatcher | None = None
        self._main_at = time.monotonic()
        self._upkeep_at = self._prune_at = 0.0
        self._lanes = LaneWalk()
        self._is_at_a_run = False
        self._busy_turns = 0
        self._woken = Woken.NOT
        self._look_pace = LookPace(self._main_at)

    def run(self, *, once: bool = False) -> ExitCode:
        """Advance runs until told to stop; with `once` until there is nothing left to do now."""
        is_last = False
        while not self._halt.urgency:
            self._main_at = time.monotonic()
            try:
                busy = self._turn(rests=not once)
            except DATABASE_AWAY as exc:
                if once:
                    raise
                self._dispatcher = None
                self._reach.lost(exc)
                continue
            if busy:
                self._look_pace.found(self._main_at)
            if not once and (rest_s := self._rest_s()):
                # As deaf as it may be: each end would wake it, and nothing follows from that.
                time.sleep(min(rest_s, _DEAF_S))
            elif busy and not once and self._may_rest():
                self._idle()
            elif busy:
                is_last = False
            elif once and is_last:
                return ExitCode.DONE
            elif once:
                # What this pass itself has parked may be due by now.
                self._upkeep_at, is_last = 0.0, True
            else:
                self._idle()
        return self._halt.exit_code

    def cut_if_stuck(self) -> None:
        """Let go, from another thread, of a server that gives no answer: a network may swallow them all."""
        self._reach.cut_if_unanswered(STALE_TIMES * self._settings.stale_heartbeat_s)

    def pulse(self) -> Pulse:
        """What a probe is told; a batch may take its time, as the first of a large run does."""
        now = time.monotonic()
        is_at_a_run = self._is_at_a_run and now - self._main_at < _LONGEST_BATCH_S
        return Pulse(
            worker_id=self._name,
            state="busy" if self._busy_turns or is_at_a_run else "idle",
            main_at=self._main_at,
            guardian_at=now,
            database_at=now if is_at_a_run else self._reach.answered_at,
            is_busy=is_at_a_run,
            obstacle=self._reach.obstacle,
        )

    def _turn(self, *, rests: bool) -> bool:
        """One batch for each run that has something to do, and the upkeep when due; false if nothing was."""
        connection = self._reach.connected()
        if self._dispatcher is None:
            self._dispatcher = self._new_dispatcher(connection)
        is_upkeep_due = time.monotonic() >= self._upkeep_at
        ended = self._upkeep(connection) if is_upkeep_due else 0
        try:
            # A wake leads straight to a run.
            woken, self._woken = self._woken, Woken.NOT
            self._is_at_a_run = woken is not Woken.NOT
            moved = self._dispatcher.turn(self._goes_on, woken=woken, rests=rests)
        finally:
            self._is_at_a_run = False
        self._reach.answered_at = time.monotonic()
        if self._dispatcher.has_ended_runs:
            self._on_news()
        rests = rests and self._dispatcher.rest_s > 0
        if moved or ended or rests or not self._dispatcher.is_around:
            before, self._busy_turns = self._busy_turns, self._busy_turns + (_REST_TURNS if rests else 1)
            if before < _BUSY_TURNS <= self._busy_turns:
                self._listener.absorb(withdraw=lambda: True)
            return True
        self._busy_turns = 0
        return False

    def _may_rest(self) -> bool:
        """Whether what came while we were busy has sent a wake, so that it need not be looked for."""
        has_more = self._dispatcher is None or self._dispatcher.has_more
        return self._listener.is_wanted(WAKE) and not has_more

    def _rest_s(self) -> float:
        """How long there is nothing to do for a run that has news; 0 if there is none, or more to do."""
        dispatcher = self._dispatcher
        return 0.0 if dispatcher is None or dispatcher.has_more else dispatcher.rest_s

    def _goes_on(self) -> bool:
        self._main_at, self._is_at_a_run = time.monotonic(), True
        return not self._halt.urgency

    def _upkeep(self, connection: psycopg.Connection[Any]) -> int:
        """What every role does now and then, and what only this one does; how many parked jobs it ended."""
        now = time.monotonic()
        if now >= self._prune_at:
            self._prune_at = now + self._pruning.prune(connection)
        swept = sweep(connection, self._settings, recovered_s=self._reach.recovered_s, lanes=self._lanes)
        expired = ParkedJobRepository(connection).expire()
        delay = swept.next_in_s
        if expired.next_in_s is not None:
            delay = min(delay, expired.next_in_s)
        self._upkeep_at = now + delay
        return expired.ended

    def _idle(self) -> None:
        """Wait where a writer's NOTIFY finds us, or for the next look."""
        if not self._listener.is_wanted(WAKE):
            self._listener.advertise(WAKE)
            return
        timeout = self._settings.poll_s * (0.75 + self._rng.random() / 2)
        # A wake may have been for more runs than the one that it led to.
        looks_at = math.inf if self._dispatcher is None else self._dispatcher.looks_at
        timeout = max(0.0, min(timeout, min(self._upkeep_at, looks_at) - time.monotonic()))
        if is_unsettled := self._listener.must_look_again():
            # A transaction that wrote before we advertised may commit without a wake.
            now, hears = time.monotonic(), self._listener.state == "listening"
            timeout = min(timeout, self._look_pace.pause(now, hears=hears))
        woken = self._listener.wait(0)
        if woken is None:
            self._busy_turns = 0
            woken = self._listener.wait(timeout)
        if woken is not None:
            self._woken = Woken.ONCE if woken.number == 1 and not is_unsettled else Woken.SOMEHOW
            self._look_pace.found(time.monotonic())

    def close(self) -> None:
        """Let go of the connection."""
        self._reach.close()
