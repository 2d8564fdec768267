"""Whether this process can still use its NVIDIA cards, as the driver's own library says.

An assertion that fails on a card, or a wild address there, spoils the process that met it: from then on each
of its calls to CUDA fails, whatever framework makes it, until the process ends. The next jobs would fail for
what an earlier one did.

The library is asked only where something else has loaded it and has begun to use a card, so a process without
cards pays nothing. The question waits for nothing on the card, and disturbs no graph that is being captured.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
from collections.abc import Callable
from typing import Any, Final

_LIBRARY: Final = "libcuda.so.1"
# After these a context is of no use any more; others, as of a launch that was refused, it survives.
_FOR_GOOD: Final = {
    214: "an uncorrectable error of its memory",
    220: "an uncorrectable error of its link",
    700: "an illegal address",
    702: "a kernel that ran for too long",
    709: "a context that is destroyed",
    710: "an assertion that failed on the card",
    714: "an error of a stack on the card",
    715: "an illegal instruction",
    716: "a misaligned address",
    717: "an address of the wrong space",
    718: "an invalid program counter",
    719: "a launch that failed",
}
_STACK_SIZE: Final = 0
_LOOK_EVERY_S: Final = 1.0


def loaded_driver() -> ctypes.CDLL | None:
    """The driver's library, if this process has loaded it."""
    try:
        return ctypes.CDLL(_LIBRARY, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return None


class CudaContexts:
    """Asked between two jobs; looks for the library when modules were loaded, or once a second."""

    def __init__(self, *, clock: Callable[[], float], find: Callable[[], Any | None] = loaded_driver) -> None:
        self._clock = clock
        self._find = find
        self._driver: Any | None = None
        self._look_at = -math.inf
        self._modules = 0

    def damage(self) -> str:
        """What has made a card useless to this process; empty if nothing has."""
        if self._driver is None:
            now, modules = self._clock(), len(sys.modules)
            if now < self._look_at and modules == self._modules:
                return ""
            self._look_at, self._modules = now + _LOOK_EVERY_S, modules
            if (driver := self._find()) is None:
                return ""
            self._driver = driver
        codes = (_state_of(self._driver, device) for device in _devices(self._driver))
        return next((f"{_FOR_GOOD[code]} (CUDA error {code})" for code in codes if code in _FOR_GOOD), "")


def _devices(driver: Any) -> list[ctypes.c_int]:
    """The cards that this process has a context on: to ask of another would make one."""
    count = ctypes.c_int()
    if driver.cuDeviceGetCount(ctypes.byref(count)):
        return []
    devices = []
    for number in range(count.value):
        device, flags, is_active = ctypes.c_int(), ctypes.c_uint(), ctypes.c_int()
        if driver.cuDeviceGet(ctypes.byref(device), number):
            continue
        failed = driver.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(is_active))
        if not failed and is_active.value:
            devices.append(device)
    return devices


def _state_of(driver: Any, device: ctypes.c_int) -> int:
    """What any call in the card's context comes to now: 0 if it may be used."""
    context, found = ctypes.c_void_p(), ctypes.c_size_t()
    if code := driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device):
        return int(code)
    try:
        if code := driver.cuCtxPushCurrent_v2(context):
            return int(code)
        code = driver.cuCtxGetLimit(ctypes.byref(found), _STACK_SIZE)
        driver.cuCtxPopCurrent_v2(ctypes.byref(context))
        return int(code)
    finally:
        driver.cuDevicePrimaryCtxRelease_v2(device)
