"""The models that one worker keeps loaded, and what it does to load another.

    obtain ──warm──> make room for the job ──> hit
       │ cold
       └──> make room (least recently used first, never a pinned one) ──> load ──> use
                            ^──── unload all ────no memory, and others are loaded──┘

How much room that is `model_sizes` knows, which is told what each load and each job took of the device.

What is not known is taken to fill the card, as one that is full fails the job: without a budget one model is
kept at a time, beside the pinned ones, and a model of unknown size is kept alone.

The worker's main thread does all this. Others only read what is replaced as a whole: `names`, `current`,
`unloading`.
"""

from __future__ import annotations

import gc
import logging
import math
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from queue_workflows.errors import ModelLoadFailed
from queue_workflows.gpu.allocators import empty_allocators, held_by_frameworks_mb
from queue_workflows.gpu.model_sizes import DeviceMemory, InUse, ModelSizes
from queue_workflows.gpu.models import ModelRegistry, ModelSpec
from queue_workflows.telemetry.instruments import count_model_hit, count_model_load

_log = logging.getLogger(__name__)

# No context of a process takes more.
_CONTEXT_MB = 1024.0


@dataclass(slots=True)
class _Warm:
    """A model that is loaded."""

    spec: ModelSpec
    model: Any
    used_at: float
    # What its load took of the device, None where that is not known; and the most that a job took besides.
    took_mb: float | None = None
    grown_mb: float = 0.0


