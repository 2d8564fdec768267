"""How much memory is in use on the device that this process has, as the driver's management library says.

It needs no context on the device and takes some microseconds, so it can be asked around each load and each
job. What others have there counts, too: a worker of `gpu:each` is alone on its device. Where the library is
missing, or it is not certain which device is meant, nothing is known.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from typing import Any, Final

from queue_workflows.gpu.devices import CUDA, CUDA_ORDER
from queue_workflows.gpu.model_sizes import DeviceMemory, InUse

_LIBRARY: Final = "libnvidia-ml.so.1"
_MB: Final = 1 << 20
_LONGEST_NAME: Final = 96


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class NvidiaMemory:
    """One card or slice, by its handle in the library."""

    def __init__(self, library: Any, handle: ctypes.c_void_p, kind: str) -> None:
        self._library = library
        self._handle = handle
        self.kind = kind

    def read(self) -> InUse | None:
        """What is in use now."""
        found = _Memory()
        if self._library.nvmlDeviceGetMemoryInfo(self._handle, ctypes.byref(found)):
            return None
        # The driver keeps some for itself, which is neither used nor free.
        return InUse((found.total - found.free) / _MB, found.total / _MB)


def device_memory(environ: Mapping[str, str]) -> DeviceMemory | None:
    """The one device that this process has, or None if that is not certain."""
    try:
        library = ctypes.CDLL(_LIBRARY, mode=os.RTLD_NOW)
        if library.nvmlInit_v2():
            return None
        handle = _handle(library, environ)
        if handle is None:
            return None
        name = ctypes.create_string_buffer(_LONGEST_NAME)
        if library.nvmlDeviceGetName(handle, name, ctypes.c_uint(_LONGEST_NAME)):
            return None
        return NvidiaMemory(library, handle, name.value.decode(errors="replace"))
    except (OSError, AttributeError):
        # No driver, or a library that does not have what ours asks for.
        return None


def _handle(library: Any, environ: Mapping[str, str]) -> ctypes.c_void_p | None:
    told, handle = environ.get(CUDA), ctypes.c_void_p()
    if told is not None and told.startswith(("GPU-", "MIG-")):
        failed = library.nvmlDeviceGetHandleByUUID(told.encode(), ctypes.byref(handle))
        return None if failed else handle
    count = ctypes.c_uint()
    if library.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return None
    if told is not None and told.isdecimal() and environ.get(CUDA_ORDER) == "PCI_BUS_ID":
        number = int(told)
    elif count.value == 1 and told in (None, "0"):
        number = 0
    else:
        return None
    failed = library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(number), ctypes.byref(handle))
    return None if failed else handle
