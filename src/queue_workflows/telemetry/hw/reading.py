"""All that a look at this machine finds, and as what it travels."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from queue_workflows.telemetry.cgroup import Attribution, Share
from queue_workflows.telemetry.hw import amd, nvidia
from queue_workflows.telemetry.hw.amd import AmdReader
from queue_workflows.telemetry.hw.commands import Asker, ToolAbsent, ToolFailed, shown
from queue_workflows.telemetry.hw.device import Device, Vendor
from queue_workflows.telemetry.hw.machine import Machine, MachineReader
from queue_workflows.telemetry.hw.nvidia import read_nvidia

# Postgres takes 8000 bytes with the zero at the end; the rest is for a caller that wraps it.
PAYLOAD_BYTES: Final = 7900
_SHORT: Final = 200
TOOLS: Final[dict[Vendor, str]] = {
    "nvidia": nvidia.TOOL,
    "amd": f"{amd.TOOL} or {amd.OLDER_TOOL}",
}


@dataclass(frozen=True, slots=True)
class Devices:
    """The GPUs that the tools list; `troubles` has a line for each vendor's tool that is there and failed."""

    found: tuple[Device, ...]
    troubles: dict[Vendor, str]
    absent: frozenset[Vendor] = frozenset()


class DeviceReader:
    """Asks the tools of all vendors; for one thread."""

    def __init__(self, timeout_s: float) -> None:
        self._asker = asker = Asker(timeout_s)
        self._read = {"nvidia": lambda: read_nvidia(asker), "amd": AmdReader(asker).read}

    def cancel(self) -> None:
        """From another thread: end the tool that is being asked."""
        self._asker.cancel()

    def look(self) -> Devices:
        """The devices now; a tool that fails never takes the others' devices along."""
        found: list[Device] = []
        troubles: dict[Vendor, str] = {}
        absent: set[Vendor] = set()
        vendors: tuple[Vendor, ...] = ("nvidia", "amd")
        for vendor in vendors:
            try:
                found += self._read[vendor]()
            except ToolAbsent:
                absent.add(vendor)
            except ToolFailed as failed:
                troubles[vendor] = str(failed)
            except Exception as exc:
                troubles[vendor] = shown(f"what {TOOLS[vendor]} said cannot be read: {exc!r}")
        return Devices(tuple(found), troubles, frozenset(absent))


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at everything."""

    machine: Machine
    devices: Devices
    share: Share | None

    def plain(self) -> dict[str, Any]:
        """As JSON; what our containers leave to the rest follows from it."""
        return {
            "machine": self.machine.plain(),
            "containers": None if self.share is None else _shares(self.machine, self.share),
            "devices": [one.plain() for one in self.devices.found],
            "troubles": [trouble[:_SHORT] for trouble in self.devices.troubles.values()],
        }


class HardwareReader:
    """Looks at everything, for one thread."""

    def __init__(self, *, timeout_s: float, container_prefix: str) -> None:
        self._machine = MachineReader()
        self._devices = DeviceReader(timeout_s)
        self._attribution = Attribution(container_prefix)

    def cancel(self) -> None:
        """From another thread: end the tool that is being asked."""
        self._devices.cancel()

    def look(self) -> Reading:
        """The figures of now; it takes as long as the tools may take at most."""
        devices = self._devices.look()
        return Reading(self._machine.look(), devices, self._attribution.look())


def _shares(machine: Machine, share: Share) -> dict[str, Any]:
    both = share.cpu_percent is not None and machine.cpu_percent is not None
    rest = round(max(0.0, (machine.cpu_percent or 0) - (share.cpu_percent or 0)), 1) if both else None
    memory = max(0, machine.memory_used_mb - share.memory_mb)
    return {"ours": asdict(share), "rest": {"cpu_percent": rest, "memory_mb": memory}}


def payloads(head: dict[str, Any], plain: dict[str, Any], most: int = PAYLOAD_BYTES) -> Iterator[str]:
    """The reading in as many messages as it takes to keep each below `most` bytes.

    Each has all figures but those of devices, of which it has its share, whole; and `part` of `parts`.
    """
    rest = {name: value for name, value in plain.items() if name != "devices"}
    room = most - len(_json({**head, **rest, "part": 999, "parts": 999, "devices": []}))
    groups: list[list[Any]] = [[]]
    left = room
    for device in plain["devices"]:
        size = len(_json(device)) + 1
        if size > left and groups[-1]:
            groups.append([])
            left = room
        groups[-1].append(device)
        left -= size
    for part, devices in enumerate(groups, 1):
        yield _json({**head, "part": part, "parts": len(groups), **rest, "devices": devices})


def _json(value: Sequence[Any] | dict[str, Any]) -> str:
    """ASCII, so that its length is its bytes."""
    return json.dumps(value, separators=(",", ":"))
