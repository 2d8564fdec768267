"""Which devices a supervisor gives to its workers: decided from what was seen last, without waiting."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from queue_workflows.gpu.release import Bounds, Sight
from queue_workflows.host.locks.flock import try_lock
from queue_workflows.roles.supervisor.gpu_placement import Placement
from queue_workflows.roles.supervisor.hardware_reports import HardwareReports
from queue_workflows.roles.supervisor.slots import EachDevice, Slot, WorkerSpec
from queue_workflows.telemetry.hw.device import Device
from queue_workflows.telemetry.hw.machine import Machine
from queue_workflows.telemetry.hw.reading import Devices, Reading

CARDS = [Device("nvidia", number, f"GPU-{number}a", memory_used_mb=3) for number in (0, 1)]


class Looking:
    """What stands for the thread that looks."""

    def __init__(self) -> None:
        self.sight = Sight()
        self.is_hurried = False

    def hurry(self, wanted: bool) -> None:
        self.is_hurried = wanted

    def sees(self, at: float, *devices: Device, **troubles: str) -> None:
        self.sight = Sight(at, {one.id: one for one in devices}, troubles)


class Bench:
    """A placement of two cards, its clock, and what the database is told."""

    def __init__(self, lock_dir: Path, devices: list[Device] = CARDS) -> None:
        self.at = 0.0
        self.looking = Looking()
        self.reports = HardwareReports("h1", "gpu", every_s=5.0)
        each = EachDevice(WorkerSpec("gpu"), tuple(devices))
        self.placement = Placement(
            each,
            self.reports,
            self.looking,  # type: ignore[arg-type]
            lock_dir=lock_dir,
            bounds=Bounds(30.0, 256),
            now=lambda: self.at,
            environ={"A": "b"},
        )
        self.slots = self.placement.first_slots()

    def tend(self, at: float) -> list[str]:
        """The slots that may start then."""
        self.at = at
        self.slots += self.placement.tend()
        return [slot.name for slot in self.slots if self.placement.admits(slot)]

    def start(self, slot: Slot, worker: str) -> dict[str, str]:
        return dict(self.placement.hand_over(slot, worker).environ)

    def opened(self) -> list[str]:
        """The quarantines are known, and both cards have been seen."""
        self.reports.is_open = True
        self.looking.sees(0.5, *CARDS)
        return self.tend(1.0)

    def close(self) -> None:
        """As when its process ends."""
        for place in self.placement._places.values():
            if place.lock is not None:
                os.close(place.lock)
                place.lock = None


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


def test_nothing_starts_before_the_quarantines_are_known_and_the_device_was_seen(bench: Bench) -> None:
    """A database that is away at the start keeps everybody from the cards; nobody could work anyway."""
    bench.looking.sees(0.5, *CARDS)
    assert bench.tend(1.0) == []
    bench.reports.is_open = True
    bench.looking.sight = Sight()
    assert bench.tend(2.0) == []
    bench.looking.sees(2.5, CARDS[1])
    assert bench.tend(3.0) == ["gpu/nvidia1"]
    bench.looking.sees(3.5, *CARDS)
    assert bench.tend(4.0) == ["gpu/nvidia0", "gpu/nvidia1"]


def test_a_device_that_is_given_away_is_not_given_again(bench: Bench) -> None:
    """Until its worker has ended and a look that began after that has seen it free."""
    assert bench.opened() == ["gpu/nvidia0", "gpu/nvidia1"]
    environ = bench.start(bench.slots[0], "w1")
    assert environ == {
        "A": "b",
        "CUDA_VISIBLE_DEVICES": "GPU-0a",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "_QWF_ALONE_ON_DEVICE": "1",
    }
    assert bench.tend(2.0) == ["gpu/nvidia1"]
    assert bench.reports.occupants == {"GPU-0a": "w1"}
    assert not bench.looking.is_hurried
    bench.placement.vacated(bench.slots[0])
    assert bench.tend(3.0) == ["gpu/nvidia1"]
    assert bench.looking.is_hurried
    bench.looking.sees(3.5, *CARDS)
    assert bench.tend(4.0) == ["gpu/nvidia0", "gpu/nvidia1"]
    assert not bench.looking.is_hurried
    assert bench.reports.occupants == {}


def test_what_workers_leave_behind_adds_up(bench: Bench) -> None:
    """Each is measured by the least that there ever was, not by what the one before it left."""
    bench.opened()
    for at, used in ((10.0, 203), (20.0, 258)):
        bench.start(bench.slots[0], "w1")
        bench.placement.vacated(bench.slots[0])
        bench.looking.sees(at + 1, replace(CARDS[0], memory_used_mb=used))
        assert bench.tend(at + 2) == ["gpu/nvidia0"]
    bench.start(bench.slots[0], "w1")
    bench.placement.vacated(bench.slots[0])
    bench.looking.sees(61.0, replace(CARDS[0], memory_used_mb=300))
    assert bench.tend(62.0) == []
    assert bench.reports.is_quarantined("GPU-0a")


def test_a_look_that_did_not_tell_the_memory_takes_away_no_figure(bench: Bench) -> None:
    """Else whatever the next worker leaves would count as what was in use before."""
    bench.opened()
    silent = replace(CARDS[0], memory_used_mb=None)
    for at, before, proof in ((10.0, silent, CARDS[0]), (20.0, silent, replace(CARDS[0], memory_used_mb=9))):
        bench.start(bench.slots[0], "w1")
        bench.placement.vacated(bench.slots[0])
        bench.looking.sees(at + 1, proof)
        assert bench.tend(at + 2) == ["gpu/nvidia0"]
        bench.looking.sees(at + 3, before)
        assert bench.tend(at + 4) == ["gpu/nvidia0"]
    bench.start(bench.slots[0], "w1")
    bench.placement.vacated(bench.slots[0])
    bench.looking.sees(61.0, replace(CARDS[0], memory_used_mb=900))
    assert bench.tend(62.0) == []
    assert bench.reports.is_quarantined("GPU-0a")


def test_a_process_that_cannot_be_ended_keeps_a_device_that_tells_no_memory(tmp_path: Path) -> None:
    """The end of the tree is all the proof that there could be; where the memory is told, that decides."""
    silent = [replace(CARDS[0], memory_used_mb=None), CARDS[1]]
    bench = Bench(tmp_path, silent)
    bench.reports.is_open = True
    bench.looking.sees(0.5, *silent)
    assert bench.tend(1.0) == ["gpu/nvidia0", "gpu/nvidia1"]
    for slot in bench.slots:
        bench.start(slot, "w1")
        bench.placement.vacated(slot, [4711])
    bench.looking.sees(2.0, *silent)
    assert bench.tend(3.0) == ["gpu/nvidia1"]
    assert bench.reports.is_quarantined("GPU-0a")
    bench.close()


def test_a_device_that_is_gone_waits_and_one_that_is_gone_with_its_worker_is_quarantined(
    bench: Bench,
) -> None:
    """The one proves nothing wrong; of the other nobody knows what it still holds."""
    bench.opened()
    bench.start(bench.slots[0], "w1")
    bench.looking.sees(2.0)
    assert bench.tend(3.0) == []
    bench.placement.vacated(bench.slots[0])
    bench.looking.sees(33.5)
    assert bench.tend(34.0) == []
    assert bench.reports.is_quarantined("GPU-0a")
    assert not bench.reports.is_quarantined("GPU-1a")
    bench.looking.sees(35.0, *CARDS)
    assert bench.tend(36.0) == ["gpu/nvidia1"]


def test_a_device_that_appears_gets_a_slot(bench: Bench) -> None:
    """A split card gets none, its slice does."""
    bench.opened()
    card = Device("nvidia", 2, "GPU-2a", is_split=True)
    bench.looking.sees(2.0, *CARDS, card, Device("nvidia", uuid="MIG-0123456789", card="GPU-2a"))
    assert bench.tend(3.0) == ["gpu/nvidia0", "gpu/nvidia1", "gpu/MIG-01234567"]
    assert bench.tend(4.0) == ["gpu/nvidia0", "gpu/nvidia1", "gpu/MIG-01234567"]


@pytest.mark.parametrize(
    ("name", "other"),
    [("GPU-0123456789abcdef", None), (None, "GPU-0123456789abcdef")],
    ids=["its UUID is not told", "its UUID is told late"],
)
def test_a_device_under_another_name_is_not_given_to_a_second_worker(
    tmp_path: Path, name: str | None, other: str | None, caplog
) -> None:
    """A tool that fails once leaves a number of it; when it is named again all is as before."""
    card = Device("amd", 0, name, memory_used_mb=3)
    bench = Bench(tmp_path, [card])
    bench.reports.is_open = True
    bench.looking.sees(0.5, card)
    assert bench.tend(1.0) == ["gpu/amd0"]
    bench.start(bench.slots[0], "w1")
    for at in (2.0, 3.0):
        bench.looking.sees(at, replace(card, uuid=other))
        assert bench.tend(at) == []
    assert caplog.text.count("gets no worker: it may be") == 1
    bench.looking.sees(4.0, card, Device("amd", 1, "GPU-1123456789abcdef"))
    assert bench.tend(4.0) == ["gpu/amd1"]
    bench.close()


def test_a_card_that_is_split_under_its_worker_goes_to_its_slices(bench: Bench) -> None:
    """Its worker ends first: what it would see of the card is a slice. Whole again, it is proved."""
    bench.opened()
    card, one = bench.slots[0], Device("nvidia", uuid="MIG-0123456789", card="GPU-0a", memory_used_mb=1)
    bench.start(card, "w1")
    assert bench.placement.evicts(card) is None
    split = (replace(CARDS[0], is_split=True, memory_used_mb=900), one, CARDS[1])
    bench.looking.sees(2.0, *split)
    assert bench.tend(3.0) == ["gpu/nvidia1"]
    assert "has been split" in (bench.placement.evicts(card) or "")
    bench.placement.vacated(card)
    for at in (4.0, 90.0):
        bench.looking.sees(at, *split)
        assert bench.tend(at + 1) == ["gpu/nvidia1", "gpu/MIG-01234567"]
        assert not bench.looking.is_hurried
    bench.looking.sees(92.0, *CARDS)
    assert bench.tend(93.0) == ["gpu/nvidia0", "gpu/nvidia1"]


def test_a_card_that_seems_whole_for_once_is_left_to_the_workers_on_its_slices(bench: Bench) -> None:
    """A tool that does not tell its mode for a moment lists the card alone."""
    bench.opened()
    card, one = Device("nvidia", 2, "GPU-2a"), Device("nvidia", uuid="MIG-0123456789", card="GPU-2a")
    split = (*CARDS, replace(card, is_split=True), one)
    bench.looking.sees(2.0, *split)
    assert "gpu/MIG-01234567" in bench.tend(3.0)
    slice_slot = bench.slots[2]
    bench.start(slice_slot, "w1")
    bench.looking.sees(4.0, *CARDS, card)
    assert bench.tend(5.0) == ["gpu/nvidia0", "gpu/nvidia1"]
    bench.placement.vacated(slice_slot)
    bench.looking.sees(6.0, *split)
    assert bench.tend(7.0) == ["gpu/nvidia0", "gpu/nvidia1", "gpu/MIG-01234567"]
    bench.looking.sees(8.0, *CARDS, card)
    assert bench.tend(9.0) == ["gpu/nvidia0", "gpu/nvidia1", "gpu/nvidia2"]


def test_slices_of_an_older_driver_have_names_of_their_own(tmp_path: Path) -> None:
    """Their ids begin with the card's; a log, and where output goes, tells them apart by the name."""
    ids = [
        f"MIG-GPU-{card}-1111-2222-3333-444444444444/{place}"
        for card in ("5d5ba0d6", "7e")
        for place in ("3/0", "4/0")
    ]
    bench = Bench(tmp_path, [Device("nvidia", uuid=one, card="GPU-0a") for one in ids])
    assert bench.slots[0].name == "gpu/MIG-GPU-5d5ba0d6-3-0"
    assert len({slot.name for slot in bench.slots}) == 4


