"""A timeline: a bar a job, on one scale, beginning with the first job that started."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from queue_workflows.drawing.terminal import Terminal
from queue_workflows.drawing.timeline import Bar, draw_timeline

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def test_bars_lie_where_their_jobs_ran():
    """What waited, what worked, what was parked and what never began, each with who had it."""
    bars = [
        Bar("plan", "completed", "a:cpu:1", at(-60), at(0), at(12)),
        Bar("draw[0]", "running", "a:gpu:1", at(12), at(24), None),
        Bar("approve", "awaiting_input", "nobody", at(24), at(24), at(48), is_parked=True),
        Bar("publish", "cancelled", "cancelled", at(36), None, at(48)),
        Bar("tidy", "completed", "a:cpu:1", at(48), at(48), at(48)),
    ]
    assert draw_timeline(bars, Terminal(columns=None)) == [
        "48s from left to right; ░ waiting, █ at work, ◇ parked without a worker",
        f"plan     {'█' * 12:<48}     12s  a:cpu:1",
        f"draw[0]  {' ' * 12 + '░' * 12 + '█' * 24}  running  a:gpu:1",
        f"approve  {' ' * 24 + '◇' * 24}     24s  nobody",
        f"publish  {' ' * 36 + '░' * 12}  cancelled  cancelled",
        f"tidy     {' ' * 47 + '█'}    0.0s  a:cpu:1",
    ]


def test_it_fits_the_terminal_in_the_characters_that_this_has():
    """Forty columns of ASCII."""
    bars = [Bar("plan", "completed", "a:cpu:1", at(0), at(1), at(2))]
    head, row = draw_timeline(bars, Terminal(unicode=False, columns=40))
    assert row.isascii()
    assert head.isascii()
    assert len(row) <= 40


def test_nothing_and_no_time_at_all():
    """No division by what is not there."""
    assert draw_timeline([], Terminal()) == []
    (_, row) = draw_timeline([Bar("plan", "queued", "queued", at(0), None, None)], Terminal())
    assert row.startswith("plan")
