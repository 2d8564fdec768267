"""The demo's model: a table of heights, some megabytes, that takes about a second to compute.

It stands for the weights of a real one: worth loading once in a process and keeping, and of no use to others.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass
from functools import cache
from typing import Final

_SIDE: Final = 1024
_WAVES: Final = ((0.17, 0.031, 0.3), (0.61, -0.23, 1.1), (0.29, 0.9, 2.0), (1.3, 0.27, 0.7))
_COLUMNS: Final = 24
_LINES: Final = 6
_APART: Final = 151


@dataclass(frozen=True)
class Landscape:
    """Heights from -1 to 1, row by row."""

    heights: array[float]

    def picture(self, number: int) -> list[str]:
        """A small view as text, of one ridge before another; the same number is the same view."""
        far, near = self._ridge(number * 2 * _APART), self._ridge(number * 3 * _APART + _SIDE // 2)
        return ["".join(_shade(line, far[x] - 2, near[x]) for x in range(_COLUMNS)) for line in range(_LINES)]

    def _ridge(self, row: int) -> list[int]:
        """How many lines of sky are above each column."""
        begin = row % _SIDE * _SIDE
        return [int((1 - height) / 2 * _LINES) + 1 for height in self.heights[begin : begin + _COLUMNS]]


def _shade(line: int, far: int, near: int) -> str:
    if line >= near:
        return "^" if line == near else "#"
    return "." if line >= far else " "


@cache
def load() -> Landscape:
    """The model of this process, computed when it is first asked for."""
    heights = array("f")
    total = sum(1 / size for size in range(1, len(_WAVES) + 1))
    for y in range(_SIDE):
        row = [0.0] * _SIDE
        for size, (by_x, by_y, phase) in enumerate(_WAVES, 1):
            start, part = by_y * y + phase, 1 / size / total
            row = [height + math.sin(by_x * x + start) * part for x, height in enumerate(row)]
        heights.extend(row)
    return Landscape(heights)
