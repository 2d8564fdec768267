"""What the jobs of one worker hold of keyed limits, for the threads that claim, work, guard and end."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable

from queue_workflows.repositories.limits.slots import Slot
from queue_workflows.repositories.sql.claimed_job import ClaimedJob, Fence


class KeptSlots:
    """The slots of each attempt in hand, and the key that it was claimed under, which may have no slot.

    Renewed with the leases of the jobs, given back with their ends: what is added here needs no other care.
    A slot that had to be taken again is still known by what it was first, so that its window can be closed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Read by anybody, so that a worker without any pays no call for each job; written under the lock.
        self.keys: dict[Fence, str] = {}
        # Each slot as it was first, with what it is by now.
        self.slots: dict[Fence, dict[Slot, Slot]] = {}
        # What was perhaps taken again while its attempt ended, so that its end may have missed it.
        self.late: list[Slot] = []

    def __bool__(self) -> bool:
        """Whether there is anything to see to; most workers never have any."""
        return bool(self.keys or self.slots)

    def claimed(self, jobs: Iterable[ClaimedJob]) -> None:
        """Jobs that were claimed under a key."""
        with self._lock:
            self.keys.update({job.fence: job.limit_key for job in jobs if job.limit_key is not None})

    def add(self, slots: Iterable[Slot]) -> None:
        """Slots that were taken."""
        with self._lock:
            for slot in slots:
                self.slots.setdefault(slot.fence, {})[slot] = slot

    def remove(self, slots: Iterable[Slot]) -> list[Slot]:
        """Slots that are to be given back, named as they were first: what each is by now."""
        with self._lock:
            return [self._pop(slot) or slot for slot in slots]

    def lose(self, slot: Slot) -> bool:
        """A slot as it is by now, that is another's; whether it was wanted still."""
        with self._lock:
            if (first := self._first(slot)) is None:
                return False
            self._pop(first)
            return True

    def replace(self, slot: Slot, by: Slot) -> bool:
        """A slot that was lost has been taken again; False if nobody wants it any more."""
        with self._lock:
            if (first := self._first(slot)) is None:
                return False
            self.slots[slot.fence][first] = by
            return True

    def pop_late(self) -> list[Slot]:
        """The late slots, which are to be given back."""
        with self._lock:
            late, self.late = self.late, []
            return late

    def of(self, fences: Iterable[Fence]) -> list[Slot]:
        """The slots of some attempts."""
        with self._lock:
            return [slot for fence in fences for slot in self.slots.get(fence, {}).values()]

    def keys_of(self, fences: Iterable[Fence]) -> dict[str, int]:
        """The keys under which some attempts were claimed, or of which they have slots; how often each."""
        with self._lock:
            keys: Counter[str] = Counter()
            for fence in fences:
                own = {slot.key for slot in self.slots.get(fence, ())}
                if (key := self.keys.get(fence)) is not None:
                    own.add(key)
                keys.update(own)
            return dict(keys)

    def forget(self, fences: Iterable[Fence]) -> None:
        """Attempts that are over."""
        with self._lock:
            for fence in fences:
                self.keys.pop(fence, None)
                gone = self.slots.pop(fence, {})
                self.late += [slot for first, slot in gone.items() if slot is not first]

    def _first(self, slot: Slot) -> Slot | None:
        kept = self.slots.get(slot.fence, {})
        return next((first for first, now in kept.items() if now == slot), None)

    def _pop(self, first: Slot) -> Slot | None:
        kept = self.slots.get(first.fence, {})
        slot = kept.pop(first, None)
        if not kept:
            self.slots.pop(first.fence, None)
        return slot