def test_who_is_told_by_the_file_must_be_proved_to_be_gone(tmp_path: Path, bench: Bench) -> None:
    """The next supervisor reads it there; what is no word of ours is nobody's."""
    bench.opened()
    bench.start(bench.slots[0], "w1")
    bench.close()
    (tmp_path / "device-GPU-1a.lock").write_text("words")
    following = Bench(tmp_path)
    following.reports.is_open = True
    following.looking.sees(0.5, replace(CARDS[0], memory_used_mb=30_000), CARDS[1])
    assert following.tend(1.0) == ["gpu/nvidia1"]
    following.looking.sees(32.0, replace(CARDS[0], memory_used_mb=30_000), CARDS[1])
    assert following.tend(33.0) == ["gpu/nvidia1"]
    assert following.reports.is_quarantined("GPU-0a")
    following.close()


def test_a_device_whose_lock_another_has_is_left_to_it(tmp_path: Path, bench: Bench, caplog) -> None:
    """Said once; it is taken when the lock is free."""
    lock = try_lock(tmp_path / "device-GPU-0a.lock")
    assert lock is not None
    assert bench.opened() == ["gpu/nvidia1"]
    assert bench.tend(2.0) == ["gpu/nvidia1"]
    assert caplog.text.count("is another supervisor's") == 1
    os.close(lock)
    assert bench.tend(3.0) == ["gpu/nvidia0", "gpu/nvidia1"]


