"""One GPU as its vendor's tool tells of it, and the readings of untidy values that the tools share."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal

Vendor = Literal["nvidia", "amd"]
_NUMBER: Final = re.compile(r"\s*(-?[0-9]+(?:\.[0-9]+)?)(?:\s*([A-Za-z%°]+))?\s*")
_MB_IN: Final = {"b": 1 / 2**20, "kb": 1 / 2**10, "kib": 1 / 2**10, "gb": 2.0**10, "gib": 2.0**10}


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU, or a slice of one; None is what the tool does not tell. Memory is in MiB.

    `number` is the one by which the vendor's runtime knows it. A card that `is_split` is used by its slices
    alone; it is their `card`.
    """

    vendor: Vendor
    number: int | None = None
    uuid: str | None = None
    name: str | None = None
    utilisation_percent: float | None = None
    memory_total_mb: int | None = None
    memory_used_mb: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    card: str | None = None
    is_split: bool = False

    @property
    def id(self) -> str:
        """What it is known by for as long as it is in the machine, where the vendor says so much."""
        return self.uuid or f"{self.vendor}:{self.number}"

    def plain(self) -> dict[str, Any]:
        """As JSON; what is not told is left out."""
        told = {name: value for name, value in asdict(self).items() if value is not None}
        return {"id": self.id, **told}


def without_doubles(devices: Sequence[Device]) -> list[Device]:
    """A UUID that several share, as partitions of a card do, names none of them."""
    shared = {uuid for uuid, count in Counter(one.uuid for one in devices).items() if count > 1}
    return [replace(one, uuid=None) if one.uuid in shared else one for one in devices]


def number(value: object) -> float | None:
    """`37`, `37 %`, `{"value": 37, "unit": "%"}`; None for `[N/A]` and its many cousins."""
    return _number_and_unit(value)[0]


def megabytes(value: object, usual: str = "mb") -> int | None:
    """A size in MiB; a tool that names no unit means its `usual` one."""
    size, unit = _number_and_unit(value)
    if size is None or size < 0:
        return None
    return int(size * _MB_IN.get((unit or usual).lower(), 1.0))


def whole(value: object) -> int | None:
    """A number of a device."""
    found = number(value)
    return int(found) if found is not None and found >= 0 and found == int(found) else None


def words(value: object) -> str | None:
    """A name; None where the tool has none."""
    if not isinstance(value, str):
        return None
    text = " ".join("".join(char if char.isprintable() else " " for char in value).split())[:128]
    return None if text.strip("[]").upper() in ("", "N/A", "NOT SUPPORTED", "UNKNOWN ERROR") else text


def _number_and_unit(value: object) -> tuple[float | None, str | None]:
    if isinstance(value, dict):
        unit = value.get("unit")
        return _number_and_unit(value.get("value"))[0], unit if isinstance(unit, str) else None
    if isinstance(value, bool) or value is None:
        return None, None
    if isinstance(value, int | float):
        return _finite(value), None
    found = _NUMBER.fullmatch(value) if isinstance(value, str) else None
    return (_finite(found[1]), found[2]) if found else (None, None)


def _finite(value: str | float) -> float | None:
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None
