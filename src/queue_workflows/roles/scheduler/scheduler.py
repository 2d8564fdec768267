"""A scheduler: inserts the jobs of schedules when their time has come. Any number may run at once.

    start ──> wait for the schema ──> declare ──> turn ──> wait for the next tick, for a second at most
                                                   ^ │                        │
                                                   └─┴────────────────────────┘  signal ──> ends

What is due and what time it is, the database says. A scheduler keeps nothing: cut off, it starts from the
beginning; killed, nobody misses it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, Final

import psycopg
from psycopg import errors

from queue_workflows.db.connections.failures import DATABASE_AWAY
from queue_workflows.engine.schedules.due_ticks import Times, begins_at, plan, reason_of
from queue_workflows.engine.schedules.publish import Declaring
from queue_workflows.engine.telemetry import insert_ticks
from queue_workflows.engine.upkeep.tick import sweep
from queue_workflows.errors import ExitCode
from queue_workflows.repositories.schedules.ticks import DueSchedule, Planned, Tick, TickRepository
from queue_workflows.roles.connection import RoleConnection
from queue_workflows.roles.loop import Halt, Waiter
from queue_workflows.roles.probes.health import Pulse
from queue_workflows.settings import Settings

_log = logging.getLogger(__name__)

# One that cannot be read or inserted is tried again so often; another version may have mended it.
_ASIDE_S: Final = 30.0
# Of a name in the log.
_LONGEST_NAME: Final = 200
_TICKS_AT_ONCE: Final = 10_000
_HELD_UP: Final = (errors.LockNotAvailable, errors.DeadlockDetected, errors.QueryCanceled)
# From a schedule to what its task says of its jobs; empty for a task that this process does not know.
TaskOptions = Callable[[DueSchedule], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class SchedulerOptions:
    """What the command line says of one scheduler."""

    once: bool = False
    app: str | None = None
    schema_wait_s: float = 60.0
    health: tuple[str, int] | None = None
    health_file: Path | None = None


class Scheduler:
    """The main thread's loop."""

    def __init__(
        self,
        connect: Callable[[], psycopg.Connection[Any]],
        settings: Settings,
        *,
        name: str,
        waiter: Waiter,
        halt: Halt,
        declaring: Declaring,
        declare_limits: Callable[[psycopg.Connection[Any]], float],
        task_options: TaskOptions,
        rng: Random | None = None,
    ) -> None:
        self._settings = settings
        self._name = name
        self._waiter = waiter
        self._halt = halt
        self._declaring = declaring
        self._declare_limits = declare_limits
        self._task_options = task_options
        self._rng = rng or Random()  # noqa: S311
        self._reach = RoleConnection(connect, role="scheduler", wait=waiter.wait, rng=self._rng)
        # Until when a schedule is left alone that could not be planned or inserted.
        self._aside: dict[str, float] = {}
        self._main_at = time.monotonic()
        self._upkeep_at = self._declare_at = self._limits_at = 0.0

    def run(self, *, once: bool = False) -> ExitCode:
        """Insert ticks until told to stop; with `once` those that are due now."""
        while not self._halt.urgency:
            self._main_at = time.monotonic()
            try:
                delay = self._turn()
            except DATABASE_AWAY as exc:
                if once:
                    raise
                self._reach.lost(exc)
                continue
            if once and delay > 0 and self._declaring.has_begun:
                return ExitCode.FAILED if self._aside else ExitCode.DONE
            self._waiter.wait(delay)
        return self._halt.exit_code

    def cut_if_stuck(self) -> None:
        """Let go, from another thread, of a server that gives no answer: a network may swallow them all."""
        self._reach.cut_if_unanswered(self._settings.stale_heartbeat_s)

    def pulse(self) -> Pulse:
        """What a probe is told of this scheduler."""
        now = time.monotonic()
        return Pulse(
            worker_id=self._name,
            state="idle",
            main_at=self._main_at,
            guardian_at=now,
            database_at=self._reach.answered_at,
            is_busy=False,
            obstacle=self._reach.obstacle,
        )

    def _turn(self) -> float:
        """Insert what is due now; how long until something may be due again."""
        connection = self._reach.connected()
        now = time.monotonic()
        if now >= self._declare_at:
            self._declare_at = now + self._declaring.keep(connection)
        if now >= self._limits_at:
            self._limits_at = now + self._declare_limits(connection)
        ticks = TickRepository(connection)
        self._aside = {name: until for name, until in self._aside.items() if until > now}
        due = ticks.due(aside=list(self._aside))
        for name, wrong in due.unreadable.items():
            self._put_aside(name, wrong)
        if due.now is not None:
            self._insert(ticks, due.schedules, due.now)
        if now >= self._upkeep_at:
            self._upkeep_at = now + self._upkeep(connection)
        next_in_s = ticks.next_in_s()
        self._reach.answered_at = answered_at = time.monotonic()
        if due.has_more or self._halt.urgency:
            return 0.0
        delays = [
            self._settings.poll_s * (0.75 + self._rng.random() / 4),
            self._upkeep_at - answered_at,
            self._declare_at - answered_at,
            self._limits_at - answered_at,
            *([next_in_s] if next_in_s is not None else []),
        ]
        # Never none at all: what somebody else holds at this moment stays due.
        return max(min(delays), 0.001)

    def _upkeep(self, connection: psycopg.Connection[Any]) -> float:
        return sweep(connection, self._settings, recovered_s=self._reach.recovered_s).next_in_s

    def _insert(self, ticks: TickRepository, schedules: Sequence[DueSchedule], now: datetime) -> None:
        """Insert ticks in few statements; where one is refused, each schedule by itself."""
        for planned in _in_parts(self._plan(schedules, now)):
            try:
                self._tell(insert_ticks(ticks, planned))
            except psycopg.Error as exc:
                _raise_if_away(exc)
                for one in planned:
                    self._insert_one(ticks, one)

    def _insert_one(self, ticks: TickRepository, planned: Planned) -> None:
        try:
            self._tell(insert_ticks(ticks, [planned]))
        except psycopg.Error as exc:
            _raise_if_away(exc)
            self._put_aside(planned.schedule.name, exc)

    def _plan(self, schedules: Sequence[DueSchedule], now: datetime) -> Iterator[Planned]:
        for schedule in schedules:
            self._main_at = time.monotonic()
            try:
                yield _planned(schedule, now, self._task_options(schedule), self._settings)
            # Another version may have written what this one cannot read, in whatever way that shows.
            except Exception as exc:
                self._put_aside(schedule.name, exc)

    def _put_aside(self, name: str, exc: Exception) -> None:
        said = " ".join(str(exc).split()) or type(exc).__name__
        _log.error("schedule %s is left alone for %g s: %s", name[:_LONGEST_NAME], _ASIDE_S, said)
        self._aside[name] = time.monotonic() + _ASIDE_S

    def _tell(self, inserted: Sequence[tuple[str, datetime]]) -> None:
        for name, tick in inserted:
            _log.info("tick %s of schedule %s", f"{tick.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}", name)

    def close(self) -> None:
        """Let go of the connection."""
        self._reach.close()


