"""One play of waiting work through a fleet: which job begins when, and when it ends.

    rows ──due──> ready, by priority and order ──a free slot, room in its keys──> at work ──> over
                    ▲                                                               │
                    └──────────────── a failed attempt, after its delay ────────────┘

A row of which a key is full, or its host, is put aside and passed by, as a worker does it, and comes back
when that has room. So no more than its cap run with a key, and no slot is idle beside a row that could run.
A row that comes back from the lane of a limit comes in behind the others, but for a long line of them: so
while others wait too, a slot of a limit may be nobody's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple, Protocol, TypeAlias

from queue_workflows.engine.forecast.history import TaskHistory, Trial

# So much that arrives is played one by one, then so much in twos, then in fours, so that a long play is none
# the dearer; where it came to so much in all, what still waits is passed by for ever.
ARRIVALS_ALIKE: Final = 128
MOST_ARRIVALS: Final = 16 * ARRIVALS_ALIKE
# Of how many the durations are drawn that are played as one.
_DRAWN_TOGETHER: Final = 4
# Behind more than so many of the line a job that comes out of a lane moves up, as `lane_turns` has it.
_NEAR: Final = 128
# What a row needs that only one host may run; no key has such a name.
_HOST: Final = "\0host:"


@dataclass(frozen=True, slots=True)
class Waiting:
    """A row that waits; of rows of one priority the one that stands first is claimed first.

    `keys` are its limits and locks, the one its duration goes by first. It is claimable in `due_s`.
    """

    name: str
    task: str
    priority: int = 5
    keys: tuple[str, ...] = ()
    host: str | None = None
    due_s: float = 0.0

    @property
    def key(self) -> str | None:
        """The key that its duration goes by."""
        return self.keys[0] if self.keys else None


@dataclass(frozen=True, slots=True)
class Running:
    """A job at work; `host` has its slot again when it ends, and none where its worker claims no more."""

    name: str
    task: str
    elapsed_s: float
    host: str | None
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Arriving:
    """Work that keeps coming in, so many a second."""

    task: str
    priority: int
    per_s: float


@dataclass(frozen=True, slots=True)
class Beyond:
    """So many jobs that wait behind the rows at these places, are like them, and are not played."""

    places: Sequence[int]
    jobs: int


@dataclass(frozen=True, slots=True)
class Load:
    """A queue at a moment: its waiting rows in claim order, what runs, slots by host, caps by key."""

    waiting: Sequence[Waiting]
    running: Sequence[Running] = ()
    slots: Mapping[str, int] | None = None
    caps: Mapping[str, int] | None = None
    arriving: Sequence[Arriving] = ()
    # How long a slot of a key is nobody's, from one job to the next.
    between_s: Mapping[str, float] | None = None
    beyond: Sequence[Beyond] = ()
    # The keys that have a lane, and the places of what waits there.
    lanes: frozenset[str] = frozenset()
    in_lanes: frozenset[int] = frozenset()

    @property
    def all_slots(self) -> int:
        """How many jobs the fleet runs at once."""
        return sum((self.slots or {}).values())


class Durations(Protocol):
    """What a play asks of how long jobs take."""

    def trial(self, task: str, key: str | None) -> Trial:
        """How an attempt that begins goes."""

    def rest_s(self, task: str, key: str | None, elapsed_s: float) -> float:
        """How much longer one takes that has run for so long."""

    def known(self, task: str) -> TaskHistory:
        """How attempts of a task end."""


class Chance(Protocol):
    """What a play asks of chance."""

    def gammavariate(self, alpha: float, beta: float) -> float:
        """The time until so many have come in that come in one each `beta`."""


class Played(NamedTuple):
    """When each waiting row began first, and ended, None where it never does; and each that runs."""

    begins: list[float | None]
    ends: list[float | None]
    running_ends: list[float]


@dataclass(frozen=True, slots=True)
class _Arrived(Waiting):
    """So many jobs that came in and are played as one."""

    jobs: int = 1


_Entry: TypeAlias = tuple[int, float, int | None, Waiting]


class _Over(NamedTuple):
    """An end to come: of a waiting row by its place, of a running one below zero, of an arrival None."""

    place: int | None
    row: Waiting | Running
    fails: bool


def played(load: Load, durations: Durations, chance: Chance) -> Played:
    """Play the load once."""
    return _Play(load, durations, chance).played()


class _Play:
    """The state of one play: a clock, slots and keys in use, rows that are ready, and what is to come."""

    def __init__(self, load: Load, durations: Durations, chance: Chance) -> None:
        self._load, self._durations, self._chance = load, durations, chance
        self._now = 0.0
        self._free = dict(sorted((load.slots or {}).items()))
        self._room = dict(load.caps or {})
        self._numbers = len(load.waiting)
        self._ready: list[_Entry] = []
        self._aside: dict[str, list[_Entry]] = {}
        self._lanes: dict[str, list[int]] = {}
        # Of each key what is out of its lane and has not begun, with its number in the line.
        self._out: dict[str, dict[int, float]] = {}
        self._to_come: list[tuple[float, int, _Over | Waiting | Arriving | str, int | None]] = []
        # Drawn by row: another fleet plays with the same, so that what differs is the fleet's doing.
        self._trials = [durations.trial(row.task, row.key) for row in load.waiting]
        self._tries: dict[int, int] = {}
        self._arrivals = 0
        self._left = len(load.waiting)
        self._begins: list[float | None] = [None] * len(load.waiting)
        self._ends: list[float | None] = [None] * len(load.waiting)
        self._running_ends: list[float] = []

    def played(self) -> Played:
        """Until all that waits is over, or nothing happens any more."""
        self._set_up()
        self._start_what_can()
        while self._left and self._to_come:
            self._now, _, what, place = heappop(self._to_come)
            self._happens(what, place)
            while self._to_come and self._to_come[0][0] <= self._now:
                _, _, what, place = heappop(self._to_come)
                self._happens(what, place)
            self._start_what_can()
        return Played(self._begins, self._ends, self._running_ends)

    def _set_up(self) -> None:
        for one in self._load.running:
            rest_s = self._durations.rest_s(one.task, one.keys[0] if one.keys else None, one.elapsed_s)
            self._running_ends.append(rest_s)
            self._take(one.host, one.keys)
            self._comes(rest_s, _Over(None, one, fails=False))
        for place, row in enumerate(self._load.waiting):
            key = row.key
            if row.due_s > 0:
                self._comes(row.due_s, row, place)
            elif place in self._load.in_lanes and key is not None:
                self._lanes.setdefault(key, []).append(place)
            else:
                self._ready.append((-row.priority, place, place, row))
        heapify(self._ready)
        for key in self._lanes:
            heapify(self._lanes[key])
            self._out[key] = {
                place: number for _, number, place, row in self._ready if place is not None and row.key == key
            }
            self._let_out(key)
        for kind in self._load.arriving:
            if kind.per_s > 0:
                self._comes(self._chance.gammavariate(1, 1 / kind.per_s), kind)

    def _comes(self, at: float, what: _Over | Waiting | Arriving | str, place: int | None = None) -> None:
        self._numbers += 1
        heappush(self._to_come, (at, self._numbers, what, place))

    def _happens(self, what: _Over | Waiting | Arriving | str, place: int | None) -> None:
        if isinstance(what, str):
            self._frees(what)
        elif isinstance(what, _Over):
            self._end(what)
        elif isinstance(what, Waiting):
            self._numbers += 1
            if place is not None and what.key in self._out:
                self._out[what.key][place] = self._numbers
            heappush(self._ready, (-what.priority, self._numbers, place, what))
        else:
            self._arrive(what)

    def _arrive(self, kind: Arriving) -> None:
        self._arrivals += 1
        if self._arrivals > MOST_ARRIVALS:
            # It would go on for ever: nothing more comes to pass, and what waits has no end.
            self._to_come.clear()
            self._ready.clear()
            return
        self._numbers += 1
        # Half as often, and each takes twice as long: the share of the fleet that they take stays as it was.
        together = 2 ** (self._arrivals // ARRIVALS_ALIKE)
        row = _Arrived("", kind.task, kind.priority, jobs=together)
        heappush(self._ready, (-kind.priority, self._numbers, None, row))
        self._comes(self._now + self._chance.gammavariate(together, 1 / kind.per_s), kind)

    def _start_what_can(self) -> None:
        ready = self._ready
        while ready and any(self._free.values()):
            entry = heappop(ready)
            key = entry[3].key
            if key is not None and self._is_in_lane(entry):
                self._pass_on(entry[3], key)
                continue
            lacks = self._lacks(entry[3])
            if lacks is None:
                self._start(entry[2], entry[3])
                continue
            if lacks in self._load.lanes and entry[2] is not None:
                self._to_lane(lacks, entry[2])
            else:
                heappush(self._aside.setdefault(lacks, []), entry)
                self._leaves_line(entry)
            self._pass_on(entry[3], lacks)

    def _pass_on(self, row: Waiting, lacks: str) -> None:
        """A row that came back for room in something else that it needs leaves that to the next in line."""
        for needed in _needs(row):
            if needed != lacks and self._has_room(needed):
                self._come_back(needed)

    def _is_in_lane(self, entry: _Entry) -> bool:
        """Whether it went into its lane since it came into the line."""
        place, key = entry[2], entry[3].key
        return place is not None and key in self._lanes and self._out[key].get(place) != entry[1]

    def _to_lane(self, key: str, place: int) -> None:
        """A row that found its key full, and with the first such row all of the key that is in the line."""
        if key in self._lanes:
            self._out[key].pop(place, None)
            heappush(self._lanes[key], place)
            self._let_out(key)
            return
        there = {at for _, _, at, row in self._ready if at is not None and row.key == key}
        self._lanes[key], self._out[key] = sorted({place, *there}), {}
        self._let_out(key)

    def _let_out(self, key: str) -> None:
        """As many of a lane as there is room for come into the line, at its end or near its head."""
        lane, out = self._lanes.get(key), self._out.get(key)
        while lane and out is not None and len(out) < self._room.get(key, 1):
            place = heappop(lane)
            row = self._load.waiting[place]
            self._numbers += 1
            number: float = self._numbers
            if len(self._ready) > _NEAR:
                head = self._ready[0]
                number = head[1] + 0.5 if head[0] == -row.priority else place
            out[place] = number
            heappush(self._ready, (-row.priority, number, place, row))

    def _lacks(self, row: Waiting) -> str | None:
        """What keeps a row: a full key, or its own host."""
        return next((needed for needed in _needs(row) if not self._has_room(needed)), None)

    def _has_room(self, needed: str) -> bool:
        if needed.startswith(_HOST):
            return self._free.get(needed.removeprefix(_HOST), 0) > 0
        return self._room.get(needed, 1) > 0

    def _start(self, place: int | None, row: Waiting) -> None:
        host = row.host or max(self._free, key=self._free.__getitem__)
        self._take(host, row.keys)
        if place is not None and row.key in self._out:
            self._out[row.key].pop(place, None)
        if place is not None and self._begins[place] is None:
            self._begins[place] = self._now
        trial = self._trial(place, row)
        running = Running(row.name, row.task, 0.0, host, row.keys)
        self._comes(self._now + trial.took_s, _Over(place, running, trial.fails), place)

    def _trial(self, place: int | None, row: Waiting) -> Trial:
        if place is not None and place not in self._tries:
            return self._trials[place]
        trial = self._durations.trial(row.task, row.key)
        if not isinstance(row, _Arrived) or row.jobs == 1:
            return trial
        drawn = min(row.jobs, _DRAWN_TOGETHER)
        others = (self._durations.trial(row.task, row.key).took_s for _ in range(drawn - 1))
        return Trial((trial.took_s + sum(others)) * row.jobs / drawn, fails=False)

    def _take(self, host: str | None, keys: tuple[str, ...]) -> None:
        if host is not None:
            self._free[host] = self._free.get(host, 0) - 1
        for key in keys:
            if key in self._room:
                self._room[key] -= 1

    def _end(self, over: _Over) -> None:
        row = over.row
        if isinstance(row, Running):
            if row.host is not None:
                self._free[row.host] += 1
                self._come_back(_HOST + row.host)
            for key in row.keys:
                self._give_back(key)
        if over.place is None:
            return
        tries = self._tries[over.place] = self._tries.get(over.place, 0) + 1
        known = self._durations.known(row.task)
        if over.fails and tries < known.max_attempts:
            delay_s = known.backoff_s * 2 ** (tries - 1)
            self._comes(self._now + delay_s, self._load.waiting[over.place], over.place)
            return
        self._ends[over.place] = self._now
        self._left -= 1

    def _give_back(self, key: str) -> None:
        """The slot of a key, to the next job that it gets to."""
        between_s = (self._load.between_s or {}).get(key, 0.0)
        if key in self._room and between_s > 0:
            self._comes(self._now + between_s, key)
        elif key in self._room:
            self._frees(key)

    def _frees(self, key: str) -> None:
        self._room[key] += 1
        self._let_out(key)
        self._come_back(key)

    def _come_back(self, lacked: str) -> None:
        if aside := self._aside.get(lacked):
            entry = heappop(aside)
            if entry[2] is not None and entry[3].key in self._out:
                self._out[entry[3].key][entry[2]] = entry[1]
            heappush(self._ready, entry)

    def _leaves_line(self, entry: _Entry) -> None:
        """What is put aside for something else leaves its place to the next of its lane."""
        _, _, place, row = entry
        if place is not None and row.key is not None and row.key in self._out:
            self._out[row.key].pop(place, None)
            self._let_out(row.key)


def _needs(row: Waiting) -> tuple[str, ...]:
    """All that must have room for a row beside a slot of any host."""
    return row.keys if row.host is None else (*row.keys, _HOST + row.host)
