"""`with ctx.limit(…)`: a window in which a job holds slots of some keys, and how it waits for them.

    open    sorted keys -> ask for a slot of each, all or none -> full? stand in line -> … -> held
    close   give them back -> wake the jobs in line here

No job holds one slot of a window while it waits for another, so no two windows wait for each other; and a
window inside another one may only want keys that sort after those which are held, so nesting does not either.
A job that has waited for too long is put back: its thread works for nobody meanwhile, and what it holds by
its own `limit_key` may be what another one waits for.

In one process the waiting jobs stand in line. A job goes before a later one if it wants nothing that the
later one does not want; else the later one may pass it. The first is woken when a slot is given back here,
and also looks again and again by itself, as a slot may be given back elsewhere.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from contextvars import ContextVar, Token
from functools import cached_property, partial
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import psycopg

from queue_workflows import clock as time
from queue_workflows.engine.limits.held_host_locks import KeptLocks
from queue_workflows.engine.limits.held_slots import KeptSlots
from queue_workflows.engine.limits.wait_loop import (
    Ask,
    Awaited,
    DatabaseCalls,
    Pause,
    Procedure,
    Wait,
    Waiter,
    Wakeup,
    refuse_in_event_loop,
)
from queue_workflows.engine.outcomes import PutBack
from queue_workflows.errors import PayloadError, WindowOrder
from queue_workflows.repositories.limits.lanes import LaneRepository
from queue_workflows.repositories.limits.slots import Slot, SlotRepository, Taken, Want
from queue_workflows.repositories.sql import checks
from queue_workflows.repositories.sql.claimed_job import ClaimedJob
from queue_workflows.repositories.sql.families import BY_NAME
from queue_workflows.states import JobFamily

if TYPE_CHECKING:
    from queue_workflows.engine.limits.refusals import UnadaptedKeys

FIRST_LOOK_S: Final = 0.01
LONGEST_LOOK_S: Final = 0.25
LONGEST_STAND_S: Final = 5.0
# How long a job is put back for that waited in vain.
PUT_BACK_S: Final = 1.0
# The keys of the windows around what runs here; a task that is started inside a window is inside it too.
_AROUND: Final[ContextVar[tuple[str, ...]]] = ContextVar("qwf_windows", default=())


class Windows:
    """The windows of a worker: the line of jobs that wait here, and what it takes to hold slots."""

    def __init__(
        self,
        calls: DatabaseCalls,
        kept: KeptSlots,
        locks: KeptLocks,
        *,
        lease_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.calls = calls
        self.kept = kept
        self.locks = locks
        self.lease_s = lease_s
        self.clock = clock
        self.line = Line()
        self.rng = Random()  # noqa: S311

    @cached_property
    def unadapted(self) -> UnadaptedKeys:
        """The keys that need not be asked about; made by the first job that is refused."""
        from queue_workflows.engine.limits.refusals import UnadaptedKeys

        return UnadaptedKeys(self.clock)

    def opening(
        self, waiter: Waiter, wants: Sequence[Want], max_wait_s: float
    ) -> Procedure[tuple[Slot, ...]]:
        """Take a slot of each key, however long that takes."""
        give_up_at = self.clock() + max_wait_s
        place = self.line.stand({(want.key, want.most) for want in wants})
        look_s = FIRST_LOOK_S
        try:
            while True:
                bell = place.hang_bell()
                if is_first := place.is_first:
                    taken: Taken = yield Ask(_Taking(self.kept, wants, self.lease_s))
                    if not taken.full and not taken.spared:
                        slots = tuple(taken.slots.values())
                        break
                left_s = give_up_at - self.clock()
                if left_s <= 0:
                    keys = " and ".join(repr(want.key) for want in wants)
                    raise PutBack(PUT_BACK_S, f"waited {max_wait_s:g} s for a window of {keys}")
                # A job that is not first is rung for when it becomes first.
                pause_s = look_s * (0.75 + self.rng.random() / 2) if is_first else LONGEST_STAND_S
                yield Pause(min(pause_s, left_s), bell)
                look_s = min(look_s * 2, LONGEST_LOOK_S) if is_first else FIRST_LOOK_S
        finally:
            place.leave()
        try:
            yield Pause(0)
        except BaseException:
            with suppress(Exception):
                yield from self.closing(waiter, slots)
            raise
        return slots

    def closing(self, waiter: Waiter, slots: Sequence[Slot]) -> Procedure[None]:
        """Give the slots back, and wake the jobs that wait for them here."""
        if not slots:
            return
        # First, so that the thread that renews does not take for lost what was given back.
        held = self.kept.remove(slots)
        try:
            yield Ask(partial(_free, waiter.job, held))
        finally:
            self.line.wake({slot.key for slot in slots})


class Line:
    """The jobs that wait in this process, in the order in which they came."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: dict[int, Place] = {}
        self._numbers = itertools.count()

    def stand(self, wants: Iterable[tuple[str, int | None]]) -> Place:
        """The last place."""
        with self._lock:
            place = Place(self, next(self._numbers), frozenset(wants))
            self._places[place.number] = place
            return place

    def wake(self, keys: set[str]) -> None:
        """A slot of these keys is free: the jobs that are first to want one of them look for it."""
        with self._lock:
            woken = [
                place
                for place in self._places.values()
                if not keys.isdisjoint(place.keys) and self._is_first(place)
            ]
        for place in woken:
            place.bell.ring()

    def is_first(self, place: Place) -> bool:
        """Whether each earlier place wants something that this one does not want."""
        with self._lock:
            return self._is_first(place)

    def leave(self, place: Place) -> None:
        """Leave the line, and ring for the places behind that are first now."""
        with self._lock:
            if self._places.pop(place.number, None) is None:
                return
            behind = [
                other
                for other in self._places.values()
                if other.wants >= place.wants and self._is_first(other)
            ]
        for other in behind:
            other.bell.ring()

    def _is_first(self, place: Place) -> bool:
        return not any(
            other.number < place.number and other.wants <= place.wants for other in self._places.values()
        )


