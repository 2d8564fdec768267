"""What was measured, beside what it is held against."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Figure:
    """A measured value, what bare Postgres or the engine unhindered reached, and a target for the ratio."""

    measure: str
    what: str
    value: float
    unit: str
    against: str = ""
    base: float | None = None
    ratio: float | None = None
    target: float | None = None
    at_most: bool = False

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; None where there is none."""
        if self.ratio is None or self.target is None:
            return None
        return self.ratio <= self.target if self.at_most else self.ratio >= self.target


def interleaved(
    rounds: int, variants: Mapping[str, Callable[[], float]], say: Callable[[str], None]
) -> dict[str, list[float]]:
    """Each variant once a round, in turn from the front and the back: a noisy machine is so to all."""
    seen: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(rounds):
        order = list(variants) if number % 2 == 0 else list(variants)[::-1]
        for name in order:
            seen[name].append(variants[name]())
        say(f"round {number + 1} of {rounds}: " + ", ".join(f"{name} {seen[name][-1]:,.0f}" for name in seen))
    return seen


def ratio(ours: Sequence[float], base: Sequence[float]) -> float:
    """The median of the ratios of each round."""
    return statistics.median(one / other for one, other in zip(ours, base, strict=True))


def spread(values: Sequence[float]) -> str:
    """The lowest and the highest, for the words beside a median."""
    return f" ({_number(min(values))} to {_number(max(values))})"


def percentile(values: Sequence[float], share: float) -> float:
    """The value that such a share of all does not exceed."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def table(figures: Sequence[Figure]) -> str:
    """A line for each figure."""
    head = ("measure", "figure", "", "against", "", "ratio", "target", "")
    rows = [head, *(_row(figure) for figure in figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    right = {2, 4, 5}
    return "\n".join(
        "  ".join(
            cell.rjust(widths[column]) if column in right else cell.ljust(widths[column])
            for column, cell in enumerate(row)
        ).rstrip()
        for row in rows
    )


def as_json(figures: Sequence[Figure], **around: object) -> str:
    """The figures for programs, as JSON."""
    return json.dumps({**around, "figures": [asdict(one) | {"met": one.met} for one in figures]}, indent=2)


def _row(figure: Figure) -> tuple[str, ...]:
    sign = "≤" if figure.at_most else "≥"
    return (
        figure.measure,
        figure.what,
        f"{_number(figure.value)} {figure.unit}",
        figure.against,
        "" if figure.base is None else f"{_number(figure.base)} {figure.unit}",
        "" if figure.ratio is None else f"{figure.ratio:.2f}",
        "" if figure.target is None else f"{sign} {figure.target:.2f}",
        {True: "met", False: "MISSED", None: ""}[figure.met],
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2f}"
