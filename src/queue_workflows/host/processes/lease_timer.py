"""The dead man's switch: a kernel timer that kills this process before a lease it holds can lapse.

Threads cannot guard a lease against C code that never lets go of the GIL, nor against SIGSTOP: in both cases
no line of Python runs any more, while the database hands the job to somebody else. So the last guard is not
ours but the kernel's: a timer that sends SIGKILL, which also ends a stopped process.

    read the clock ──> send claim or renewal ──> confirmed ──> arm(reading + lease - margin)
                                │
                                └─ refused, or no answer: leave the timer as it is

The clock is read *before* the statement is sent: the server reckons the lease from a moment after that
reading, so a timer set from it always fires first, however long the answer took. It is re-armed only *after*
the confirmed reply, because an unconfirmed renewal may never have happened. The deadline is absolute, so
being stopped between the two steps cannot push it out, and on CLOCK_BOOTTIME, so the time a machine spends
suspended counts: the lease goes on while it sleeps.

      unarmed ──arm()──> armed ──deadline──> the process is dead
         ^                │ ^
         └───disarm()─────┘ └─ arm() moves the deadline, to either side

One timer serves all leases of a process: the caller arms it to the earliest, working that out and arming
under one lock of its own, and disarms it when it holds none. `arm()` is called several thousand times a
second, so a deadline that moves out by no more than `slack_s` leaves the timer alone: it then fires early by
that much at most, never late. (Do not arm from a signal handler; nothing here may be interrupted by itself.)

A forked child has no timer, and its copy of this object says so; exec deletes the timer. As PID 1 of a PID
namespace the kernel ignores the signal: there the launcher is PID 1 and the worker is its child. Nothing
fires in uninterruptible sleep or on a paused virtual machine: there the fence on every write holds alone.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import struct
import sys
import time
import weakref
from contextlib import suppress
from ctypes import POINTER, Structure, byref, c_char_p, c_int, c_void_p
from functools import partial
from math import isnan, nan
from pathlib import Path
from threading import Lock
from typing import Any, Final, Self

from queue_workflows.host.processes.pid1 import KILLED_BY_TIMER

_CLOCK_BOOTTIME: Final = 7
_SIGEV_SIGNAL: Final = 0
_TIMER_ABSTIME: Final = 1
_NANOSECONDS: Final = 1_000_000_000
_clock: Final = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)
_DEBUGGER_ID: Final = 0  # sys.monitoring.DEBUGGER_ID, of Python 3.12 and later
_pack_itimerspec: Final = struct.Struct("@4q").pack  # interval s, ns; value s, ns


class _SigEvent(Structure):
    """`struct sigevent` of 64-bit Linux, the same for glibc and musl on every architecture: 64 bytes."""

    _fields_ = [
        ("value", c_void_p),
        ("signo", c_int),
        ("notify", c_int),
        ("rest", ctypes.c_char * 48),
    ]


def boottime() -> float:
    """The clock that deadlines are on: on Linux it counts the time that the machine is suspended."""
    return _clock()


def traced_by() -> str | None:
    """Which debugger watches this process, in words: stopping at a breakpoint must not kill it."""
    monitoring: Any = getattr(sys, "monitoring", None)
    if sys.gettrace() is not None or (monitoring and monitoring.get_tool(_DEBUGGER_ID)):
        return "traced: a Python debugger is attached"
    try:
        with open("/proc/self/status", "rb") as status:
            tracer = next((int(line[10:]) for line in status if line.startswith(b"TracerPid:")), 0)
    except OSError:
        return None
    return f"traced: process {tracer} is attached as a debugger" if tracer else None


def _timer_library() -> ctypes.PyDLL | None:
    """The library with POSIX timers: libc, or librt before glibc 2.34.

    PyDLL keeps the GIL during the calls: they take a microsecond, and waiting to get it back could take
    milliseconds.
    """
    for name in (None, "librt.so.1"):
        try:
            library = ctypes.PyDLL(name, use_errno=True)
            library.timer_create.argtypes = [c_int, POINTER(_SigEvent), POINTER(c_void_p)]
            library.timer_settime.argtypes = [c_void_p, c_int, c_char_p, c_void_p]
            library.timer_delete.argtypes = [c_void_p]
        except (OSError, AttributeError):
            continue
        return library
    return None


def _create_timer(number: signal.Signals) -> tuple[ctypes.PyDLL, c_void_p]:
    """A disarmed timer that will send this signal; OSError, with the reason in words, where there is none."""
    if not sys.platform.startswith("linux") or ctypes.sizeof(ctypes.c_long) != 8:
        raise OSError(errno.ENOSYS, "only 64-bit Linux has the kernel timer")
    library = _timer_library()
    if library is None:
        raise OSError(errno.ENOSYS, "the C library has no timer_create")
    timer = c_void_p()
    event = _SigEvent(signo=number, notify=_SIGEV_SIGNAL)
    if library.timer_create(_CLOCK_BOOTTIME, byref(event), byref(timer)):
        code = ctypes.get_errno()
        raise OSError(code, f"timer_create: {os.strerror(code)}")
    return library, timer


class DeadMan:
    """This process's timer; `reason_off` says why there is none, and then arming does nothing."""

    reason_off: str | None

    _number: signal.Signals = signal.SIGKILL

    def __init__(self, *, enabled: bool = True, slack_s: float = 0.05) -> None:
        self._lock = Lock()
        self._slack_s = slack_s
        self._armed = nan
        self._timer: c_void_p | None = None
        self.reason_off = self._start(enabled)
        _living.add(self)

    def _start(self, enabled: bool) -> str | None:
        if not enabled:
            return "switched off: QWF_DEADMAN is off"
        if os.getpid() == 1 and self._number == signal.SIGKILL:
            return "pid 1: the kernel ignores the signal there; start through the launcher"
        try:
            library, self._timer = _create_timer(self._number)
        except OSError as exc:
            return f"unsupported: {exc.strerror}"
        self._settime, self._delete = library.timer_settime, library.timer_delete
        return traced_by() if self._number == signal.SIGKILL else None

    def arm(self, deadline_boottime: float) -> None:
        """Die at this time of `boottime()`, or at once when it has passed; replaces the deadline before."""
        with self._lock:
            if self.reason_off is not None or 0.0 <= deadline_boottime - self._armed <= self._slack_s:
                return
            # Zero would disarm.
            self._set(max(int(deadline_boottime * _NANOSECONDS), 1))
            self._armed = deadline_boottime

    @property
    def deadline(self) -> float | None:
        """When it fires, on the clock of `boottime()`; None while it is not armed."""
        armed = self._armed
        return None if isnan(armed) else armed

    def disarm(self) -> None:
        """Live on: no lease is held."""
        with self._lock:
            self._stop()

    def recheck(self) -> None:
        """Notice a debugger that came or went, about once a second; on again from the next arming."""
        with self._lock:
            if self._timer is None:
                return
            self.reason_off = traced_by()
            if self.reason_off is not None:
                self._stop()

    def close(self) -> None:
        """Give the timer back; arming does nothing from here on."""
        with self._lock:
            if self._timer is None:
                return
            self._delete(self._timer)
            self._forget("closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _set(self, nanoseconds: int) -> None:
        seconds, rest = divmod(nanoseconds, _NANOSECONDS)
        if self._settime(self._timer, _TIMER_ABSTIME, _pack_itimerspec(0, 0, seconds, rest), None):
            code = ctypes.get_errno()
            raise OSError(code, f"timer_settime: {os.strerror(code)}")

    def _stop(self) -> None:
        if self._timer is not None:
            self._set(0)
        self._armed = nan

    def _forget(self, reason: str) -> None:
        self._timer, self._armed, self.reason_off = None, nan, reason

    def _disown(self) -> None:
        """In a forked child: the timer is the parent's, and a thread that is not here may hold the lock."""
        self._lock = Lock()
        if self._timer is not None:
            self._forget("forked: the timer stayed with the parent process")


class Alarm(DeadMan):
    """A lease timer with a signal that can be heard, SIGALRM."""

    _number = signal.SIGALRM


class Wake(DeadMan):
    """A lease timer with the signal that lets a stopped process go on, and that others do not notice."""

    _number = signal.SIGCONT


_usual_name: Final[list[str]] = []


def announce(*, is_due: bool) -> None:
    """Say in the process table that the timer is about to fire, or that it is not.

    The kernel keeps a process's name until its parent has waited for it, so the parent can tell this end from
    another SIGKILL, with no line between the two.
    """
    with suppress(OSError):
        # By its main thread: that may be written to also where the process hides its memory.
        own = Path(f"/proc/self/task/{os.getpid()}/comm")
        usual = own.read_text()
        if is_due and usual.strip() != KILLED_BY_TIMER:
            own.write_text(KILLED_BY_TIMER)
            _usual_name.append(usual)
        elif not is_due and _usual_name:
            own.write_text(_usual_name.pop())


_living: Final[weakref.WeakSet[DeadMan]] = weakref.WeakSet()


def _disown_all() -> None:
    for deadman in _living:
        deadman._disown()


os.register_at_fork(after_in_child=_disown_all)
