"""What earlier attempts came to stands in the result, and no attempt that found nothing replaces it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from queue_workflows.hooks.attempt.earlier_results import MOST, EarlierData, EarlierResults, joined
from queue_workflows.hooks.files import FoundFile
from queue_workflows.hooks.output.read import HookLine, HookOutput
from queue_workflows.repositories.hooks.records import EarlierAttempt
from queue_workflows.repositories.sql.checks import PayloadLimits

PAGE = {"path": "index.jsonl", "size": 50, "mimetype": "application/jsonl", "sha256": "ab"}
FIRST = EarlierAttempt(1, "succeeded", "50 responses", 1, True)
SAID = {"status": "succeeded", "output_str": "50 responses", "output_json": {"n": 50}}


def saying(status: str | None, text: str, **more: Any) -> HookOutput:
    said = {"type": "Result", "status": status, "output_str": text} | more
    empty = FoundFile("index.jsonl", 0, "application/jsonl", "00")
    return HookOutput((HookLine(1, "Result", json.dumps(said)),), (empty,))


def told(data: EarlierData | None, *attempts: EarlierAttempt) -> EarlierResults:
    return EarlierResults(len(attempts or (FIRST,)) + 1, attempts or (FIRST,), data)


def result(output: HookOutput, earlier: EarlierResults, **more: Any) -> dict[str, Any]:
    return joined(output, earlier, PayloadLimits(), **more)


def test_what_found_nothing_leaves_the_result_to_what_had_some() -> None:
    """As "succeeded, 0 responses" of a second try, or "noresults"; `attempt` names whose it is."""
    for status in ("succeeded", "noresults", None):
        came_to = result(saying(status, "0 responses"), told(EarlierData(1, [PAGE], SAID)))
        assert came_to == SAID | {
            "files": [PAGE],
            "attempt": 1,
            "records": {"Result": 1},
            "warnings": 0,
            "earlier": [{"attempt": 1, "status": "succeeded", "output_str": "50 responses", "files": 1}],
        }


def test_what_found_something_has_its_own_result() -> None:
    """The earlier attempts are told of all the same."""
    came_to = result(saying("succeeded", "2 responses", output_json=[1, 2]), told(None))
    assert (came_to["output_str"], came_to["output_json"], came_to["attempt"]) == ("2 responses", [1, 2], 2)
    assert [one["attempt"] for one in came_to["earlier"]] == [1]


def test_a_first_attempt_has_none_before_it() -> None:
    """Its result is as it always was."""
    came_to = result(saying("succeeded", "1"), EarlierResults())
    assert came_to.keys() == {"status", "output_str", "output_json", "files", "records", "warnings"}


@pytest.mark.parametrize(
    ("said", "own", "failed"),
    [
        # What was cut off said nothing of its result, so only what it left is taken.
        ({}, "succeeded", False),
        (SAID | {"status": "failed"}, "succeeded", False),
        (SAID, "failed", False),
        (SAID, "skipped", False),
        (SAID, None, True),
    ],
)
def test_a_word_is_not_turned_into_its_opposite(said: dict[str, Any], own: str | None, failed: bool) -> None:
    """A failure keeps its own, and no success gets an earlier one's failure."""
    came_to = result(saying(own, "own"), told(EarlierData(1, [PAGE], said)), has_failed=failed)
    assert (came_to["status"], came_to["output_str"]) == (own, "own")
    assert (came_to["files"], came_to["attempt"]) == ([PAGE], 1)


def test_the_oldest_are_left_out_where_there_is_no_room() -> None:
    """Or where there are too many; `left_out` says so, and the result itself is whole."""
    many = [EarlierAttempt(n, "failed", "x" * 100, 0, False) for n in range(1, MOST + 2)]
    came_to = result(saying("succeeded", "own"), told(None, *many))
    assert [one["attempt"] for one in came_to["earlier"]] == list(range(2, MOST + 2))
    assert came_to["left_out"] == ["earlier"]
    small = joined(saying("succeeded", "own"), told(None, *many), PayloadLimits(max_bytes=1_000))
    kept = [one["attempt"] for one in small["earlier"]]
    assert 0 < len(kept) < MOST
    assert kept == list(range(MOST + 2 - len(kept), MOST + 2))
    assert (small["output_str"], len(small["files"]), small["left_out"]) == ("own", 1, ["earlier"])
