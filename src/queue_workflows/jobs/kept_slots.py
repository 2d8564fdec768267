"""What the jobs of one worker hold of keyed limits, for the threads that claim, work, guard and end."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable

from queue_workflows.repositories.claimed import ClaimedJob, Fence
from queue_workflows.repositories.slots import Slot


class KeptSlots:
    """The slots of each attempt in hand, and the key that it was claimed under, which may have no slot.

    Renewed with the leases of the jobs, given back with their ends: what is added here needs no other care.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._keys: dict[Fence, str] = {}
        self._slots: dict[Fence, dict[Slot, None]] = {}

    def __bool__(self) -> bool:
        """Whether there is anything to see to; most workers never have any."""
        return bool(self._keys or self._slots)

    def claimed(self, jobs: Iterable[ClaimedJob]) -> None:
        """Jobs that were claimed under a key."""
        with self._lock:
            self._keys.update({job.fence: job.limit_key for job in jobs if job.limit_key is not None})

    def add(self, slots: Iterable[Slot]) -> None:
        """Slots that were taken."""
        with self._lock:
            for slot in slots:
                self._slots.setdefault(slot.fence, {})[slot] = None

    def remove(self, slots: Iterable[Slot]) -> None:
        """Slots that were given back, or lost."""
        with self._lock:
            for slot in slots:
                kept = self._slots.get(slot.fence, {})
                kept.pop(slot, None)
                if not kept:
                    self._slots.pop(slot.fence, None)

    def of(self, fences: Iterable[Fence]) -> list[Slot]:
        """The slots of some attempts."""
        with self._lock:
            return [slot for fence in fences for slot in self._slots.get(fence, ())]

    def keys_of(self, fences: Iterable[Fence]) -> dict[str, int]:
        """The keys under which some attempts were claimed, or of which they have slots; how often each."""
        with self._lock:
            keys: Counter[str] = Counter()
            for fence in fences:
                own = {slot.key for slot in self._slots.get(fence, ())}
                if (key := self._keys.get(fence)) is not None:
                    own.add(key)
                keys.update(own)
            return dict(keys)

    def forget(self, fences: Iterable[Fence]) -> None:
        """Attempts that are over."""
        with self._lock:
            for fence in fences:
                self._keys.pop(fence, None)
                self._slots.pop(fence, None)
