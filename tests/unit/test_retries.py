"""The delay before a retry."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queue_workflows.jobs.retries import LONGEST_BACKOFF_S, Backoff
from queue_workflows.settings import Settings

DAY = 86_400.0


def test_doubles_from_a_minute():
    """Without jitter the defaults wait a minute, two, four; they are those of the settings."""
    assert [Backoff().delay_s(failures, None, 0.0) for failures in (1, 2, 3, 4)] == [60, 120, 240, 480]
    fields = Settings.model_fields
    assert Backoff() == Backoff(fields["backoff_s"].default, fields["backoff_jitter_s"].default)


def test_a_job_may_say_its_own():
    """A job's own first delay takes the place of the engine's, zero too."""
    assert Backoff(60, 0).delay_s(2, 1.5, 0.5) == 3
    assert Backoff(60, 0).delay_s(7, 0.0, 0.5) == 0


@pytest.mark.parametrize(("chance", "wait"), [(0.0, 60), (0.5, 67.5), (1.0, 75)])
def test_jitter_comes_on_top(chance: float, wait: float):
    """Jobs that failed together come back all over the jitter, none of them early."""
    assert Backoff(60, 15).delay_s(1, None, chance) == wait


def test_no_longer_than_a_day():
    """A job with many tries does not disappear for a century; one that begins longer keeps its own."""
    assert Backoff(60, 0).delay_s(9_999, None, 0.5) == LONGEST_BACKOFF_S == DAY
    assert Backoff(60, 0).delay_s(5, 7 * DAY, 0.5) == 7 * DAY


@given(
    failures=st.integers(0, 10**9),
    own=st.none() | st.floats(0, 30 * DAY),
    backoff_s=st.floats(0, 30 * DAY),
    jitter_s=st.floats(0, DAY),
    chance=st.floats(0, 1),
)
def test_never_surprises(failures: int, own: float | None, backoff_s: float, jitter_s: float, chance: float):
    """Whatever is configured, a delay is bounded, and no shorter than the first backoff."""
    first = backoff_s if own is None else own
    wait = Backoff(backoff_s, jitter_s).delay_s(failures, own, chance)
    assert first <= wait <= max(LONGEST_BACKOFF_S, first) + jitter_s
