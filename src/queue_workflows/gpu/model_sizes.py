"""What models take of a device's memory: as it was seen when they were loaded and used, else as they say.

    a load, a job ──> seen here ──┐
    other workers' rows ──────────┴──> the most of the last few, and a margin ──> what a model takes

What a model says of itself counts for as long as nobody has seen it on a device of this kind, and is then
taken to be half of the truth: twice as much must be free on the device. What was seen last counts most, so a
model that has become smaller is believed after a few loads.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from queue_workflows.gpu.models import ModelSpec

# Of so many loads, and of the peaks of so many, the largest counts.
KEPT: Final = 8
MARGIN: Final = 0.02
# How much more than it says a model may take that nobody has loaded on such a device.
UNSEEN_FACTOR: Final = 2.0


class InUse(NamedTuple):
    """Memory of a device in MB."""

    used_mb: float
    total_mb: float

    @property
    def free_mb(self) -> float:
        """What nobody uses."""
        return self.total_mb - self.used_mb


class DeviceMemory(Protocol):
    """A device of a kind, which says what is in use of it."""

    kind: str

    def read(self) -> InUse | None:
        """What is in use now; None if nothing can be said."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen of one model on one kind of device, the newest first, in MB; `loads` counts all."""

    model: str
    load_mb: tuple[float, ...] = ()
    peak_mb: tuple[float, ...] = ()
    loads: int = 0

    @property
    def held_mb(self) -> float | None:
        """What it takes while it is loaded, without a margin."""
        return max(self.load_mb, default=None)

    @property
    def used_mb(self) -> float | None:
        """What it takes while a job uses it, without a margin."""
        return max((*self.load_mb, *self.peak_mb), default=None)


@dataclass(slots=True)
class _Fresh:
    """What this process saw of one model and has not stored yet."""

    load_mb: list[float] = field(default_factory=list)
    peak_mb: float | None = None


class ModelSizes:
    """The sizes on one kind of device; the main thread sees, the guarding thread stores and learns."""

    def __init__(self, kind: str | None) -> None:
        """`kind` None is a device of which nothing is known: models are what they say."""
        self.kind = kind
        self._lock = threading.Lock()
        self._seen: dict[str, Seen] = {}
        self._fresh: dict[str, _Fresh] = {}

    def loaded(self, model: str, took_mb: float) -> None:
        """A load took so much more of the device."""
        with self._lock:
            self._fresh.setdefault(model, _Fresh()).load_mb.append(max(took_mb, 0.0))

    def used(self, model: str, peak_mb: float) -> None:
        """While a job used it, the model and the job took so much together."""
        with self._lock:
            fresh = self._fresh.setdefault(model, _Fresh())
            fresh.peak_mb = max(fresh.peak_mb or 0.0, peak_mb)

    def seen(self, model: str) -> Seen | None:
        """What is known of a model by having seen it; None if nobody has."""
        with self._lock:
            known = _with(self._seen.get(model, Seen(model)), self._fresh.get(model, _Fresh()))
        return known if known.load_mb else None

    def held_mb(self, spec: ModelSpec) -> float | None:
        """What a loaded model takes; None if that is not known."""
        seen = self.seen(spec.name)
        return spec.vram_mb if seen is None or seen.held_mb is None else seen.held_mb * (1 + MARGIN)

    def needed_mb(self, spec: ModelSpec) -> float | None:
        """What a model and the job that uses it take together; None if that is not known."""
        seen = self.seen(spec.name)
        if seen is not None and seen.used_mb is not None:
            return seen.used_mb * (1 + MARGIN)
        return spec.vram_mb

    def wanted_free_mb(self, spec: ModelSpec) -> float | None:
        """What has to be free on the device before a load; None if that is not known."""
        needed_mb = self.needed_mb(spec)
        if needed_mb is None or self.seen(spec.name) is not None:
            return needed_mb
        return needed_mb * UNSEEN_FACTOR

    def least_mb(self, spec: ModelSpec) -> float | None:
        """The least that a model may be which says anything; so no wrong figure strands a job."""
        if spec.vram_mb is None:
            return None
        seen = self.seen(spec.name)
        return spec.vram_mb if seen is None or seen.held_mb is None else min(spec.vram_mb, seen.held_mb)

    def put_back(self, unsaved: Iterable[tuple[str, list[float], float | None]]) -> None:
        """What could not be stored is new again."""
        with self._lock:
            for model, load_mb, peak_mb in unsaved:
                fresh = self._fresh.setdefault(model, _Fresh())
                fresh.load_mb[:0] = load_mb
                fresh.peak_mb = max((mb for mb in (fresh.peak_mb, peak_mb) if mb is not None), default=None)

    def unsaved(self) -> list[tuple[str, list[float], float | None]]:
        """What this process saw since it was asked last: each model with its loads, and its jobs' peak."""
        with self._lock:
            fresh, self._fresh = self._fresh, {}
            for model, one in fresh.items():
                self._seen[model] = _with(self._seen.get(model, Seen(model)), one)
        return [(model, one.load_mb, one.peak_mb) for model, one in fresh.items()]

    def learn(self, rows: Iterable[Seen]) -> None:
        """Take over what all workers on such devices have seen, this one among them."""
        with self._lock:
            self._seen = {one.model: one for one in rows}


def _with(known: Seen, fresh: _Fresh) -> Seen:
    peaks = () if fresh.peak_mb is None else (fresh.peak_mb,)
    return Seen(
        known.model,
        (*reversed(fresh.load_mb), *known.load_mb)[:KEPT],
        (*peaks, *known.peak_mb)[:KEPT],
        known.loads + len(fresh.load_mb),
    )
