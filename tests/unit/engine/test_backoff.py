"""The delay before a retry."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queue_workflows.engine.execution.backoff import LONGEST_BACKOFF_S, Backoff, rule_of
from queue_workflows.settings import Settings

DAY = 86_400.0


def test_doubles_from_a_minute():
    """Without jitter the defaults wait a minute, two, four; they are those of the settings."""
    assert [Backoff().delay_s(failures, None, 0.0) for failures in (1, 2, 3, 4)] == [60, 120, 240, 480]
    fields = Settings.model_fields
    assert Backoff() == Backoff(fields["backoff_s"].default, fields["backoff_jitter"].default)


def test_a_job_may_say_its_own():
    """A job's own first delay takes the place of the engine's, zero too."""
    assert Backoff(60, 0).delay_s(2, 1.5, 0.5) == 3
    assert Backoff(60, 0).delay_s(7, 0.0, 0.5) == 0


@pytest.mark.parametrize(("chance", "wait"), [(0.0, 60), (0.5, 66), (1.0, 72)])
def test_jitter_comes_on_top(chance: float, wait: float):
    """Jobs that failed together come back all over the jitter, none of them early."""
    assert Backoff(60, 0.2).delay_s(1, None, chance) == wait


def test_jitter_is_a_share_of_the_delay():
    """A delay of a second grows by a fifth of a second, not by what suits a minute; none stays none."""
    backoff = Backoff(of_task={"list": rule_of([1])}.get)
    assert [backoff.delay_s(1, None, chance, "list") for chance in (0.0, 1.0)] == [1, 1.2]
    assert [backoff.delay_s(3, 1.0, chance) for chance in (0.0, 1.0)] == pytest.approx([4, 4.8])
    assert backoff.delay_s(1, 0.0, 1.0) == 0


def test_no_longer_than_a_day():
    """A job with many tries does not disappear for a century; one that begins longer keeps its own."""
    assert Backoff(60, 0).delay_s(9_999, None, 0.5) == LONGEST_BACKOFF_S == DAY
    assert Backoff(60, 0).delay_s(5, 7 * DAY, 0.5) == 7 * DAY


@given(
    failures=st.integers(0, 10**9),
    own=st.none() | st.floats(0, 30 * DAY),
    backoff_s=st.floats(0, 30 * DAY),
    jitter=st.floats(0, 1),
    chance=st.floats(0, 1),
)
def test_never_surprises(failures: int, own: float | None, backoff_s: float, jitter: float, chance: float):
    """Whatever is configured, a delay is bounded, and no shorter than the first backoff."""
    first = backoff_s if own is None else own
    wait = Backoff(backoff_s, jitter).delay_s(failures, own, chance)
    assert first <= wait <= max(LONGEST_BACKOFF_S, first) * (1 + jitter)


def test_a_task_may_have_a_list_or_a_function():
    """The list's last delay goes on; the row's own first delay comes before both, jitter on top of all."""
    rules = {"list": rule_of([1, 5, 30]), "function": rule_of(lambda failures: failures * 100)}
    backoff = Backoff(60, 0.2, rules.get)
    waits = [[backoff.delay_s(n, None, 0.5, name) for n in (1, 2, 3, 4, 99)] for name in rules]
    assert [list(map(pytest.approx, row)) for row in waits] == [
        [1.1, 5.5, 33, 33, 33],
        [110, 220, 330, 440, 10890],
    ]
    assert backoff.delay_s(2, 7.0, 0, "list") == 14
    assert backoff.delay_s(2, None, 0, "other") == backoff.delay_s(2, None, 0) == 120
    assert rule_of(5) is None


@pytest.mark.parametrize("answer", [-1, float("nan"), float("inf"), None, "5", True, 10**10])
def test_a_rule_that_says_nonsense_is_left_aside(answer, caplog):
    """The job's failure is stored all the same, with the delay of everybody."""
    assert Backoff(60, 0, lambda _: lambda _: answer).delay_s(2, None, 0, "page") == 120
    assert "the backoff of page is left aside: PayloadError: backoff must be seconds" in caplog.text


def test_a_rule_that_fails_is_left_aside(caplog):
    """And told."""
    assert Backoff(60, 0, lambda _: [].__getitem__).delay_s(1, None, 0, "page") == 60
    assert "the backoff of page is left aside: IndexError: list index out of range" in caplog.text