class Place:
    """The place in line of one job that waits."""

    def __init__(self, line: Line, number: int, wants: frozenset[tuple[str, int | None]]) -> None:
        self.number = number
        self.wants = wants
        self.keys = {key for key, _ in wants}
        self.bell = Wakeup()
        self._line = line

    @property
    def is_first(self) -> bool:
        """Whether it is worth looking."""
        return self._line.is_first(self)

    def hang_bell(self) -> Wakeup:
        """What ends the next pause; hung up before a look, so that nothing after that goes unheard."""
        self.bell = Wakeup()
        return self.bell

    def leave(self) -> None:
        """Wait no longer."""
        self._line.leave(self)


class Window:
    """What `ctx.limit(…)` gives: held between `with` or `async with` and the end of that block."""

    def __init__(
        self,
        waiter: Waiter,
        windows: Windows,
        keys: Sequence[str],
        *,
        most: int | None,
        max_wait_s: float,
    ) -> None:
        self._waiter = waiter
        self._windows = windows
        self._wants = _wants(waiter.job, keys, most)
        self._max_wait_s = max_wait_s
        self._slots: tuple[Slot, ...] = ()
        self._token: Token[tuple[str, ...]] | None = None

    def __enter__(self) -> Self:
        refuse_in_event_loop("with ctx.limit", "async with ctx.limit(…)")
        self._check()
        procedure = self._windows.opening(self._waiter, self._wants, self._max_wait_s)
        self._entered(self._windows.calls.run(self._waiter, procedure, self._awaited) if self._wants else ())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        if exc is not None:
            self._waiter.left_window(exc, [want.key for want in self._wants])
        procedure = self._left()
        try:
            self._windows.calls.run(self._waiter, procedure)
        except Exception:
            # What went wrong inside tells more than that it could not be closed.
            if exc is None:
                raise

    async def __aenter__(self) -> Self:
        self._check()
        procedure = self._windows.opening(self._waiter, self._wants, self._max_wait_s)
        run = self._windows.calls.run_async
        self._entered(await run(self._waiter, procedure, self._awaited) if self._wants else ())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        if exc is not None:
            self._waiter.left_window(exc, [want.key for want in self._wants])
        procedure = self._left()
        try:
            await self._windows.calls.run_async(self._waiter, procedure)
        except Exception:
            if exc is None:
                raise

    @property
    def _awaited(self) -> Awaited:
        return Awaited(Wait.LIMIT, tuple(want.key for want in self._wants))

    def _check(self) -> None:
        if self._token is not None:
            raise RuntimeError("this window is open already: call ctx.limit(…) for each")
        around = _AROUND.get()
        wanted = [want.key for want in self._wants]
        if around and wanted and wanted[0] <= max(around):
            raise WindowOrder(wanted, around)

    def _entered(self, slots: tuple[Slot, ...]) -> None:
        self._slots = slots
        self._waiter.uses()
        self._token = _AROUND.set((*_AROUND.get(), *(want.key for want in self._wants)))

    def _left(self) -> Procedure[None]:
        slots, self._slots = self._slots, ()
        token, self._token = self._token, None
        if token is not None:
            # A generator may be closed in another context than the one that it was begun in.
            with suppress(ValueError):
                _AROUND.reset(token)
        return self._windows.closing(self._waiter, slots)


def _wants(job: ClaimedJob, keys: Sequence[str], most: int | None) -> list[Want]:
    """One slot of each key, in their order; that of its own `limit_key` a job holds as long as it runs."""
    if not keys:
        raise PayloadError(
            "ctx.limit() names no key", path="keys", advice='as in ctx.limit("host:example.org")'
        )
    if most is not None:
        checks.whole("max", most, 1, checks.INT_MAX)
    checked = sorted({checks.limit_key(key) for key in keys})
    family = JobFamily(job.family)
    return [Want(key, family, job.fence, most) for key in checked if key != job.limit_key]


class _Taking:
    """The question for slots, which bears being asked again after its answer was lost."""

    def __init__(self, kept: KeptSlots, wants: Sequence[Want], lease_s: float) -> None:
        self._kept = kept
        self._wants = wants
        self._lease_s = lease_s
        self._is_asked = False

    def __call__(self, connection: psycopg.Connection[Any]) -> Taken:
        slots = SlotRepository(connection)
        if self._is_asked:
            self._free_unheard(slots)
        self._is_asked = True
        taken = slots.take(self._wants, lease_s=self._lease_s, together=True)
        # Before another question of the same job is asked, which would take these for unheard of.
        self._kept.add(taken.slots.values())
        return taken

    def _free_unheard(self, slots: SlotRepository) -> None:
        """What was taken and never heard of: the job would wait for itself."""
        held = slots.held(self._wants)
        known = {(slot.key, slot.number, slot.since) for slot in self._kept.of(slot.fence for slot in held)}
        slots.free([slot for slot in held if (slot.key, slot.number, slot.since) not in known])


def _free(job: ClaimedJob, slots: Sequence[Slot], connection: psycopg.Connection[Any]) -> None:
    SlotRepository(connection).free(slots)
    # Jobs may wait in the lane of a key for what was a window's.
    LaneRepository(connection, BY_NAME[job.family]).admit_freed({slot.key for slot in slots})
