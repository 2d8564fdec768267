"""Processors, memory and GPUs of each machine, as its supervisor saw them last: what `qwf hw` shows."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from queue_workflows.repositories.workers.hardware import HardwareRepository, HostReading
from queue_workflows.repositories.workers.quarantine import Quarantine, QuarantineRepository

# A machine that nobody has looked at for longer is history.
FORGOTTEN_S: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class HardwareView:
    """The last reading of each machine, and the devices that are quarantined there; stale after `stale_s`."""

    readings: Sequence[HostReading]
    quarantined: Sequence[Quarantine]
    stale_s: float


def read_hardware(
    connection: psycopg.Connection[Any], *, stale_s: float, host: str = "*", everyone: bool = False
) -> HardwareView:
    """The machine of a host, `*` for any; with `everyone` also what was not heard of for a day."""
    seen = HardwareRepository(connection).readings(host)
    put_aside = QuarantineRepository(connection).of(host)
    return HardwareView([one for one in seen if everyone or one.age_s <= FORGOTTEN_S], put_aside, stale_s)


def json_of(seen: HardwareView) -> dict[str, Any]:
    """What `qwf hw --json` prints."""
    reasons = {(one.host_label, one.device): one.reason for one in seen.quarantined}
    return {"hosts": [reading_json(one, seen.stale_s, reasons) for one in seen.readings]}


def reading_json(one: HostReading, stale_s: float, reasons: dict[tuple[str, str], str]) -> dict[str, Any]:
    """One machine, each device with why it is quarantined, if it is."""
    devices = [
        device | ({"quarantined": why} if (why := reasons.get((one.host_label, device["id"]))) else {})
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
