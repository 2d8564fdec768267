"""The machine itself: its processors and its memory, whatever uses them."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any

import psutil


@dataclass(frozen=True, slots=True)
class Machine:
    """Figures of the whole machine; `cpu_percent` is None at the first look."""

    cpu_percent: float | None
    cores: int
    load: tuple[float, float, float] | None
    memory_total_mb: int
    memory_used_mb: int

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


class MachineReader:
    """Looks again and again; a processor's use is that since the look before."""

    def __init__(self) -> None:
        self._before: tuple[float, float] | None = None

    def look(self) -> Machine:
        """The figures of now. Memory that could be given up at once on demand is not in use."""
        memory = psutil.virtual_memory()
        return Machine(
            self._cpu_percent(),
            os.cpu_count() or 1,
            os.getloadavg(),
            memory.total >> 20,
            (memory.total - memory.available) >> 20,
        )

    def _cpu_percent(self) -> float | None:
        times = psutil.cpu_times()
        # What guests use is in `user` and `nice` already.
        total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        idle = times.idle + getattr(times, "iowait", 0.0)
        before, self._before = self._before, (total, idle)
        if before is None or total <= before[0]:
            return None
        return round(max(0.0, min(100.0, 100 * (1 - (idle - before[1]) / (total - before[0])))), 1)
