"""The janitor's loop: looks at all kinds of things now and then, and has a few of each reaped at once.

    round: every kind is discovered, each on a thread ──names──> waiting ──a place is free──> look at its lock
      │                                                                                          │
      └─ lock files without things are tidied       reaped, or tried again later <──── reaper ───┘ orphan

The main thread waits for nothing but its selector. A discovery that hangs keeps its own kind from being
looked at, and no other; a teardown that hangs is killed with its reaper when its time is up. What is decided
stands in `host/janitor/decisions`, how one thing is ended in `host/janitor/teardown`.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from queue_workflows.errors import ExitCode, QwfError
from queue_workflows.host.janitor.decisions import Action, FailedTries, Verdict, candidates, look_at, tidy
from queue_workflows.host.janitor.resources import ResourceKind
from queue_workflows.host.janitor.teardown import Reaping
from queue_workflows.host.locks.owner_note import holders_of_removed, identity
from queue_workflows.host.processes.harden import exit_code_of
from queue_workflows.roles import loop
from queue_workflows.roles.loop import Halt, Urgency, Waiter
from queue_workflows.roles.tree_end_thread import Sweep

_log = logging.getLogger(__name__)

EVERY_S: Final = 30.0
# Of one kind.
MOST_AT_ONCE: Final = 4
# A discovery that has been at it for so many of its times does not come back.
_HOPELESS: Final = 5.0
_LEFT_AGAIN_S: Final = 5.0
# For how long it counts which processes were seen to hold lock files that were removed.
_REMOVED_FOR_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class JanitorOptions:
    """What the command line says of one janitor."""

    once: bool = False
    dry: bool = False
    every_s: float = EVERY_S


class Discovery(threading.Thread):
    """One kind's `discover`, which may take long, raise, or never return."""

    def __init__(self, kind: ResourceKind, ring: Callable[[], None], began_at: float) -> None:
        super().__init__(name=f"qwf-discover-{kind.name}", daemon=True)
        self.kind, self.began_at = kind, began_at
        self._ring = ring
        self.names: list[object] | None = None
        self.error = ""
        self.over = False
        self.is_overdue = False

    def run(self) -> None:
        """Ask; whatever comes is kept for the main thread."""
        try:
            found = self.kind.discover()
            if isinstance(found, str | bytes):
                raise TypeError(f"it gave {found!r:.80}, and not a list of names")
            self.names = list(found)
        except BaseException as exc:
            self.error = " ".join(f"{type(exc).__name__}: {exc}".split())
        finally:
            self.over = True
            self._ring()


@dataclass
class _Place:
    """A reaper at work, and the end of its tree once it is over or late."""

    reaping: Reaping
    verdict: Verdict
    began_at: float
    sweep: Sweep | None = None
    cut: str | None = None
    again_at: float | None = None