def _raise_if_away(exc: psycopg.Error) -> None:
    """A lock that somebody holds is no outage, nor is a row that is too large: each is one schedule's."""
    if isinstance(exc, DATABASE_AWAY) and not isinstance(
        exc, (*_HELD_UP, psycopg.errors.ProgramLimitExceeded)
    ):
        raise exc


def _planned(schedule: DueSchedule, now: datetime, options: Mapping[str, Any], settings: Settings) -> Planned:
    """The jobs of one schedule's ticks."""
    times = Times(
        schedule.cron,
        schedule.timezone,
        schedule.catch_up,
        schedule.catch_up_cap,
        since=max(schedule.updated_at, schedule.last_tick_at or schedule.updated_at),
        reckoned=schedule.next_tick_at,
    )
    planned = plan(times, now)
    given = {**options, "max_attempts": options.get("max_attempts") or settings.max_attempts}
    ticks = [
        Tick(at, begins_at(schedule.name, at, schedule.jitter_s), reason_of(schedule.name, at), given)
        for at in planned.ticks
    ]
    return Planned(schedule, ticks, planned.next_at)


def _in_parts(planned: Iterator[Planned]) -> Iterator[list[Planned]]:
    """The schedules in parts, each with as many ticks as a statement should insert."""
    part: list[Planned] = []
    count = 0
    for one in planned:
        part.append(one)
        count += len(one.ticks)
        if count >= _TICKS_AT_ONCE:
            yield part
            part, count = [], 0
    if part:
        yield part
