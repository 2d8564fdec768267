"""The end of one orphan, in a process of its own: a teardown is the host app's code, and may hang or crash.

    janitor: lock in hand ──spawn──> qwf janitor --reap: still there? ──> teardown ──> gone? ──> report, end
                │                              (has the lock too, for as long as it lives)
                └─ it has ended, or its time is up: whatever it started is killed, then
                   gone: the lock file is removed; else it stays. The lock is let go either way.

Both have the lock, because it belongs to the open file: a janitor that is killed takes its reaper along, and
the lock is free when that has ended too.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from queue_workflows.errors import ExitCode
from queue_workflows.host.janitor.resources import ResourceKind
from queue_workflows.host.locks.lock import HostLock
from queue_workflows.host.processes.launcher import Child, spawn, watch

_LONGEST_WORDS: Final = 2000
_LONGEST_REPORT: Final = 65_536
_FIRST_LOOK_S: Final = 0.1
_LOOKS: Final = 6
# Of the time for one end; in the rest it says what it saw.
_LOOKING: Final = 0.5


class Reaping:
    """A reaper at work; made from the thread that stays, as a reaper ends with the thread that spawned it."""

    def __init__(self, kind: ResourceKind, name: str, lock: HostLock, command: Sequence[str]) -> None:
        self.kind, self.name = kind, name
        self._lock = lock
        self._report, theirs = os.pipe()
        try:
            descriptors = [lock.fileno(), theirs]
            words = ["--reap", kind.name, name, *map(str, descriptors)]
            self.child: Child = spawn([*command, *words], pass_fds=descriptors)
        except OSError:
            os.close(self._report)
            lock.release()
            raise
        finally:
            os.close(theirs)
        try:
            self.fd = watch(self.child)
        except OSError:
            self.child.kill()
            self.child.wait()
            self.finish()
            raise

    def finish(self, unsaid: str | None = None) -> tuple[bool, str]:
        """Once its tree has ended: whether the thing is gone, and in words what became of it."""
        status = self.child.poll()
        told: dict[str, object] = {}
        with suppress(OSError, ValueError, TypeError):
            os.set_blocking(self._report, False)
            told = dict(json.loads(os.read(self._report, _LONGEST_REPORT)))
        os.close(self._report)
        is_gone = told.get("gone") is True
        if is_gone:
            self._lock.unlink_and_release()
        else:
            self._lock.release()
        return is_gone, str(told.get("words") or unsaid or f"its reaper ended with {status} and said nothing")


def reap_here(kind: ResourceKind, name: str, lock: int, report: int) -> ExitCode:
    """What the reaper does: end the thing if it is there, and report."""
    for descriptor in (lock, report):
        os.set_inheritable(descriptor, False)
    try:
        is_gone, words = end(kind, name)
    except Exception as exc:
        is_gone, words = False, f"{type(exc).__name__}: {exc}".removesuffix(": ")
    words = " ".join(words.split())[:_LONGEST_WORDS]
    with suppress(OSError):
        os.write(report, json.dumps({"gone": is_gone, "words": words}).encode())
    return ExitCode.DONE if is_gone else ExitCode.FAILED


def end(
    kind: ResourceKind,
    name: str,
    *,
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> tuple[bool, str]:
    """Tear one thing down unless its owner did so between the look and the lock; whether it is gone."""
    look_until = now() + _LOOKING * kind.timeout_s
    if kind.is_gone(name):
        return True, "it was gone already"
    kind.teardown(name)
    look_s = _FIRST_LOOK_S
    for _ in range(_LOOKS):
        if kind.is_gone(name):
            return True, "torn down"
        if now() + look_s > look_until:
            break
        sleep(look_s)
        look_s *= 2
    return False, "its teardown returned, and it is still there"
