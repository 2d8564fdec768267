"""What machines are at, as figures; a device by its place in the machine, as there is no end of ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from queue_workflows.repositories.workers.hardware import HostReading
from queue_workflows.telemetry.exposition import Point, Points

_MIB: Final = 2**20


def of_hardware(readings: Iterable[HostReading], *, stale_s: float) -> dict[str, Points]:
    """The figures of each machine that is looked at; what its tools do not tell is left out."""
    figures: dict[str, list[Point]] = {
        name: []
        for name in (
            "qwf.host.cpu",
            "qwf.host.memory",
            "qwf.gpu.utilization",
            "qwf.gpu.memory",
            "qwf.gpu.temperature",
            "qwf.gpu.power",
        )
    }
    for one in readings:
        if one.is_stale(stale_s):
            continue
        for name, labels, value in (*_machine(one.reading), *_devices(one.reading.get("devices") or ())):
            figures[name].append(((one.host_label, *labels), value))
    return dict(figures)


def _machine(reading: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, ...], float]]:
    machine = reading.get("machine") or {}
    ours = (reading.get("containers") or {}).get("ours") or {}
    for part, percent in (("all", machine.get("cpu_percent")), ("ours", ours.get("cpu_percent"))):
        if percent is not None:
            yield "qwf.host.cpu", (part,), percent / 100
    for part, size in (
        ("total", machine.get("memory_total_mb")),
        ("used", machine.get("memory_used_mb")),
        ("ours", ours.get("memory_mb")),
    ):
        if size is not None:
            yield "qwf.host.memory", (part,), size * _MIB


def _devices(devices: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, tuple[str, ...], float]]:
    for label, device in _labelled(list(devices)):
        if (percent := device.get("utilisation_percent")) is not None:
            yield "qwf.gpu.utilization", (label,), percent / 100
        for part in ("total", "used"):
            if (size := device.get(f"memory_{part}_mb")) is not None:
                yield "qwf.gpu.memory", (label, part), size * _MIB
        for name, key in (("qwf.gpu.temperature", "temperature_c"), ("qwf.gpu.power", "power_w")):
            if (value := device.get(key)) is not None:
                yield name, (label,), value


def _labelled(devices: list[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """`nvidia0`, and of a card in slices `nvidia0.0`, `nvidia0.1`; each label is one device's."""
    cards = {one.get("id"): f"{one.get('vendor')}{one.get('number')}" for one in devices}
    slices: Counter[str] = Counter()
    used: set[str] = set()
    for at, device in enumerate(devices):
        card = cards.get(device.get("card"))
        if card is not None:
            label = f"{card}.{slices[card]}"
            slices[card] += 1
        else:
            number = device.get("number")
            label = f"{device.get('vendor')}{'' if number is None else number}"
        if label in used:
            label = f"{label}.{at}"
        used.add(label)
        yield label, device
