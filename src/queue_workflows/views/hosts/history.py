"""What each machine was at over the last hour: what `qwf hw --history` shows, and the page of a host."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import psycopg

from queue_workflows.drawing.hardware import Curve, device_name
from queue_workflows.repositories.workers.hardware import HardwareRepository
from queue_workflows.repositories.workers.hardware_history import (
    STEP_S,
    HardwareHistoryRepository,
    PastReading,
)
from queue_workflows.views.hosts.hardware import FORGOTTEN_S

SPAN_S: Final = 3600.0
POINTS: Final = int(SPAN_S // STEP_S)
# For so many of its looks a figure stands, until a later one is there or nobody looks any more.
_HELD_LOOKS: Final = 2


@dataclass(frozen=True, slots=True)
class HostHistory:
    """The readings of a machine over the last hour, the oldest first; its supervisor looks `every_s`."""

    host_label: str
    every_s: float
    readings: Sequence[PastReading]


def read_history(
    connection: psycopg.Connection[Any], *, host: str = "*", everyone: bool = False
) -> list[HostHistory]:
    """The last hour of a host, `*` for any; with `everyone` also what was not heard of for a day."""
    last = HardwareRepository(connection).readings(host)
    past = past_readings(connection, host)
    return [
        HostHistory(one.host_label, one.every_s, [then for then in past if then.host_label == one.host_label])
        for one in last
        if everyone or one.age_s <= FORGOTTEN_S
    ]


def past_readings(connection: psycopg.Connection[Any], host: str) -> list[PastReading]:
    """What was kept of the last hour, of a host or `*` for any."""
    return HardwareHistoryRepository(connection).readings(host, within_s=SPAN_S)


def json_of(seen: Sequence[HostHistory]) -> dict[str, Any]:
    """What `qwf hw --history --json` prints."""
    return {
        "hosts": [{"host_label": one.host_label, "readings": readings_json(one.readings)} for one in seen]
    }


def readings_json(readings: Sequence[PastReading]) -> list[dict[str, Any]]:
    """The readings of one machine, the oldest first."""
    apart = ("host_label", "age_s")
    return [{name: value for name, value in asdict(one).items() if name not in apart} for one in readings]


def curves_of(seen: HostHistory) -> list[Curve]:
    """Percents of each half minute of the hour: of processors, memory, and each GPU and its memory.

    A figure that a device never told has no curve.
    """
    found = [
        _curve(seen, "cpu", "busy", lambda one: one.cpu_percent),
        _curve(seen, "memory", "in use", lambda one: _share(one.memory_used_mb, one.memory_total_mb)),
    ]
    for name, device in _devices(seen.readings):
        busy = _curve(seen, name, "busy", _of_device(device, lambda one: one.get("utilisation_percent")))
        memory = _curve(
            seen,
            name,
            "memory in use",
            _of_device(device, lambda one: _share(one.get("memory_used_mb"), one.get("memory_total_mb"))),
        )
        found += [one for one in (busy, memory) if one.is_known]
    return found


def _devices(readings: Sequence[PastReading]) -> Iterator[tuple[str, str]]:
    """The name and the id of each device that was there, in the order of the latest reading that has it."""
    seen: dict[str, str] = {}
    for reading in reversed(readings):
        for device in reading.devices:
            seen.setdefault(device["id"], device_name(device))
    for device_id, name in seen.items():
        yield name, device_id


def _of_device(
    device_id: str, figure: Callable[[dict[str, Any]], float | None]
) -> Callable[[PastReading], float | None]:
    def of_reading(reading: PastReading) -> float | None:
        return next((figure(one) for one in reading.devices if one["id"] == device_id), None)

    return of_reading


def _share(used: int | None, total: int | None) -> float | None:
    return None if used is None or not total else 100.0 * used / total


def _curve(seen: HostHistory, name: str, what: str, figure: Callable[[PastReading], float | None]) -> Curve:
    """A figure of each half minute; one stands until the next, unless looks are missing in between."""
    held = _HELD_LOOKS * math.ceil(max(STEP_S, seen.every_s) / STEP_S)
    values: list[float | None] = [None] * POINTS
    for reading in seen.readings:
        first = max(0, POINTS - 1 - int(reading.age_s // STEP_S))
        values[first : first + held] = [figure(reading)] * len(values[first : first + held])
    return Curve(name, what, values)


def command_of(*, host: str = "*") -> str:
    """The command that shows the last hour of these machines."""
    return shlex.join(["qwf", "hw", "--history", *(["--host", host] if host != "*" else [])])