class ModelCache:
    """Least recently used first; told the time by `clock`, so that nobody has to wait in a test."""

    def __init__(
        self,
        registry: ModelRegistry,
        *,
        queue: str,
        budget_mb: float | None,
        keep_s: float,
        clock: Callable[[], float],
        memory: DeviceMemory | None = None,
    ) -> None:
        """`memory` is the device that models go to; without it they take what they say."""
        self.registry = registry
        self._memory = memory
        self.sizes = ModelSizes(None if memory is None else memory.kind)
        self._has_loaded = False
        # What was in use of the device when the job began that uses a model now.
        self._before_job: InUse | None = None
        self._queue = queue
        self._budget_mb = budget_mb
        self._keep_s = keep_s
        self._clock = clock
        # The least recently used first.
        self._warm: dict[str, _Warm] = {}
        self.names: tuple[str, ...] = ()
        self.current: str | None = None
        # The model that is being unloaded, and since when.
        self.unloading: tuple[str, float] | None = None
        self.hits = self.loads = self.failures = 0
        self.load_s = 0.0
        for spec in registry.specs():
            if not self._fits(spec):
                _log.warning(
                    "the model %s takes %g MB, too much for this worker's budget of %g and the models pinned"
                    " in it: it is not loaded here",
                    spec.name,
                    spec.vram_mb,
                    budget_mb,
                )

    @property
    def told(self) -> dict[str, float]:
        """What a heartbeat says of the past."""
        return {
            "model_hits": self.hits,
            "model_misses": self.loads + self.failures,
            "model_load_s": round(self.load_s, 3),
        }

    def loadable(self) -> list[str]:
        """The models that this worker can load."""
        self.registry.ask_again()
        return [spec.name for spec in self.registry.specs() if self._fits(spec)]

    def can_load(self, name: str) -> bool:
        """Whether this worker can load a model, or has."""
        spec = self.registry.find(name)
        return spec is not None and self._fits(spec)

    def obtain(self, name: str, is_wanted: Callable[[], bool]) -> Any:
        """The model, loaded if need be; None if nobody wants it any more before the load begins.

        `ModelLoadFailed` if its `load` raised.
        """
        warm = self._warm.pop(name, None)
        if warm is None:
            return self._load(name, is_wanted)
        self._warm[name] = warm
        self._make_room(warm.spec)
        warm.used_at = self._clock()
        self.hits += 1
        count_model_hit(self._queue)
        self._publish(name)
        self._before_job = self._in_use()
        return warm.model

    def used(self) -> None:
        """The job is over; idle time counts from here."""
        if self.current is not None and self.current in self._warm:
            self._warm[self.current].used_at = self._clock()
        self.look_at_peak()
        self.current, self._before_job = None, None

    def look_at_peak(self) -> None:
        """See what the job that uses a model has taken of the device by now; from any thread."""
        before, warm = self._before_job, self._warm.get(self.current or "")
        if before is None or warm is None or warm.took_mb is None or (now := self._in_use()) is None:
            return
        if (grown := now.used_mb - before.used_mb) > warm.grown_mb:
            warm.grown_mb = grown
            self.sizes.used(warm.spec.name, warm.took_mb + grown)

    def unload_idle(self, wanted: str | None = None) -> None:
        """Let go of what no job has used for as long as it is kept, but for one that is wanted now."""
        now = self._clock()
        for name in [
            name for name, warm in self._warm.items() if name != wanted and now >= self._until(warm)
        ]:
            _log.info("the model %s is unloaded: no job has wanted it for %g s", name, self._kept(name))
            self._unload(name)

    def next_unload_at(self) -> float:
        """When `unload_idle` has something to do, if nobody comes before."""
        return min(map(self._until, self._warm.values()), default=math.inf)

    def unload_all(self) -> None:
        """Let go of everything, pinned or not: the worker is to hold nothing."""
        for name in list(self._warm):
            self._unload(name)

    def _load(self, name: str, is_wanted: Callable[[], bool]) -> Any:
        spec = self.registry.find(name)
        if spec is None:
            raise ModelLoadFailed(name, "this worker does not know it")
        if is_wanted():
            self._make_room(spec)
        if not is_wanted():
            return None
        began = self._clock()
        self.current = name
        try:
            model, took_mb = self._loaded(spec)
        except (Exception, SystemExit) as exc:
            self.failures += 1
            self.current = None
            count_model_load(self._queue, "failed", self._clock() - began)
            _empty_frames(exc)
            _give_back()
            raise ModelLoadFailed(name, f"{type(exc).__name__}: {' '.join(str(exc).split())}") from exc
        now = self._clock()
        self.loads += 1
        self.load_s += now - began
        self._warm[name] = _Warm(spec, model, now, took_mb)
        self._publish(name)
        count_model_load(self._queue, "loaded", now - began)
        _log.info("the model %s was loaded in %.2f s", name, now - began)
        self._before_job = self._in_use()
        return model

    def _loaded(self, spec: ModelSpec) -> tuple[Any, float | None]:
        """The model, and what it took; tried again alone where others may have left too little memory."""
        try:
            return self._measured_load(spec)
        except (Exception, SystemExit) as exc:
            others = [name for name, warm in self._warm.items() if not warm.spec.pin]
            if not others or not _is_out_of_memory(exc):
                raise
            _log.warning("the model %s is loaded again, alone: there was too little memory for it", spec.name)
            _empty_frames(exc)
        for name in others:
            self._unload(name)
        self.current = spec.name
        return self._measured_load(spec)

    def _measured_load(self, spec: ModelSpec) -> tuple[Any, float | None]:
        if self._memory is not None:
            # A load into what a framework only keeps would seem to take nothing.
            empty_allocators()
        before, is_first = self._in_use(), not self._has_loaded
        self._has_loaded = True
        model = spec.load()
        after = self._in_use()
        if before is None or after is None:
            return model, None
        took_mb = after.used_mb - before.used_mb
        if is_first and (held := held_by_frameworks_mb()) is not None:
            # What the process pays once for its context is no model's; what else is beyond the frameworks is.
            took_mb -= min(max(took_mb - held, 0.0), _CONTEXT_MB)
        self.sizes.loaded(spec.name, took_mb)
        return model, took_mb

    def _in_use(self) -> InUse | None:
        return None if self._memory is None else self._memory.read()

    def _make_room(self, spec: ModelSpec) -> None:
        """Unload others, the least recently used first, until there is room for a model and its job."""
        others = [one.spec for one in self._warm.values() if not one.spec.pin and one.spec is not spec]
        for other in others:
            if self._has_room_for(spec):
                return
            _log.info("the model %s is unloaded: %s needs its room", other.name, spec.name)
            self._unload(other.name)

    def _has_room_for(self, spec: ModelSpec) -> bool:
        others = [one.spec for one in self._warm.values() if one.spec is not spec]
        is_warm = spec.name in self._warm
        if all(one.pin for one in others):
            return True
        if self._budget_mb is None:
            return spec.pin or is_warm
        needed_mb = self._or_all(self.sizes.needed_mb(spec))
        if sum(self._or_all(self.sizes.held_mb(one)) for one in others) + needed_mb > self._budget_mb:
            return False
        return is_warm or self._is_free(self._or_all(self.sizes.wanted_free_mb(spec)))

    def _is_free(self, needed_mb: float) -> bool:
        """Whether the device has so much, whatever uses the rest; true where nothing is known of it."""
        if (now := self._in_use()) is None or now.free_mb >= needed_mb:
            return True
        # What a framework keeps for itself looks used.
        empty_allocators()
        return (again := self._in_use()) is None or again.free_mb >= needed_mb

    def _fits(self, spec: ModelSpec) -> bool:
        """Beside the pinned ones, which never make room."""
        least_mb = self.sizes.least_mb(spec)
        if self._budget_mb is None or least_mb is None:
            return True
        pinned = [one for one in self.registry.specs() if one.pin and one is not spec]
        return sum(self.sizes.least_mb(one) or 0 for one in pinned) + least_mb <= self._budget_mb

    def _or_all(self, mb: float | None) -> float:
        """What is not known is taken to fill the budget."""
        return (self._budget_mb or 0.0) if mb is None else mb

    def _until(self, warm: _Warm) -> float:
        return math.inf if warm.spec.pin else warm.used_at + self._kept(warm.spec.name)

    def _kept(self, name: str) -> float:
        own = self._warm[name].spec.keep_s
        return self._keep_s if own is None else own

    def _unload(self, name: str) -> None:
        warm = self._warm.pop(name)
        self._publish(None if self.current == name else self.current)
        if warm.spec.unload is not None:
            self.unloading = name, self._clock()
            try:
                warm.spec.unload(warm.model)
            except (Exception, SystemExit):
                # What it kept is its own affair; the worker goes on without the model.
                _log.exception("the model %s could not be unloaded", name)
            finally:
                self.unloading = None
        del warm
        _give_back()

    def _publish(self, current: str | None) -> None:
        self.current = current
        self.names = tuple(reversed(self._warm))


def _is_out_of_memory(exc: BaseException) -> bool:
    """Whether a load failed for want of memory, in the words of any framework."""
    return isinstance(exc, MemoryError) or "out of memory" in f"{type(exc).__name__} {exc}".lower()


def _give_back() -> None:
    # A model is full of circles, which would keep its memory until Python gets round to them.
    gc.collect()
    empty_allocators()


def _empty_frames(exc: BaseException) -> None:
    """Half a model stands in the frames of a `load` that failed, which live for as long as the reason."""
    chain, seen = [exc], set[int]()
    while chain:
        one = chain.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        traceback.clear_frames(one.__traceback__)
        inner = one.exceptions if isinstance(one, BaseExceptionGroup) else ()
        chain += [other for other in (one.__cause__, one.__context__, *inner) if other is not None]
