"""Processors, memory and GPUs of each machine, as its supervisor saw them last: what `qwf hw` shows."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from queue_workflows.repositories.workers.hardware import HardwareRepository, HostReading
from queue_workflows.repositories.workers.model_memory import ModelMemoryRepository, ModelMemoryRow
from queue_workflows.repositories.workers.quarantine import Quarantine, QuarantineRepository
from queue_workflows.views.models import memory_json

# A machine that nobody has looked at for longer is history.
FORGOTTEN_S: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class HardwareView:
    """The last reading of each machine, and the devices that are quarantined there; stale after `stale_s`."""

    readings: Sequence[HostReading]
    quarantined: Sequence[Quarantine]
    stale_s: float
    # What models took of devices.
    memory: Sequence[ModelMemoryRow] = ()


def read_hardware(
    connection: psycopg.Connection[Any], *, stale_s: float, host: str = "*", everyone: bool = False
) -> HardwareView:
    """The machine of a host, `*` for any; with `everyone` also what was not heard of for a day."""
    seen = HardwareRepository(connection).readings(host)
    put_aside = QuarantineRepository(connection).of(host)
    heard = [one for one in seen if everyone or one.age_s <= FORGOTTEN_S]
    return HardwareView(heard, put_aside, stale_s, ModelMemoryRepository(connection).read())


def json_of(seen: HardwareView) -> dict[str, Any]:
    """What `qwf hw --json` prints."""
    reasons = {(one.host_label, one.device): one.reason for one in seen.quarantined}
    memory: dict[str, list[dict[str, Any]]] = {}
    for row in seen.memory:
        memory.setdefault(row.device, []).append(memory_json(row))
    return {"hosts": [reading_json(one, seen.stale_s, reasons, memory) for one in seen.readings]}


def reading_json(
    one: HostReading,
    stale_s: float,
    reasons: dict[tuple[str, str], str],
    memory: Mapping[str, list[dict[str, Any]]] | None = None,
) -> dict[str, Any]:
    """One machine, each device with why it is quarantined, if it is, and what models took of such a one."""
    devices = [
        device
        | ({"quarantined": why} if (why := reasons.get((one.host_label, device["id"]))) else {})
        | ({"models": took} if (took := (memory or {}).get(device.get("name", ""))) else {})
        for device in one.reading["devices"]
    ]
    return {
        "host_label": one.host_label,
        "sampled_at": one.sampled_at,
        "sampled_s_ago": round(one.age_s, 3),
        "every_s": one.every_s,
        "stale": one.is_stale(stale_s),
        **one.reading,
        "devices": devices,
    }


def command_of(*, host: str = "*", everyone: bool = False) -> str:
    """The command that shows these machines."""
    words = ["qwf", "hw"] + (["--host", host] if host != "*" else [])
    return shlex.join([*words, "--all"] if everyone else words)
