"""Calls to the kernel that Python does not have; standard library only, as our smallest process has them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

PR_SET_PDEATHSIG: Final = 1
PR_SET_DUMPABLE: Final = 4
PR_SET_CHILD_SUBREAPER: Final = 36
IS_LINUX: Final = sys.platform.startswith("linux")
# What the kernel tells a process when a thread of the one that started it ends, and again when the next one
# does: one request to end, however often it comes. Elsewhere no kernel tells it: SIGTERM stands for it.
LEFT_ALONE: Final[int] = signal.SIGRTMIN + 7 if hasattr(signal, "SIGRTMIN") else signal.SIGTERM
_libc: Final = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int) -> None:
    """Ask the kernel for something about this process; Linux only."""
    unsigned = ctypes.c_ulong
    if _libc.prctl(ctypes.c_int(option), unsigned(value), unsigned(0), unsigned(0), unsigned(0)):
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}): {os.strerror(code)}")
