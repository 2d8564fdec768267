"""When each waiting row begins and ends, and when all of it is over: the shares of many plays.

Of plays the tenth, the half and nine tenths are taken: eight of ten such ranges should hold what happens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from queue_workflows.engine.forecast.history import History
from queue_workflows.engine.forecast.replay import ARRIVALS_ALIKE, Beyond, Load, Played, Waiting, played

# Rows that are played in all, over as many plays as that makes.
ROWS_PLAYED: Final = 60_000
FEWEST_PLAYS: Final = 20
MOST_PLAYS: Final = 200
_LOW, _MIDDLE, _HIGH = 0.1, 0.5, 0.9


@dataclass(frozen=True, slots=True)
class Span:
    """In how many seconds something happens: in a tenth of all plays, in half of them, and in nine tenths."""

    low_s: float
    middle_s: float
    high_s: float


@dataclass(frozen=True, slots=True)
class NoGuess:
    """Why something is not foretold, or never happens, in words; `code` is for programs."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Foretold:
    """A span for each waiting row, None where it never begins or ends; for each that runs; for all of it.

    `drain` is of all rows that end, and of what is not played; `never` are the places of the others, by why
    they do not. `beyond` is when the last of what is not played begins, of each such part of the load.
    """

    begins: Sequence[Span | None]
    ends: Sequence[Span | None]
    running: Sequence[Span]
    drain: Span | None
    never: dict[NoGuess, list[int]]
    plays: int
    beyond: Sequence[Span | None] = ()


NO_WORKER: Final = NoGuess("no_worker", "no worker of the queue claims anything")
STARVED: Final = NoGuess("starved", "jobs of a higher priority come in as fast as the workers take them")


def foretell(load: Load, history: History, *, seed: int = 0, rows_played: int = ROWS_PLAYED) -> Foretold:
    """Play a load many times; with the same seed it comes to the same."""
    rows = max(1, len(load.waiting) + len(load.running))
    if load.arriving:
        # What comes in is played too.
        rows += 4 * ARRIVALS_ALIKE
    plays = min(MOST_PLAYS, max(FEWEST_PLAYS, rows_played // rows))
    seen = [_one(load, history, seed, number) for number in range(plays)]
    ends = [_span([one.ends[place] for one in seen]) for place in range(len(load.waiting))]
    never: dict[NoGuess, list[int]] = {}
    for place, row in enumerate(load.waiting):
        if ends[place] is None:
            never.setdefault(_why(load, row), []).append(place)
    return Foretold(
        begins=[_span([one.begins[place] for one in seen]) for place in range(len(load.waiting))],
        ends=ends,
        running=[
            found
            for place in range(len(load.running))
            if (found := _span([one.running_ends[place] for one in seen])) is not None
        ],
        drain=_span([_last(load, one) for one in seen]),
        never=never,
        plays=plays,
        beyond=[_span([_last_begin(part, one) for one in seen]) for part in load.beyond],
    )


def _one(load: Load, history: History, seed: int, number: int) -> Played:
    # Chance for durations and for what comes in are apart: a fleet that takes in less draws the same.
    drawn = history.drawn(Random(f"{seed}:{number}"))  # noqa: S311 - no secret
    return played(load, drawn, Random(f"{seed}:{number}:arrivals"))  # noqa: S311


def _last(load: Load, one: Played) -> float | None:
    beyond = (_last_begin(part, one) for part in load.beyond)
    ends = [end for end in (*one.ends, *one.running_ends, *beyond) if end is not None]
    return max(ends, default=None)


def _last_begin(part: Beyond, one: Played) -> float | None:
    """When the last begins of what is not played, by the pace at which rows like it began one by one.

    The pace is that of the second half but for the last tenth, in which rows may stand that a key keeps.
    """
    begun = sorted(begin for place in part.places if (begin := one.begins[place]) is not None)
    first, last = len(begun) // 2, int(len(begun) * _HIGH)
    if first >= last:
        return None
    pace_s = (begun[last] - begun[first]) / (last - first)
    return begun[last] + (len(begun) - 1 - last + part.jobs) * pace_s


def _span(found: Sequence[float | None]) -> Span | None:
    """The shares of all plays, None where too few came to an end to say when nine tenths of them do."""
    known = sorted(one for one in found if one is not None)
    if len(known) <= int(_HIGH * len(found)):
        return None
    return Span(*(known[int(share * len(found))] for share in (_LOW, _MIDDLE, _HIGH)))


def _why(load: Load, row: Waiting) -> NoGuess:
    """Why a row never runs in this fleet."""
    if not load.all_slots:
        return NO_WORKER
    if row.host is not None and not (load.slots or {}).get(row.host):
        return NoGuess("no_worker", f"no worker on {row.host} claims anything")
    for key in row.keys:
        if (load.caps or {}).get(key, 1) <= 0:
            return NoGuess("limit_closed", f"the limit {key!r} has no room: its cap is 0, or others have it")
    return STARVED
