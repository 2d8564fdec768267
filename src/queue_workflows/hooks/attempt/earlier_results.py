"""What earlier attempts of a hook came to, in the result of a later one.

A later attempt writes over nothing: `earlier` has a few words of each before it, and one that found nothing
leaves the result to the last one that had something, which `attempt` names.

    last attempt found           `files`, `output_json`     `status`, `output_str`
    ──────────────────           ──────────────────────     ──────────────────────
    something                    its own                    its own
    nothing, and succeeded       the one that had some      that one's, if it had succeeded
    nothing, and did not         the one that had some      its own

To find something is to write a file with content, to print a record beside its result, or to have an
`output_json`. Of attempts that had something one that succeeded comes first. An attempt counts in whichever
generation of the job it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from queue_workflows.hooks.output.read import HookOutput, as_much_as_fits, fits
from queue_workflows.repositories.hooks.records import EarlierAttempt, HookRecordRepository
from queue_workflows.repositories.sql.checks import PayloadLimits
from queue_workflows.repositories.sql.claimed_job import Fence

MOST: Final = 20
_LEFT_OUT: Final = "left_out"
_SUCCEEDED: Final = "succeeded"
_OWN_WORD: Final = ("failed", "skipped")


@dataclass(frozen=True, slots=True)
class EarlierResults:
    """The attempts before one, in their order, and what it leaves its result to, if it found nothing."""

    attempt: int = 1
    attempts: tuple[EarlierAttempt, ...] = ()
    data: EarlierData | None = None


@dataclass(frozen=True, slots=True)
class EarlierData:
    """What an attempt had, as it is stored."""

    attempt: int
    files: Sequence[Any]
    said: dict[str, Any]


NONE: Final = EarlierResults()


def earlier_results(
    fence: Fence,
    output: HookOutput,
    ask: Callable[[Callable[[psycopg.Connection[Any]], EarlierResults]], EarlierResults],
) -> EarlierResults:
    """What is to be told of the attempts before this one, which had this output."""
    if fence.attempt == 1:
        return NONE

    def look(conn: psycopg.Connection[Any]) -> EarlierResults:
        records = HookRecordRepository(conn)
        attempts = tuple(records.earlier(fence, MOST + 1))
        best = max((one for one in attempts if one.has_data), key=_rank, default=None)
        data = None
        if best is not None and output.found_nothing:
            data = EarlierData(best.attempt, *records.of_attempt(fence.job_id, best.attempt))
        return EarlierResults(fence.attempt, attempts, data)

    return ask(look)


def joined(
    output: HookOutput, earlier: EarlierResults, limits: PayloadLimits, *, has_failed: bool = False
) -> dict[str, Any]:
    """The result of an attempt with what is told of those before it, as much as fits."""
    own = output.result()
    if not earlier.attempts:
        return as_much_as_fits(own, limits)
    result = own | {"attempt": earlier.attempt}
    if earlier.data is not None:
        result |= _left_to(earlier.data, keeps_word=has_failed or own["status"] in _OWN_WORD)
    return _with_attempts(as_much_as_fits(result, limits), earlier.attempts, limits)


def _rank(one: EarlierAttempt) -> tuple[bool, int]:
    return one.status == _SUCCEEDED, one.attempt


def _left_to(data: EarlierData, *, keeps_word: bool) -> dict[str, Any]:
    said = data.said
    left = {
        "attempt": data.attempt,
        "files": list(data.files),
        "output_json": said.get("output_json"),
    }
    if keeps_word or said.get("status") != _SUCCEEDED:
        return left
    text = said.get("output_str")
    return left | {"status": _SUCCEEDED, "output_str": text if isinstance(text, str) else ""}


def _with_attempts(
    result: dict[str, Any], attempts: tuple[EarlierAttempt, ...], limits: PayloadLimits
) -> dict[str, Any]:
    """The oldest are left out first, where there are too many or no room for them."""
    told = [
        {"attempt": one.attempt, "status": one.status, "output_str": one.output_str, "files": one.files}
        for one in attempts
    ]
    left_out = {_LEFT_OUT: [*result.get(_LEFT_OUT, ()), "earlier"]}
    for first in range(max(0, len(told) - MOST), len(told) + 1):
        more = result | {"earlier": told[first:]} | (left_out if first else {})
        if fits(more, limits):
            return more
    return result
