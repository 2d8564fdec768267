"""Machines as lines: a bar for what there is a whole of, a curve of the last hour, words for the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from queue_workflows.drawing.terminal import Terminal, padded
from queue_workflows.drawing.words import on_one_line, say_span

_BAR: Final = 20
_NAME: Final = 12
# From here on a bar is coloured.
_HIGH, _FULL = 0.75, 0.95
_COLUMNS: Final = 60
_HEIGHTS: Final = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Curve:
    """Percents over time of what a machine or one of its devices has; None where nothing is known."""

    name: str
    what: str
    values: Sequence[float | None]

    @property
    def is_known(self) -> bool:
        """Whether there is anything to draw."""
        return any(value is not None for value in self.values)

    @property
    def last(self) -> float | None:
        """Its figure of now."""
        return self.values[-1] if self.values else None

    @property
    def highest(self) -> float | None:
        """Its highest figure."""
        return max((value for value in self.values if value is not None), default=None)


def drawn(hosts: Sequence[Mapping[str, Any]], terminal: Terminal) -> Iterator[str]:
    """The lines of `qwf hw`, for readings with their host, age, staleness and quarantines."""
    for number, host in enumerate(hosts):
        if number:
            yield ""
        yield _headline(host, terminal)
        yield from _machine(host, terminal)
        for device in host["devices"]:
            yield from _device(device, terminal)
        for trouble in host["troubles"]:
            yield terminal.paint(f"  ! {on_one_line(trouble)}", fg="red")


def drawn_history(hosts: Sequence[tuple[str, Sequence[Curve]]], terminal: Terminal) -> Iterator[str]:
    """The lines of `qwf hw --history`: for each host its curves, the highest of each stretch of time."""
    for number, (host_label, curves) in enumerate(hosts):
        if number:
            yield ""
        name = terminal.paint(on_one_line(host_label), bold=True)
        if not any(one.is_known for one in curves):
            yield f"{name}  nothing was kept of the last hour"
            continue
        yield f"{name}  the last hour"
        for one in curves:
            figures = f"now {_percent(one.last)}   highest {_percent(one.highest)}"
            yield _line(one.name, [_spark(one.values, terminal), figures, one.what])


def _spark(values: Sequence[float | None], terminal: Terminal) -> str:
    """A column for each stretch of time, as high as the highest of it; a blank where nothing is known."""
    stretch = max(1, len(values) // _COLUMNS)
    columns = []
    for first in range(0, len(values), stretch):
        known = [value for value in values[first : first + stretch] if value is not None]
        share = min(100.0, max(0.0, *known)) / 100 if known else None
        columns.append(" " if share is None else _HEIGHTS[round(share * (len(_HEIGHTS) - 1))])
    return terminal.glyphs("".join(columns))


def device_name(device: Mapping[str, Any]) -> str:
    """A device as its vendor's tool counts it, or by its id where it has no number."""
    if device.get("number") is None:
        return str(device["id"])[:_NAME]
    return f"{device['vendor']}{device['number']}"


def _headline(host: Mapping[str, Any], terminal: Terminal) -> str:
    name = terminal.paint(on_one_line(host["host_label"]), bold=True)
    ago = say_span(host["sampled_s_ago"])
    if host["stale"]:
        return f"{name}  {terminal.paint(f'stale: nothing was heard for {ago}', fg='yellow')}"
    return f"{name}  {ago} ago"


def _machine(host: Mapping[str, Any], terminal: Terminal) -> Iterator[str]:
    machine, containers = host["machine"], host["containers"]
    load = machine["load"]
    cpu = [f"of {machine['cores']} cores"]
    cpu += [f"load {' '.join(f'{one:.1f}' for one in load)}"] if load else []
    memory = []
    if containers is not None:
        ours, rest = containers["ours"], containers["rest"]
        cpu.append(f"ours {_percent(ours['cpu_percent'])}, the rest {_percent(rest['cpu_percent'])}")
        count = ours["containers"]
        memory.append(
            f"ours {_gb(ours['memory_mb'])} GB in {count} {'container' if count == 1 else 'containers'},"
            f" the rest {_gb(rest['memory_mb'])} GB"
        )
    share = None if machine["cpu_percent"] is None else machine["cpu_percent"] / 100
    yield _line("cpu", [_bar(share, terminal), _percent(machine["cpu_percent"]), *cpu])
    yield _line("memory", [*_of(machine["memory_used_mb"], machine["memory_total_mb"], terminal), *memory])


def _device(device: Mapping[str, Any], terminal: Terminal) -> Iterator[str]:
    used, total = device.get("memory_used_mb"), device.get("memory_total_mb")
    busy = device.get("utilisation_percent")
    about = []
    if (heat := device.get("temperature_c")) is not None:
        about.append(f"{heat:.0f} C")
    if (power := device.get("power_w")) is not None:
        limit = device.get("power_limit_w")
        about.append(f"{power:.0f} of {limit:.0f} W" if limit else f"{power:.0f} W")
    about.append(on_one_line(device.get("name", device["vendor"])))
    worker = device.get("worker")
    if worker is not None:
        about.append(f"worker {on_one_line(worker)}")
    name = device_name(device)
    if device.get("is_split"):
        yield _line(name, ["split into slices", *about])
    else:
        parts = [*_of(used, total, terminal), f"busy {_percent(busy)}", *about]
        yield _line(name, parts)
    for model in device.get("models", ()):
        yield f"  {'':<{_NAME}}{_took(model)}"
    if (why := device.get("quarantined")) is not None:
        yield terminal.paint(f"  ! {device['id']} is quarantined: {on_one_line(why)}", fg="red")


def _line(name: str, parts: Sequence[str]) -> str:
    return f"  {padded(on_one_line(name), _NAME)}  {'   '.join(part for part in parts if part)}"


def _of(used: int | None, total: int | None, terminal: Terminal) -> list[str]:
    share = None if used is None or not total else used / total
    whole = "" if total is None else f" of {_gb(total)}"
    return [_bar(share, terminal), f"{'?' if used is None else _gb(used)}{whole} GB"]


def _bar(share: float | None, terminal: Terminal) -> str:
    """A share of the whole, 0 to 1; nothing is known of None."""
    filled = round(_BAR * min(1.0, max(0.0, share or 0.0)))
    text = terminal.glyphs("█" * filled + "░" * (_BAR - filled))
    if share is None or share < _HIGH:
        return text
    return terminal.paint(text, fg="red" if share >= _FULL else "yellow")


def _percent(value: float | None) -> str:
    return "   ?" if value is None else f"{value:3.0f}%"


def _gb(mb: float) -> str:
    return f"{mb / 1024:.1f}"


def _took(model: Mapping[str, Any]) -> str:
    """What a model took of such a device, on how much evidence, and what it says of itself."""
    loads = model["loads"]
    said = "" if model["declared_mb"] is None else f"; it says {_gb(model['declared_mb'])}"
    name = on_one_line(model["model"])
    return f"{name} takes {_gb(model['used_mb'])} GB ({loads} load{'' if loads == 1 else 's'}{said})"
