"""One picture of every kind, with the given words wherever somebody else's words may stand."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from queue_workflows.drawing.svg import (
    charts,
    gauges,
    graph,
    grid,
    hatches,
    icons,
    model_map,
    timeline,
    wait_bar,
)
from queue_workflows.drawing.svg.segments import Segment

START = datetime(2026, 1, 2, 14, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def pieces(note: str) -> list[Segment]:
    """A piece of every kind, the last of which goes on."""
    kinds = list(hatches.SEGMENTS)
    done = [Segment(kind, at(10 * n), at(10 * n + 10), note) for n, kind in enumerate(kinds)]
    return [*done, Segment("running", at(10 * len(kinds)), None, note)]


def pictures(words: str, href: str = "/there") -> Mapping[str, str]:
    """All of them, by name."""
    boxes = [
        graph.Box(words, words, words, words, {words: 3, "failed": 1}, 4, words),
        graph.Box("b", words, "for_each", "running", {"completed": 7, "running": 1}, 1, words),
    ]
    rows = [timeline.Row(words, words, pieces(words), href, words, depth=2)]
    model = model_map.Model(words, words, 3, True, href)
    gpu = model_map.Gpu(words, words, words, 0.9, words, [model], href)
    return {
        "graph": graph.draw_graph(boxes, [(words, "b")], label=words, href_of=lambda _id: href),
        "timeline": timeline.draw_timeline(rows, begin=at(0), end=at(90), is_over=False, label=words),
        "wait bar": wait_bar.draw_wait_bar(pieces(words), state=words, now=at(90)),
        "spark": charts.spark([1, 2, 3], label=words),
        "bars": charts.bar_chart([3, 0, 2], bad=[1], label=words, first=words, last=words, unit=words),
        "line": charts.line_chart([1, None, 2], top=3, label=words, unit=words, first=words, last=words),
        "gauge": gauges.gauge(9, 8, label=words),
        "counts": gauges.counts_bar({words: 2, "failed": 1}, label=words),
        "counts line": gauges.counts_line({words: 2, "failed": 1}),
        "grid": grid.draw_grid(
            [words, "b"], [grid.Column(words, words, {words: words, "b": "failed"}, href)]
        ),
        "models": model_map.draw_model_map([model_map.Machine(words, [gpu], href)], [model]),
        "icon": icons.icon(words, label=words),
        "state": icons.state_mark(words),
        "hatches": hatches.hatches(),
        "legend": hatches.legend(list(hatches.SEGMENTS)),
        "brand": icons.brand(),
    }
