"""Bars and figures over time: on their axis, told apart, and never more than a picture can hold."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pictures.samples import at, pieces
from support.reference.examples import examples

from queue_workflows.drawing.svg.charts import MOST_POINTS, bar_chart, line_chart, nice_top, spark
from queue_workflows.drawing.svg.gauges import counts_bar, gauge
from queue_workflows.drawing.svg.grid import MOST_NODES, MOST_RUNS, Column, draw_grid
from queue_workflows.drawing.svg.segments import Segment
from queue_workflows.drawing.svg.ticks import ticks
from queue_workflows.drawing.svg.timeline import MOST_BANDS, MOST_ROWS, Band, Row, draw_timeline
from queue_workflows.drawing.svg.wait_bar import draw_wait_bar

Bars = list[tuple[str, float, float]]


def bars(svg: str) -> Bars:
    """The class of each segment, where it begins and where it ends, in hundredths of the width."""
    found = []
    for rect in ET.fromstring(svg).iter("rect"):
        css = rect.get("class") or ""
        if css.startswith("seg"):
            begin, width = (float((rect.get(name) or "").rstrip("%")) for name in ("x", "width"))
            found.append((css, begin, begin + width))
    return found


def texts(svg: str) -> list[str | None]:
    return [text.text for text in ET.fromstring(svg).iter("text")]


def chain(lengths: Sequence[tuple[str, float]]) -> list[Segment]:
    """Pieces one after another."""
    begin, made = 0.0, []
    for kind, length in lengths:
        made.append(Segment(kind, at(begin), at(begin + length)))
        begin += length
    return made


def test_a_wait_bar_shows_each_piece_where_it_was() -> None:
    """Waiting by its kind, work by what it came to: tried again it failed, at the end it is as the job is."""
    lengths = [("due", 30), ("queued", 10), ("running", 20), ("retry", 20), ("held", 10), ("running", 10)]
    assert bars(draw_wait_bar(chain(lengths), state="completed")) == [
        ("seg tone-due", 0, 30),
        ("seg tone-idle", 30, 40),
        ("seg tone-bad work", 40, 60),
        ("seg tone-bad", 60, 80),
        ("seg tone-hold", 80, 90),
        ("seg tone-good work", 90, 100),
    ]


def test_a_wait_bar_names_what_is_wide_enough() -> None:
    """The rest says it on hover, as all do."""
    svg = draw_wait_bar(chain([("queued", 90), ("running", 3)]), state="running")
    assert texts(svg) == ["queued 1m 30s"]
    assert [title.text for title in ET.fromstring(svg).iter("title")] == [
        "queued for 1m 30s",
        "at work for 3.0s",
    ]


def test_a_moment_of_work_at_the_end_is_seen() -> None:
    """As wide as it has to be, within the bar."""
    svg = draw_wait_bar(chain([("queued", 100), ("running", 0)]), state="failed")
    assert bars(svg) == [("seg tone-idle", 0, 100), ("seg tone-bad work", 99.7, 100)]


def test_what_goes_on_ends_now() -> None:
    """And what has no piece is no picture."""
    assert bars(draw_wait_bar([Segment("queued", at(0))], now=at(5))) == [("seg tone-idle", 0, 100)]
    assert draw_wait_bar([], now=at(5)) == ""


KINDS = st.sampled_from(["parents", "due", "held", "queued", "paused", "running", "retry", "parked", "ended"])


@given(st.lists(st.tuples(KINDS, st.floats(0, 1e6)), min_size=1, max_size=12))
@settings(max_examples=examples(80), deadline=None)
def test_no_piece_leaves_its_bar(lengths: list[tuple[str, float]]) -> None:
    """Whatever a job went through, and however short it was."""
    svg = draw_wait_bar(chain(lengths)) or "<svg/>"
    wrong = [bar for bar in bars(svg) if bar[1] < 0 or bar[2] > 100.02]
    assert wrong == []


def test_a_timeline_puts_rows_on_one_axis() -> None:
    """Work for a moment can still be seen, and each row says how long it was at work."""
    rows = [
        Row("plan", "completed", chain([("queued", 10), ("running", 90)]), "/plan"),
        Row("moment", "failed", [Segment("running", at(50), at(50))], depth=1),
        Row("never", "waiting", [Segment("parents", at(0), at(100))]),
    ]
    svg = draw_timeline(rows, begin=at(0), end=at(100))
    drawn = bars(svg)
    assert [css for css, _, _ in drawn] == [
        *("seg tone-idle", "seg tone-good work", "seg tone-bad work", "seg tone-idle"),
    ]
    assert drawn[0][2] == drawn[1][1]
    assert drawn[2][2] > drawn[2][1]
    assert texts(svg) == [
        *("0s", "15s", "30s", "45s", "1m", "1m 15s", "1m 30s"),
        *("plan", "1m 30s", "moment", "0.0s", "never", None),
    ]


def test_a_timeline_has_bands_behind_its_rows() -> None:
    """From where to where on the axis, with what was then to be read, and hatched as a pause in a bar is."""
    band = Band(at(25), at(75), "queue cpu: <b>was paused")
    svg = draw_timeline([Row("a", "running", pieces(""))], begin=at(0), end=at(100), bands=[band])
    (drawn,) = (one for one in bars(svg) if "band" in one[0])
    assert drawn == ("seg band", pytest.approx(23 + 69 / 4), pytest.approx(23 + 69 * 3 / 4))
    group = next(one for one in ET.fromstring(svg).iter("g") if one.get("class") == "tone-hold")
    assert [one.text for one in group.iter("title")] == ["queue cpu: <b>was paused"]
    assert svg.index("seg band") < svg.index("seg tone-idle")
    many = draw_timeline([], begin=at(0), end=at(9), bands=[band] * (MOST_BANDS + 9))
    assert len([css for css, _, _ in bars(many)]) == MOST_BANDS


def test_a_timeline_has_a_bound() -> None:
    """The first rows, of however many."""
    svg = draw_timeline([Row("a", "running", pieces(""))] * (MOST_ROWS + 9), begin=at(0), end=at(90))
    assert len([text for text in texts(svg) if text == "a"]) == MOST_ROWS


@given(st.floats(1e-3, 1e9))
def test_an_axis_has_a_few_even_marks(seconds: float) -> None:
    """From its beginning on, none beyond its end."""
    shares = [share for share, _ in ticks(seconds)]
    steps = {round(later - sooner, 6) for sooner, later in pairwise(shares)}
    assert (shares[0], len(shares) <= 8, len(steps) <= 1, shares[-1] <= 1.000001) == (0, True, True, True)


@pytest.mark.parametrize(("highest", "top"), [(0, 1), (1, 1), (3, 5), (10, 10), (11, 20), (70_001, 100_000)])
def test_the_top_of_a_chart_is_even(highest: int, top: int) -> None:
    """So it seldom changes while the figures do."""
    assert nice_top(highest) == top


def test_a_chart_of_bars_tells_what_failed() -> None:
    """As a part of each bar with a tone of its own, and in words on hover."""
    svg = bar_chart([10, 0, 4], bad=[10, 0, 1], label="ended", first="1h ago")
    assert [title.text for title in ET.fromstring(svg).iter("title")] == [
        *("10, 10 of them failed", "0", "4, 1 of them failed"),
    ]
    css = [rect.get("class") for rect in ET.fromstring(svg).iter("rect")]
    assert css == ["bars tone tone-bad", "hit", "hit", "bars", "bars tone tone-bad", "hit"]
    assert texts(svg) == ["10 a minute", "1h ago", "now"]


def test_a_curve_is_broken_where_nothing_is_known() -> None:
    """And never leaves its chart."""
    svg = line_chart([0, 50, None, None, 500, 100], top=100, label="cpu", unit="%")
    curves = [path.get("d") for path in ET.fromstring(svg).iter("path") if path.get("class") == "curve"]
    assert curves == ["M0 71L1 36", "M4 1L5 1"]


def test_figures_are_drawn_to_a_bound() -> None:
    """The last ones: a chart of a million points is that of a few hundred."""
    many = list(range(100_000))
    assert len(spark(many, label="x")) < 20 * MOST_POINTS
    assert len(list(ET.fromstring(bar_chart(many, label="x")).iter("title"))) == MOST_POINTS


@pytest.mark.parametrize(
    ("used", "limit", "tone", "share"),
    [
        (0, 8, "work", None),
        (2, 8, "work", "25%"),
        (6, 8, "hold", "75%"),
        (8, 8, "bad", "100%"),
        (3, None, "work", None),
    ],
)
def test_a_gauge_has_the_tone_of_what_is_left(
    used: int, limit: int | None, tone: str, share: str | None
) -> None:
    """It is calm, then near its end, then full; without a limit it is empty."""
    root = ET.fromstring(gauge(used, limit))
    filled = [rect.get("width") for rect in root.iter("rect") if rect.get("class") == "tone"]
    assert (root.get("class"), filled) == (f"gauge tone-{tone}", [share] if share else [])


def test_a_gauge_shows_where_a_limit_was_passed() -> None:
    """12 where 8 may be: a line at two thirds."""
    root = ET.fromstring(gauge(12, 8, label="slots"))
    (line,) = root.iter("line")
    assert (line.get("x1"), root.get("aria-label")) == ("66.67%", "slots: 12 of 8")


def test_the_fewest_can_still_be_seen() -> None:
    """One failed of a million has its part of the bar, and all parts together are the whole."""
    rects = ET.fromstring(counts_bar({"waiting": 0, "completed": 999_999, "failed": 1})).findall("rect")
    widths = {rect.get("class"): float((rect.get("width") or "").rstrip("%")) for rect in rects[1:]}
    assert list(widths) == ["tone tone-good", "tone tone-bad"]
    assert widths["tone tone-bad"] > 1
    assert sum(widths.values()) == pytest.approx(100, abs=0.1)


def test_a_grid_has_a_mark_for_each_node_of_each_run() -> None:
    """Each shape is there once, however many cells have it; what a run does not have is blank."""
    runs = [
        Column("failed", "run 1", {"a": "completed", "b": "failed"}, "/runs/1"),
        Column("running", "run 2", {"a": "completed"}, "/runs/2"),
    ]
    root = ET.fromstring(draw_grid(["a", "b"], runs))
    assert [symbol.get("id") for symbol in root.iter("symbol")] == [
        "grid-failed",
        "grid-completed",
        "grid-running",
    ]
    assert [use.get("href") for use in root.iter("use")] == [
        *("#grid-failed", "#grid-completed", "#grid-failed", "#grid-running", "#grid-completed"),
    ]


def test_a_grid_has_a_bound() -> None:
    """A workflow of many nodes that ran often is still a page."""
    nodes = [f"n{number}" for number in range(2 * MOST_NODES)]
    runs = [Column("failed", "run", dict.fromkeys(nodes, "failed"))] * (2 * MOST_RUNS)
    assert len(list(ET.fromstring(draw_grid(nodes, runs)).iter("use"))) == MOST_RUNS * (MOST_NODES + 1)
