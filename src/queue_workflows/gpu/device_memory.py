"""How much memory is in use on the device that this process has, as the driver's management library says.

It needs no context on the device and takes some microseconds, so it can be asked around each load and each
job. What others have there counts, too, so only a worker that its supervisor has put alone on a device asks.
A driver that recovers from an error may answer late or never: it is asked in a thread, which is left alone
then.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

from queue_workflows.gpu.devices import ALONE, CUDA, CUDA_ORDER
from queue_workflows.gpu.model_sizes import DeviceMemory, InUse

T = TypeVar("T")
_LIBRARY: Final = "libnvidia-ml.so.1"
_MB: Final = 1 << 20
_LONGEST_NAME: Final = 96
_ANSWERS_WITHIN_S: Final = 1.0
_BEGINS_WITHIN_S: Final = 5.0


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Patience(Generic[T]):
    """Asks in a thread of its own; while an answer is late there is none, and nothing else is asked."""

    def __init__(self, within_s: float) -> None:
        self._within_s = within_s
        self._asking: threading.Thread | None = None

    def ask(self, question: Callable[[], T]) -> T | None:
        """The answer, or None if it does not come in time."""
        if self._asking is not None and self._asking.is_alive():
            return None
        answers: list[T] = []
        self._asking = asking = threading.Thread(target=lambda: answers.append(question()), daemon=True)
        try:
            asking.start()
        except RuntimeError:  # no memory for a thread
            self._asking = None
            return None
        asking.join(self._within_s)
        return answers[0] if answers else None


class NvidiaMemory:
    """One card or slice, by its handle in the library."""

    def __init__(self, library: Any, handle: ctypes.c_void_p, kind: str) -> None:
        self._library = library
        self._handle = handle
        self.kind = kind
        self._patience: Patience[InUse | None] = Patience(_ANSWERS_WITHIN_S)

    def read(self) -> InUse | None:
        """What is in use now."""
        return self._patience.ask(self._ask)

    def _ask(self) -> InUse | None:
        found = _Memory()
        if self._library.nvmlDeviceGetMemoryInfo(self._handle, ctypes.byref(found)):
            return None
        # The driver keeps some for itself, which is neither used nor free.
        return InUse((found.total - found.free) / _MB, found.total / _MB)


def device_memory(environ: Mapping[str, str]) -> DeviceMemory | None:
    """The one device that this process has, or None if that is not certain."""
    if not environ.get(ALONE):
        return None
    return Patience[DeviceMemory | None](_BEGINS_WITHIN_S).ask(lambda: _found(environ))


def _found(environ: Mapping[str, str]) -> DeviceMemory | None:
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
    told, handle = environ.get(CUDA, ""), ctypes.c_void_p()
    if told.startswith(("GPU-", "MIG-")):
        failed = library.nvmlDeviceGetHandleByUUID(told.encode(), ctypes.byref(handle))
    elif told.isdecimal() and environ.get(CUDA_ORDER) == "PCI_BUS_ID":
        failed = library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(int(told)), ctypes.byref(handle))
    else:
        return None
    if failed or (not told.startswith("MIG-") and _is_split(library, handle)):
        return None
    return handle


def _is_split(library: Any, handle: ctypes.c_void_p) -> bool:
    """Whether it is a card in slices, of which this process has one; cards that cannot be split refuse."""
    now, later = ctypes.c_uint(), ctypes.c_uint()
    failed = library.nvmlDeviceGetMigMode(handle, ctypes.byref(now), ctypes.byref(later))
    return not failed and bool(now.value)
