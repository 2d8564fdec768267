"""Which devices of this machine a supervisor may give to a worker, one to each.

    locking ──nobody else's──> (a worker left it?) ──no──> free ──> taken ──its tree has ended──> proving
       │                            │ yes                    ^                                      │  │
       └ another supervisor's       └──> proving ────────────┴────────its memory is back────────────┘  │
                                            ^                                                          │
                                            └───`qwf workers on`─── quarantined <───it is not, in time─┘

The lock is a file's, held by the supervisor and, by inheritance, by the worker: a worker that outlives its
supervisor keeps the next one from its device. The file says which worker was started on the device and what
was in use before, until its release is proved; so the proof outlives the supervisor as well. What is
quarantined stands in the database, where an operator ends it.

All of this is for the supervisor's main thread. It looks at what the sampler saw last and never waits.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Any, Final, Self

import psycopg

from queue_workflows.gpu.devices import environment_for, usable
from queue_workflows.gpu.release import NO_BOUNDS, Bounds, Occupancy, Proof, Sight, prove
from queue_workflows.host.locks.flock import lock_directory, try_lock
from queue_workflows.roles.supervisor.hardware_reports import HardwareReports
from queue_workflows.roles.supervisor.hardware_sampler import Sampler
from queue_workflows.roles.supervisor.slots import GPU, EachDevice, Slot
from queue_workflows.settings import Settings
from queue_workflows.telemetry.hw.device import Device
from queue_workflows.telemetry.hw.reading import HardwareReader

_log = logging.getLogger(__name__)

_LONGEST_CLAIM: Final = 4096


class _State(Enum):
    LOCKING = auto()
    FREE = auto()
    TAKEN = auto()
    PROVING = auto()
    QUARANTINED = auto()


_AT_REST: Final = (_State.FREE, _State.QUARANTINED)


@dataclass
class _Place:
    device: Device
    state: _State = _State.LOCKING
    lock: int | None = None
    left_by: Occupancy | None = None
    since: float = 0.0
    least_mb: int | None = None
    said: str = field(default="", repr=False)


@dataclass(frozen=True)
class Handover:
    """What a worker is given besides its command: its environment, and descriptors that it inherits."""

    environ: Mapping[str, str]
    descriptors: tuple[int, ...] = ()


class Placement:
    """The devices behind a supervisor's slots; where none were asked for it lets everything pass."""

    def __init__(
        self,
        each: EachDevice | None,
        reports: HardwareReports | None = None,
        sampler: Sampler | None = None,
        *,
        lock_dir: Path = Path(),
        bounds: Bounds = NO_BOUNDS,
        now: Callable[[], float] = time.monotonic,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._each = each
        self._reports = reports
        self._sampler = sampler
        self._bounds = bounds
        self._now = now
        self._environ = environ
        self._lock_dir = lock_dir
        self._places: dict[str, _Place] = {}
        self._sight = Sight()
        self._doubted: set[str] = set()

    @classmethod
    def of(cls, settings: Settings, each: EachDevice | None, ring: Callable[[], None]) -> Self:
        """A placement with a thread that looks at this machine, and rings after each look."""
        reports = HardwareReports(settings.host_label, GPU, every_s=settings.hw_sample_s)
        reader = HardwareReader(
            timeout_s=settings.hw_tool_timeout_s, container_prefix=settings.container_prefix
        )
        return cls(
            each,
            reports,
            Sampler(reader, every_s=settings.hw_sample_s, tell=ring, publish=reports.publish),
            lock_dir=Path() if each is None else lock_directory(settings.lock_dir),
            bounds=Bounds(settings.gpu_release_s, settings.gpu_release_tolerance_mb),
        )

    def start(self) -> None:
        """Begin to look."""
        if self._sampler is not None:
            self._sampler.start()

    def close(self, *, within_s: float) -> None:
        """Look no more; a look that is under way may take so long to end."""
        if self._sampler is not None:
            self._sampler.close(within_s=within_s)

    def errand(self, connection: psycopg.Connection[Any]) -> None:
        """What the database thread does for the devices in each of its rounds."""
        if self._reports is not None:
            self._reports.run(connection)

    def first_slots(self) -> list[Slot]:
        """A slot for each device that was there at the start."""
        return self._slots_for(self._each.devices) if self._each is not None else []

    def tend(self) -> list[Slot]:
        """Judge every device by what was seen last; the slots of devices that are new."""
        if self._each is None or self._reports is None or self._sampler is None:
            return []
        self._sight = sight = self._sampler.sight
        seen = usable(list(sight.devices.values()), self._environ)
        fresh = [one for one in seen if one.id not in self._places and not self._may_be_another(one)]
        slots = self._slots_for(fresh)
        for slot in slots:
            _log.info("%s: %s has appeared", slot.name, slot.device)
        for place in self._places.values():
            self._tend(place, self._reports)
        proving = [place.device for place in self._places.values() if place.state is _State.PROVING]
        self._sampler.hurry(not all(self._is_split(device) for device in proving))
        self._reports.devices = sum(place.lock is not None for place in self._places.values())
        self._reports.occupants = {
            device: place.left_by.worker_id
            for device, place in self._places.items()
            if place.state is _State.TAKEN and place.left_by is not None
        }
        return slots

    def admits(self, slot: Slot) -> bool:
        """Whether a worker may be started there now."""
        if slot.device is None:
            return True
        place = self._places[slot.device]
        return place.state is _State.FREE and not self._hindrance(place.device)

    def evicts(self, slot: Slot) -> str | None:
        """Why the worker there has to end: its card was split under it, and it would share a slice."""
        if slot.device is None or not self._is_split(self._places[slot.device].device):
            return None
        return f"{slot.device} has been split, and its slices have workers of their own"

    def hand_over(self, slot: Slot, worker_id: str | None) -> Handover:
        """Give the slot's device to a worker that is about to be started."""
        if slot.device is None or worker_id is None:
            return Handover(self._environ)
        place = self._places[slot.device]
        used = self._sight.devices[slot.device].memory_used_mb
        # The least there ever was: what one worker after the other leaves behind adds up.
        place.least_mb = min((mb for mb in (used, place.least_mb) if mb is not None), default=None)
        place.left_by, place.state = Occupancy(worker_id, place.least_mb), _State.TAKEN
        self._write(place)
        descriptors = () if place.lock is None else (place.lock,)
        return Handover(environment_for(place.device, self._environ), descriptors)

    def vacated(self, slot: Slot, left: Sequence[int] = ()) -> None:
        """Note that a slot's whole process tree has ended but for what is `left`, or could not be started."""
        if slot.device is not None:
            place = self._places[slot.device]
            place.state, place.since = _State.PROVING, self._now()
            if (
                left
                and self._reports is not None
                and place.left_by is not None
                and place.left_by.before_mb is None
            ):
                pids = ", ".join(map(str, left))
                reason = f"{place.left_by.worker_id} left processes that cannot be ended: {pids}"
                self._put_aside(place, self._reports, reason)

    def _may_be_another(self, one: Device) -> bool:
        """Whether a device that appears may be one that a worker has, under another name.

        A tool that fails to tell a UUID leaves a number, and no card has both: so a newcomer is not believed
        while one of its vendor is missing and either of them has only a number.
        """
        missing = [
            place.device
            for place in self._places.values()
            if place.device.vendor == one.vendor and place.device.id not in self._sight.devices
        ]
        suspects = [other.id for other in missing if other.uuid is None or one.uuid is None]
        if suspects and one.id not in self._doubted:
            self._doubted.add(one.id)
            _log.warning(
                "device %s gets no worker: it may be %s, which is not listed at present",
                one.id,
                " or ".join(suspects),
            )
        return bool(suspects)

    def _slots_for(self, devices: Sequence[Device]) -> list[Slot]:
        if self._each is None:
            return []
        self._places |= {one.id: _Place(one) for one in devices}
        spec = self._each.worker
        return [Slot(f"{spec.name}/{_label(one)}", spec, self._now(), device=one.id) for one in devices]

    def _tend(self, place: _Place, reports: HardwareReports) -> None:
        if place.state is _State.LOCKING and reports.is_open:
            self._lock(place)
        is_quarantined = reports.is_quarantined(place.device.id)
        if place.state in (_State.FREE, _State.PROVING) and is_quarantined:
            place.state = _State.QUARANTINED
        if place.state is _State.QUARANTINED and not is_quarantined:
            _log.info("device %s: switched on again", place.device.id)
            place.state, place.since = _State.PROVING, self._now()
        if place.state is _State.PROVING and self._is_split(place.device):
            # What its slices use proves nothing; the patience begins when it is whole again.
            place.since = self._now()
        elif place.state is _State.PROVING:
            self._prove(place, reports)
        # Before the first look there is nothing to say of what it has not shown.
        if place.state is _State.FREE and self._sight.asked_at >= 0:
            self._say(place, self._hindrance(place.device))

    def _hindrance(self, device: Device) -> str:
        """What keeps a device that is free from a worker."""
        if device.id not in self._sight.devices:
            return "is not listed at present: nothing is started there"
        if self._is_split(device):
            return "is split: its slices have workers, and it has none"
        part = self._part_in_use(device)
        return f"waits for {part}, which is in use, and is a part of it or the whole" if part else ""

    def _is_split(self, device: Device) -> bool:
        seen = self._sight.devices.get(device.id)
        return seen is not None and seen.is_split

    def _part_in_use(self, device: Device) -> str | None:
        """A slice of this card, or the card of this slice, that a worker may still be on."""
        for place in self._places.values():
            is_slice_in_use = place.device.card == device.id and place.state not in _AT_REST
            if is_slice_in_use or (place.device.id == device.card and place.state is _State.TAKEN):
                return place.device.id
        return None

    def _lock(self, place: _Place) -> None:
        path = self._lock_dir / f"device-{place.device.id.replace('/', '_').replace(':', '_')}.lock"
        try:
            place.lock = try_lock(path)
        except OSError as exc:
            self._say(place, f"is not used: its lock {path} cannot be taken: {exc.strerror or exc}")
            return
        if place.lock is None:
            self._say(place, f"is another supervisor's, or of a worker that outlived one: {path} is locked")
            return
        place.left_by = _read(place.lock)
        place.least_mb = place.left_by.before_mb if place.left_by else None
        place.state, place.since = _State.PROVING, self._now()

    def _prove(self, place: _Place, reports: HardwareReports) -> None:
        device = place.device
        if place.left_by is None:
            # Nothing of ours was there; that it can be seen at all is told by `admits`.
            place.state = _State.FREE
            return
        proof, reason = prove(
            device, place.left_by, self._sight, since=place.since, now=self._now(), bounds=self._bounds
        )
        if proof is Proof.FREE:
            _log.info("device %s: free after %.1f s", device.id, self._now() - place.since)
            place.state, place.left_by = _State.FREE, None
            self._write(place)
        elif proof is Proof.STUCK:
            self._put_aside(place, reports, reason)

    def _put_aside(self, place: _Place, reports: HardwareReports, reason: str) -> None:
        device = place.device
        _log.error("device %s is quarantined: %s; `qwf workers on` has it tried again", device.id, reason)
        reports.quarantine(device.id, reason, self._sight.devices.get(device.id, device).plain())
        place.state = _State.QUARANTINED

    def _write(self, place: _Place) -> None:
        if place.lock is None:
            return
        text = "" if place.left_by is None else json.dumps(place.left_by.plain())
        try:
            os.ftruncate(place.lock, 0)
            os.pwrite(place.lock, text.encode(), 0)
        except OSError as exc:
            _log.error("device %s: its holder cannot be written down: %s", place.device.id, exc)

    def _say(self, place: _Place, what: str) -> None:
        """Log something of a device once, until it is something else."""
        if what and place.said != what:
            _log.warning("device %s %s", place.device.id, what)
        place.said = what


def _label(device: Device) -> str:
    """What the log calls a device's slot; older drivers name a slice by its card and its place there."""
    if device.number is not None:
        return f"{device.vendor}{device.number}"
    card, _, place = device.id.partition("/")
    return f"{card[:16]}-{place.replace('/', '-')}" if place else device.id[:12]


def _read(lock: int) -> Occupancy | None:
    """Which worker was started on a device and was never proved to be gone from it."""
    try:
        return Occupancy.of(json.loads(os.pread(lock, _LONGEST_CLAIM, 0) or b"null"))
    except (OSError, ValueError):
        return None
