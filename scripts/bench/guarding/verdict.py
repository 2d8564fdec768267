"""Says from pairs of costs whether the second tree is slower, with an interval for by how much.

The logarithms of the paired ratios are as likely above as below their middle, so Wilcoxon's signed ranks give
an exact interval for it, whatever else their distribution is.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Word(StrEnum):
    """What can be said of a measure."""

    SLOWER = "SLOWER"
    NO_SLOWER = "no slower"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Verdict:
    """The cost of a job after by that before: the middle of the pairs, and where it is so surely."""

    ratio: float
    low: float
    high: float
    # Of the interval; with few pairs it is what they can give, which may be less than was asked for.
    confidence: float
    word: Word


def judge(before: Sequence[float], after: Sequence[float], *, limit: float, confidence: float) -> Verdict:
    """Slower where the whole interval lies beyond the limit, no slower where all of it lies within."""
    logs = [math.log(new / old) for old, new in zip(before, after, strict=True)]
    middles = sorted((one + other) / 2 for at, one in enumerate(logs) for other in logs[at:])
    cut, held = _cut(len(logs), confidence)
    low, high = math.exp(middles[cut]), math.exp(middles[-1 - cut])
    if held < confidence:
        word = Word.UNDECIDED
    elif low > limit:
        word = Word.SLOWER
    else:
        word = Word.NO_SLOWER if high <= limit else Word.UNDECIDED
    return Verdict(math.exp(statistics.median(middles)), low, high, held, word)


def _cut(pairs: int, confidence: float) -> tuple[int, float]:
    """How many of the middles lie outside at each end, and how sure the interval is then."""
    ways = [1]
    for rank in range(1, pairs + 1):
        longer = ways + [0] * rank
        for total, count in enumerate(ways):
            longer[total + rank] += count
        ways = longer
    outside, cut, held = 0, 0, 0.0
    for total in range(len(ways) // 2):
        outside += ways[total]
        sure = 1 - 2 * outside / 2**pairs
        if total and sure < confidence:
            break
        cut, held = total, sure
    return cut, held
