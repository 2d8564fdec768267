"""The last runs of a workflow beside one another: a column a run, a row a node, in each cell its state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from queue_workflows.drawing.svg.looks import UNKNOWN, look_of, word_of
from queue_workflows.drawing.svg.markup import fitted, linked, picture, text_of, titled

MOST_RUNS: Final = 60
MOST_NODES: Final = 200
_CELL: Final = 24
_NAMES: Final = 200
_HEAD: Final = 32


@dataclass(frozen=True, slots=True)
class Column:
    """A run: `title` is shown on hover, `cells` has the state of each node that it has."""

    state: str
    title: str
    cells: Mapping[str, str] = field(default_factory=dict)
    href: str | None = None


def draw_grid(
    nodes: Sequence[str], columns: Sequence[Column], *, label: str = "Nodes of the last runs"
) -> str:
    """The columns from left to right as they are given; of too many nodes or runs the first ones."""
    rows, runs = list(nodes[:MOST_NODES]), columns[:MOST_RUNS]
    width, height = _NAMES + _CELL * len(runs), _HEAD + _CELL * len(rows)
    states = dict.fromkeys(state for run in runs for state in (run.state, *run.cells.values()))
    inner = _symbols(list(states))
    for number, node in enumerate(rows):
        y = _HEAD + number * _CELL
        inner += f'<line class="rule" x1="0" x2="{width}" y1="{y}" y2="{y}"/>'
        inner += f'<text y="{y + 16}">{titled(node)}{fitted(node, _NAMES - 8)}</text>'
    for number, run in enumerate(runs):
        inner += _column(run, rows, _NAMES + number * _CELL, height)
    size = f' width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    return picture(inner, label=label, css="grid", size=size, links=True)


def _symbols(states: Sequence[str]) -> str:
    """Each shape once: a grid has thousands of cells."""
    shapes = "".join(
        f'<symbol id="grid-{_name(state)}" class="icon" viewBox="0 0 16 16">{look_of(state).shape}</symbol>'
        for state in dict.fromkeys(_name(state) for state in states)
    )
    return f"<defs>{shapes}</defs>"


def _name(state: str) -> str:
    return "unknown" if look_of(state) is UNKNOWN else state


def _column(run: Column, rows: Sequence[str], x: int, height: int) -> str:
    head = f'<rect class="hit cell" x="{x}" y="0" width="{_CELL}" height="{height}"/>{_mark(run.state, x, 4)}'
    drawn = linked(titled(run.title) + head, run.href)
    for number, node in enumerate(rows):
        state = run.cells.get(node)
        if state is not None:
            y = _HEAD + number * _CELL + 4
            drawn += f"<g>{titled(f'{node}: {word_of(state)}')}{_mark(state, x, y)}</g>"
    return drawn


def _mark(state: str, x: int, y: int) -> str:
    place = f'x="{x + 4}" y="{y}" width="16" height="16"'
    return f'<use class="{look_of(state).css}" href="#grid-{text_of(_name(state))}" {place}/>'