def test_a_lock_that_cannot_be_taken_is_an_error_of_that_device_alone(
    tmp_path: Path, bench: Bench, caplog
) -> None:
    """As where another user's file lies."""
    (tmp_path / "device-GPU-0a.lock").mkdir()
    assert bench.opened() == ["gpu/nvidia1"]
    assert "device GPU-0a is not used: its lock" in caplog.text


def test_slots_without_a_device_are_none_of_its_business(tmp_path: Path) -> None:
    """And a supervisor without devices has no locks."""
    placement = Placement(None, lock_dir=tmp_path / "none")
    slot = Slot("fetch/1", WorkerSpec("fetch"), 0.0)
    assert placement.first_slots() == []
    assert placement.tend() == []
    assert placement.admits(slot)
    assert placement.hand_over(slot, "w1").descriptors == ()
    placement.vacated(slot)
    assert not (tmp_path / "none").exists()


def test_a_reading_names_who_has_a_device(bench: Bench) -> None:
    """As `qwf hw` shows it."""
    bench.opened()
    bench.start(bench.slots[1], "w2")
    bench.tend(2.0)
    machine = Machine(None, 1, None, 1, 1)
    bench.reports.publish(Reading(machine, Devices(tuple(CARDS), {}), None))
    assert bench.reports._reading is not None
    assert [one.get("worker") for one in bench.reports._reading["devices"]] == [None, "w2"]
