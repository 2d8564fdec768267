"""What another cap would do, from the lines of the keys alone."""

from __future__ import annotations

from typing import Any

import pytest

from queue_workflows.repositories.limits.overview import LimitLine
from queue_workflows.views.limits.what_if import CapPreview, KeyForecast, command_of, foretell, ruled_by


def line(key: str, cap: int | None = None, taken: int = 0, waiting: int = 0, **more: Any) -> LimitLine:
    values = {"is_own": False, "updated_by": None, "reason": None, "updated_at": None, "holders": []} | more
    return LimitLine(key=key, max_slots=cap, taken=taken, waiting=waiting, **values)


@pytest.mark.parametrize(
    ("before", "cap", "over", "could_begin", "could_begin_now"),
    [
        (line("a", 4, taken=4, waiting=9), 2, 2, 0, 0),
        (line("a", 4, taken=4, waiting=9), 7, 0, 3, 0),
        (line("a", 4, taken=1, waiting=2), 4, 0, 2, 2),
        (line("a", 4, taken=3, waiting=9), 0, 3, 0, 1),
        (line("a", None, taken=0, waiting=9), 2, 0, 2, 9),
        (line("a", 1, taken=3, waiting=9), 5, 0, 2, 0),
    ],
)
def test_what_is_over_and_what_has_room(
    before: LimitLine, cap: int, over: int, could_begin: int, could_begin_now: int
) -> None:
    """Whatever holds a slot keeps it; of what waits so many find room as there are free slots."""
    assert foretell(before, cap) == KeyForecast(
        "a", before.max_slots, cap, before.taken, before.waiting, over, could_begin, could_begin_now
    )


def test_what_is_exclusive_has_one_job_at_a_time() -> None:
    """Also where a pattern that matches everything is given a higher cap."""
    assert foretell(line("exclusive:a", 1, waiting=5), 4).could_begin == 1


def test_a_pattern_rules_keys_without_a_rule_of_their_own() -> None:
    """Not those with a cap, nor those of a longer pattern, nor patterns themselves."""
    lines = [
        line("host:*", 3, is_own=True),
        line("host:a"),
        line("host:b", 9, is_own=True),
        line("host:eu.c"),
        line("mail"),
    ]
    assert [one.key for one in ruled_by("host:*", lines, ["host:eu.*"])] == ["host:a"]
    assert [one.key for one in ruled_by("*", lines, [])] == ["host:a", "host:eu.c", "mail"]


def test_figures_of_a_pattern_are_those_of_its_keys() -> None:
    """Added up; where a key's waiting jobs were not counted to the end it says so."""
    told = [foretell(line("host:a", 2, taken=2), 1), foretell(line("host:b", 2, taken=1, waiting=10_001), 1)]
    seen = CapPreview("host:*", 1, 2, told, is_cut=False)
    assert (seen.total("taken"), seen.total("over"), seen.at_least) == (3, 1, True)
    assert command_of("host:*", 1) == "qwf limits set 'host:*' 1 --dry-run"