@dataclass
class Janitor:
    """All of it is the main thread's; `lock_directory` is asked at each look, and may be there or not."""

    kinds: Sequence[ResourceKind]
    lock_directory: Callable[[], Path]
    command: Sequence[str]
    waiter: Waiter
    halt: Halt
    options: JanitorOptions
    grace_s: float
    now: Callable[[], float] = time.monotonic
    verdicts: dict[tuple[str, str], Verdict] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._looking: dict[str, Discovery] = {}
        self._waiting: deque[tuple[ResourceKind, str]] = deque()
        self._places: list[_Place] = []
        self._vain: dict[tuple[str, str], FailedTries] = {}
        self._said: dict[tuple[str, str], object] = {}
        self._names: dict[str, list[str]] = {}
        self._round_at = -1.0
        self._tidied = True
        self._removed: Mapping[str, int] = {}
        self._removed_at = -math.inf
        self._removed_of: tuple[int, int] | None = None
        self._kill_at: float | None = None
        self.main_at = self.now()

    def run(self) -> ExitCode:
        """Work until told to stop; with `once` or `dry` for one round."""
        loop.run(self._tick, self.waiter.wait)
        if self._is_single and self.halt.by is not None:
            return exit_code_of(self.halt.by)  # what was broken off may have seen to nothing
        if self.halt.urgency or not self._is_single:
            return self.halt.exit_code
        is_bad = self.failures or any(one.deed is Action.FAILED for one in self.verdicts.values())
        return ExitCode.FAILED if is_bad else ExitCode.DONE

    @property
    def is_fine(self) -> bool:
        """Whether there is hope without another process in the place of this one."""
        now = self.now()
        hangs = any(
            now - one.began_at > _HOPELESS * one.kind.timeout_s for one in list(self._looking.values())
        )
        return not hangs or bool(self._places)

    @property
    def _is_single(self) -> bool:
        return self.options.once or self.options.dry

    def _tick(self) -> float | None:
        self.main_at = now = self.now()
        self._see_to_places(now)
        if self.halt.urgency:
            return self._stop(now)
        if now >= self._round_at and not (self._is_single and self._round_at >= 0):
            self._begin_round(now)
        self._collect(now)
        while (due := self._next()) is not None:
            self._attend(*due)
        if self._is_single and self._is_through():
            return None
        return self._delay(now)

    def _is_through(self) -> bool:
        is_looking = any(not one.is_overdue for one in self._looking.values())
        return self._tidied and not is_looking and not self._waiting and self._waits_for_the_rest_alone()

    def _waits_for_the_rest_alone(self) -> bool:
        return all(place.again_at is not None for place in self._places)

    def _delay(self, now: float) -> float:
        due = [now + 1.0 if self._is_single else self._round_at]
        due += [one.began_at + one.kind.timeout_s for one in self._looking.values() if not one.is_overdue]
        due += [one.began_at + one.reaping.kind.timeout_s for one in self._places if one.sweep is None]
        return max(0.0, min(1.0, *(at - now for at in due)))

    # Looking

    def _begin_round(self, now: float) -> None:
        self._round_at = now + self.options.every_s
        self._tidied = False
        self.verdicts.clear()
        self.failures.clear()
        for kind in self.kinds:
            if kind.name not in self._looking:
                self._looking[kind.name] = one = Discovery(kind, self.waiter.ring, now)
                one.start()

    def _collect(self, now: float) -> None:
        for one in list(self._looking.values()):
            if one.over:
                del self._looking[one.kind.name]
                self._take_up(one, now)
            elif not one.is_overdue and now >= one.began_at + one.kind.timeout_s:
                one.is_overdue = True
                self._fail(one.kind.name, f"its discovery takes longer than {one.kind.timeout_s:g} s")
        if not self._tidied and not any(not one.is_overdue for one in self._looking.values()):
            self._tidied = True
            self._tidy()

    def _take_up(self, one: Discovery, now: float) -> None:
        kind = one.kind
        if one.names is None:
            self._fail(kind.name, f"it cannot be discovered: {one.error}")
            return
        if odd := [found for found in one.names if not isinstance(found, str)]:
            self._fail(kind.name, f"its discovery gave {odd[0]!r:.80}, which is no name")
        else:
            self._said.pop((kind.name, ""), None)
        names, others = candidates(kind, one.names)
        if others:
            _log.debug("%s: %d names are not of this kind", kind.name, others)
        self._names[kind.name] = names
        self._vain = {key: vain for key, vain in self._vain.items() if key[0] != kind.name or key[1] in names}
        busy = {(each.reaping.kind.name, each.reaping.name) for each in self._places}
        busy |= {(each.name, name) for each, name in self._waiting}
        for name in names:
            key = (kind.name, name)
            vain = self._vain.get(key, FailedTries())
            if vain.due_at > now:
                why = f"reaped {vain.times} times in vain; again in {vain.due_at - now:.0f} s"
                self.verdicts[key] = Verdict(kind.name, name, Action.WAIT, why)
            elif key not in busy:
                self._waiting.append((kind, name))

    def _fail(self, kind: str, what: str) -> None:
        self.failures.append(f"{kind}: {what}")
        self._say(logging.ERROR, (kind, ""), what, f"{kind}: {what}")

    def _tidy(self) -> None:
        try:
            directory = self.lock_directory()
            if any(self._names.values()) and not directory.is_dir():
                self._fail("locks", f"{directory} is not there, and nothing is ended without it")
            spared = [name for names in self._names.values() for name in names]
            for verdict in tidy(directory, spared, self.kinds, now=time.time(), dry=self.options.dry):
                self._judge(verdict)
        except (OSError, QwfError) as exc:
            self._fail("locks", f"they cannot be looked at: {exc}")

    # Reaping

    def _next(self) -> tuple[ResourceKind, str] | None:
        """Each kind has places of its own, so that none waits for the teardowns of another."""
        taken = Counter(place.reaping.kind.name for place in self._places)
        for index, (kind, name) in enumerate(self._waiting):
            if taken[kind.name] < MOST_AT_ONCE:
                del self._waiting[index]
                return kind, name
        return None

    def _attend(self, kind: ResourceKind, name: str) -> None:
        try:
            found = look_at(kind, name, self.lock_directory(), self._held_removed, dry=self.options.dry)
        except (OSError, QwfError) as exc:
            self._judge(Verdict(kind.name, name, Action.SKIP, str(exc)))
            return
        self._judge(found.verdict)
        if found.lock is None:
            return
        try:
            place = _Place(Reaping(kind, name, found.lock, self.command), found.verdict, self.now())
        except OSError as exc:
            self._in_vain(found.verdict, f"no process could be started: {exc}")
            return
        self._places.append(place)
        self.waiter.watch(place.reaping.fd, lambda: self._end(place))

    def _end(self, place: _Place) -> None:
        """A reaper has ended, or is late: the rest of its tree goes before the lock does."""
        if place.sweep is None:
            self.waiter.forget(place.reaping.fd)
            os.close(place.reaping.fd)
            place.sweep = Sweep(place.reaping.child, self.waiter.ring)
            place.sweep.start()

    def _held_removed(self) -> Mapping[str, int]:
        """The removed lock files that are held; the kernel is asked once for each look, as it takes long."""
        directory = self.lock_directory()
        place = identity(directory)
        if (now := self.now()) > self._removed_at + _REMOVED_FOR_S or place != self._removed_of:
            self._removed, self._removed_of = holders_of_removed(directory), place
            self._removed_at = now
        return self._removed

    def _see_to_places(self, now: float) -> None:
        for place in list(self._places):
            if place.sweep is None and now >= place.began_at + place.reaping.kind.timeout_s:
                place.cut = (
                    f"its teardown took longer than {place.reaping.kind.timeout_s:g} s, and was killed"
                )
                self._end(place)
            if place.sweep is None or not place.sweep.over:
                continue
            if place.sweep.left:
                self._wait_for_the_rest(place, place.sweep.left, now)
            elif place.reaping.child.poll() is not None:
                self._places.remove(place)
                self._close(place, now)

    def _wait_for_the_rest(self, place: _Place, left: Sequence[int], now: float) -> None:
        """What no signal ends yet may still be at the thing: its lock stays held meanwhile."""
        if place.again_at is None:
            verdict, pids = place.verdict, ", ".join(map(str, sorted(left)))
            why = f"process {pids} of its teardown cannot be ended"
            self.verdicts[verdict.kind, verdict.name] = replace(verdict, deed=Action.FAILED, why=why)
            _log.error("%s %s: %s; its lock stays held until then", verdict.kind, verdict.name, why)
            place.again_at = now + _LEFT_AGAIN_S
        elif now >= place.again_at:
            place.again_at = now + _LEFT_AGAIN_S
            place.sweep = Sweep(place.reaping.child, self.waiter.ring)
            place.sweep.start()

    def _close(self, place: _Place, now: float) -> None:
        kind, name = place.reaping.kind, place.reaping.name
        is_gone, words = place.reaping.finish(place.cut)
        verdict = replace(place.verdict, deed=Action.REAPED)
        if not is_gone:
            self._in_vain(verdict, words)
            return
        self._vain.pop((kind.name, name), None)
        self._said.pop((kind.name, name), None)
        self.verdicts[kind.name, name] = replace(verdict, why=f"{verdict.why}; {words}")
        _log.info(
            "%s %s: reaped in %.1f s: %s; %s", kind.name, name, now - place.began_at, verdict.why, words
        )

    def _in_vain(self, verdict: Verdict, why: str) -> None:
        key = (verdict.kind, verdict.name)
        self._vain[key] = vain = self._vain.get(key, FailedTries()).again(self.now())
        self.verdicts[key] = replace(verdict, deed=Action.FAILED, why=why)
        again = "" if self._is_single else f"; again in {vain.due_at - self.now():.0f} s"
        _log.error("%s %s: it could not be reaped: %s%s", *key, why, again)

    # Telling

    def _judge(self, verdict: Verdict) -> None:
        key = (verdict.kind, verdict.name)
        self.verdicts[key] = verdict
        thing = f"{verdict.kind or 'lock'} {verdict.name}"
        if verdict.deed is Action.FLAG:
            holder = f" by process {verdict.pid}" if verdict.pid else ""
            self._say(logging.WARNING, key, verdict.deed, f"{thing}: {verdict.why}{holder}; left alone")
        elif verdict.deed is Action.SKIP:
            self._say(logging.WARNING, key, verdict.why, f"{thing}: skipped: {verdict.why}")
        else:
            self._said.pop(key, None)
        if verdict.deed is Action.TIDY and not self.options.dry:
            _log.info("%s: its file is removed: %s", thing, verdict.why)

    def _say(self, level: int, key: tuple[str, str], what: object, words: str) -> None:
        """Log something once, until it is something else."""
        if self._said.get(key) != what:
            _log.log(level, "%s", words)
        self._said[key] = what

    # Stopping

    def _stop(self, now: float) -> float | None:
        """Nothing new is begun; reapers have the grace, and none when there is no time."""
        if not self._places:
            return None
        if self._kill_at is None:
            self._kill_at = now + self.grace_s
        if self.halt.urgency is Urgency.AT_ONCE or now >= self._kill_at:
            for place in self._places:
                place.cut = place.cut or "the janitor was stopped, and its teardown killed"
                self._end(place)
            if self._waits_for_the_rest_alone():
                return None
        return 0.2
