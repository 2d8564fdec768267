"""What the supervisor tells the database of its hardware, and hears of it there: readings, and quarantines.

The main thread and the sampler leave word here; the database thread carries it in its rounds.
A device in quarantine is so whether the row could be written yet or not, and until its row was deleted.
"""

from __future__ import annotations

import logging
import os
import random
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from queue_workflows.errors import SchemaError
from queue_workflows.repositories.workers.hardware import HardwareRepository
from queue_workflows.repositories.workers.hardware_history import (
    KEPT_S,
    STEP_S,
    HardwareHistoryRepository,
)
from queue_workflows.repositories.workers.quarantine import QuarantineRepository, name_of
from queue_workflows.settings import DAY_S
from queue_workflows.telemetry.hw.reading import Reading, payloads

_log = logging.getLogger(__name__)

_FORGOTTEN_S: Final = 7 * DAY_S
_FORGET_ONE_IN: Final = 500
# Where the table is missing, or is not for us to write, nothing changes by the minute.
_REFUSED_S: Final = 60.0


@dataclass
class _Quarantined:
    reason: str
    told: dict[str, Any]
    is_stored: bool = False


class HardwareReports:
    """Reports on the devices of one queue on one host; `is_open` once the quarantined ones are known."""

    def __init__(
        self,
        host_label: str,
        queue: str,
        *,
        every_s: float,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._host_label = host_label
        self._queue = queue
        self._every_s = every_s
        self._now = now
        self._wall = wall
        self._chance = chance
        self._guard = threading.Lock()
        self._reading: dict[str, Any] | None = None
        self._refused_until: dict[str, float] = {}
        self._kept_at: int | None = None
        self._quarantined: dict[str, _Quarantined] = {}
        self.is_open = False
        self.occupants: Mapping[str, str] = {}
        self.devices = 0
        self._id = secrets.token_hex(6)

    def publish(self, reading: Reading) -> None:
        """Have this reading stored and told, with each device's worker, in place of one not yet stored."""
        plain = {**reading.plain(), "supervisor": {"id": self._id, "devices": self.devices}}
        for device in plain["devices"]:
            if (worker := self.occupants.get(device["id"])) is not None:
                device["worker"] = worker
        with self._guard:
            self._reading = plain

    def quarantine(self, device: str, reason: str, told: dict[str, Any]) -> None:
        """Have a device put aside."""
        with self._guard:
            self._quarantined[device] = _Quarantined(reason, told)

    def is_quarantined(self, device: str) -> bool:
        """Whether a device is put aside."""
        with self._guard:
            return device in self._quarantined

    def run(self, connection: psycopg.Connection[Any]) -> None:
        """What there is to do at the database now."""
        self._see_to_quarantines(QuarantineRepository(connection))
        with self._guard:
            reading, self._reading = self._reading, None
        if reading is not None:
            self._report(connection, reading)

    def _see_to_quarantines(self, rows: QuarantineRepository) -> None:
        if not self.is_open:
            found = {one.device: one.reason for one in rows.of(self._host_label, self._queue)}
            with self._guard:
                for device, reason in found.items():
                    self._quarantined.setdefault(device, _Quarantined(reason, {}, is_stored=True))
            self.is_open = True
        with self._guard:
            fresh = {name: one for name, one in self._quarantined.items() if not one.is_stored}
            stored = {name for name, one in self._quarantined.items() if one.is_stored}
        for device, one in fresh.items():
            rows.put(self._host_label, self._queue, device, reason=one.reason, pid=os.getpid(), told=one.told)
            one.is_stored = True
        names = {name_of(self._host_label, self._queue, device): device for device in stored}
        if not names:
            return
        for name in names.keys() - rows.keep(names, pid=os.getpid()):
            with self._guard:
                del self._quarantined[names[name]]

    def _report(self, connection: psycopg.Connection[Any], reading: dict[str, Any]) -> None:
        """Tell the last reading, and keep one of each half minute if it is ours that is heard."""
        is_heard = self._unless_refused("figures", lambda: self._tell(connection, reading))
        half_minute = int(self._wall() // STEP_S)
        if is_heard and half_minute != self._kept_at:
            self._kept_at = half_minute
            self._unless_refused("figures over time", lambda: self._keep(connection, reading))

    def _tell(self, connection: psycopg.Connection[Any], reading: dict[str, Any]) -> bool:
        rows = HardwareRepository(connection)
        if self._is_time_to_forget():
            rows.forget(older_than_s=_FORGOTTEN_S)
        head = {"host": self._host_label, "at": round(self._wall(), 3), "every_s": self._every_s}
        parts = list(payloads(head, reading))
        return rows.report(self._host_label, reading, every_s=self._every_s, parts=parts)

    def _keep(self, connection: psycopg.Connection[Any], reading: dict[str, Any]) -> bool:
        rows = HardwareHistoryRepository(connection)
        rows.keep(self._host_label, reading)
        if self._is_time_to_forget():
            rows.forget(older_than_s=KEPT_S)
        return True

    def _is_time_to_forget(self) -> bool:
        return self._chance() * _FORGET_ONE_IN < 1

    def _unless_refused(self, what: str, write: Callable[[], bool]) -> bool:
        """A database that does not take it is no reason to do without all the rest."""
        refused_until = self._refused_until.get(what)
        if refused_until is not None and self._now() < refused_until:
            return False
        try:
            return write()
        except (psycopg.ProgrammingError, SchemaError) as exc:
            self._refused_until[what] = self._now() + _REFUSED_S
            _log.warning("the hardware's %s are not stored: %s", what, " ".join(str(exc).split()))
            return False
