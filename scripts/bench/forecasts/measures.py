"""How many ranges held what then happened, and how far off their middles were, by the shape of the load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from statistics import median
from typing import Final

from bench.forecasts.loads import SHAPES
from bench.forecasts.recorded import Answer, record
from bench.harness.figures import Figure
from bench.harness.measuring import Bench, Measure
from bench.harness.reporting import Amount

AMOUNTS: Final[Mapping[str, Amount]] = {
    "rounds": (4, 1, "loads of each shape"),
    "jobs": (300, 120, "jobs of each load"),
}
# Eight of ten should be held; of few answers, which depend on each other, some less may be.
_HELD: Final = 0.8
_ERROR: Final = 0.2
_KINDS: Final = ("drain", "start", "end")


def scored(name: str, bench: Bench) -> Sequence[Figure]:
    """The figures of one shape."""
    answers: list[Answer] = []
    for number in range(bench.amounts["rounds"]):
        answers += record(bench, SHAPES[name], seed=number, jobs=bench.amounts["jobs"])
        bench.say(f"round {number + 1}: {told(answers)}")
    return figures(name, answers)


def figures(name: str, answers: Sequence[Answer]) -> list[Figure]:
    """Coverage and error of what was foretold; what was not is only counted."""
    given = [one for one in answers if one.span is not None]
    count = f"{len(given)} of {len(answers)} answers"
    if not given:
        return [Figure(name, "no guess was worth anything", 0.0, "%")]
    held = sum(one.is_held for one in given) / len(given)
    found = [
        Figure(name, f"ranges that held it, {count}", held * 100, "%", "8 of 10", 80.0, held / _HELD, 0.9),
    ]
    for kind in _KINDS:
        errors = [one.error for one in given if one.kind == kind]
        if errors:
            error = median(errors)
            is_drain = kind == "drain"
            found.append(
                Figure(
                    name,
                    f"median error of the {kind}",
                    error * 100,
                    "%",
                    ratio=error if is_drain else None,
                    target=_ERROR if is_drain else None,
                    at_most=True,
                )
            )
    return found


def told(answers: Sequence[Answer]) -> str:
    """How many were held so far."""
    given = [one for one in answers if one.span is not None]
    return f"{sum(one.is_held for one in given)} of {len(given)} held, {len(answers) - len(given)} not given"


MEASURES: Final[Mapping[str, Measure]] = {name: partial(scored, name) for name in SHAPES}
