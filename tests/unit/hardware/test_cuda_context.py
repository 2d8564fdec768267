"""When a process is told that it can use a card no more."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from queue_workflows.gpu.cuda_context import CudaContexts, loaded_driver


def driver(*cards: int | None, begun: bool = True, at: str = "limit") -> Any:
    """A library of so many cards: what a call there comes to, None where this process has no context."""
    asked: list[int] = []

    def count(found: Any) -> int:
        found._obj.value = len(cards)
        return 0 if begun else 3

    def get(device: Any, number: int) -> int:
        device._obj.value = number
        return 0

    def state(device: Any, flags: Any, is_active: Any) -> int:
        is_active._obj.value = cards[device.value] is not None
        return 0

    def answer(place: str) -> int:
        return (cards[asked[-1]] or 0) if place == at else 0

    def retain(context: Any, device: Any) -> int:
        asked.append(device.value)
        return answer("retain")

    return SimpleNamespace(
        asked=asked,
        cuDeviceGetCount=count,
        cuDeviceGet=get,
        cuDevicePrimaryCtxGetState=state,
        cuDevicePrimaryCtxRetain=retain,
        cuDevicePrimaryCtxRelease_v2=lambda device: 0,
        cuCtxPushCurrent_v2=lambda context: answer("push"),
        cuCtxPopCurrent_v2=lambda context: 0,
        cuCtxGetLimit=lambda found, limit: answer("limit"),
    )


def contexts(library: Any) -> CudaContexts:
    return CudaContexts(clock=lambda: 0.0, find=lambda: library)


@pytest.mark.parametrize("at", ["retain", "push", "limit"])
@pytest.mark.parametrize(
    ("cards", "says"),
    [
        ((), ""),
        ((0,), ""),
        ((710,), "an assertion that failed on the card (CUDA error 710)"),
        ((0, 700), "an illegal address (CUDA error 700)"),
        ((None, 0), ""),
        ((1,), ""),
        ((2,), ""),
        ((600,), ""),
    ],
    ids=["no card", "fine", "assertion", "the second", "unused", "refused", "out of memory", "busy"],
)
def test_what_is_damage(cards: tuple[int | None, ...], says: str, at: str) -> None:
    """Only what lasts: memory that has run out, and a launch that was refused, are a job's own failure."""
    assert contexts(driver(*cards, at=at)).damage() == says


def test_a_card_that_nobody_has_begun_to_use_is_left_alone() -> None:
    """To ask in its context would make one, which takes hundreds of MB of the card."""
    unused = driver(None, 0)
    assert contexts(unused).damage() == ""
    assert unused.asked == [1]
    assert contexts(driver(710, begun=False)).damage() == ""


def test_a_library_is_looked_for_when_something_was_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a second later: to look for what is not there costs more than a job may."""
    now, looks = [5.0], []
    it = CudaContexts(clock=lambda: now[0], find=lambda: looks.append(now[0]))
    for _ in range(3):
        assert it.damage() == ""
    assert looks == [5.0]
    monkeypatch.setitem(sys.modules, "a_framework", ModuleType("a_framework"))
    for _ in range(2):
        assert it.damage() == ""
    assert looks == [5.0, 5.0]
    now[0] = 6.5
    assert it.damage() == ""
    assert looks == [5.0, 5.0, 6.5]


def test_nothing_is_loaded_for_it() -> None:
    """The question must not be what brings the library into a process."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        is_loaded = "libcuda.so" in maps.read()
    assert (loaded_driver() is not None) is is_loaded
