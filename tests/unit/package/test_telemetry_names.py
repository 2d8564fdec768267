"""The table of metrics, the dashboard that is drawn from it, and what an SDK is given."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.stages.telemetry import sdk_here

from queue_workflows.telemetry import names
from queue_workflows.telemetry.instruments import observe_figures, observe_in_flight

DASHBOARD = Path(__file__).resolve().parents[3] / "docs" / "deploy" / "grafana-dashboard.json"
ALL = (*names.INSTRUMENTS, *names.FIGURES)
# What a histogram is in Prometheus.
PARTS = ("_bucket", "_sum", "_count")


def labels_of(metric: names.Metric) -> set[str]:
    return {name.replace(".", "_") for name in metric.attributes} | (
        {"le"} if metric.kind == "histogram" else set()
    )


def expressions() -> Iterator[str]:
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]
    yield from (one["query"]["query"] for one in dashboard["templating"]["list"] if one["type"] == "query")


def metrics_in(expression: str) -> list[names.Metric]:
    """The metrics of an expression; KeyError for one that the table has not."""
    known: dict[str, names.Metric] = {}
    for metric in ALL:
        parts = PARTS if metric.kind == "histogram" else ("",)
        known |= {f"{metric.prometheus}{part}": metric for part in parts}
    found = re.findall(r"\b(?:qwf|messaging)_\w+", re.sub(r"by \([^)]*\)|\{[^}]*\}", "", expression))
    return [known[name] for name in found]


def test_every_metric_of_the_dashboard_exists():
    """And has the labels that it is told apart by."""
    drawn = set()
    for expression in expressions():
        (metric,) = metrics_in(expression)
        drawn.add(metric.name)
        grouped = re.findall(r"by \(([^)]*)\)", expression)
        used = {label.strip() for group in grouped for label in group.split(",")}
        used |= set(re.findall(r"(\w+)(?:=~|!=|=)\"", expression))
        assert used <= labels_of(metric), expression
    undrawn = {metric.name for metric in ALL} - drawn
    assert undrawn == {"qwf.figures.duration"}


def test_a_dashboard_with_a_metric_that_does_not_exist_is_seen():
    """The check above would see it."""
    with pytest.raises(KeyError, match="qwf_nothing"):
        metrics_in('sum by (queue) (rate(qwf_nothing{queue="a"}[5m]))')


def test_names_are_each_once_in_both_worlds():
    """No two metrics meet under one name, and units are where Prometheus has them."""
    assert len({metric.name for metric in ALL}) == len({metric.prometheus for metric in ALL}) == len(ALL)
    for metric in ALL:
        assert re.fullmatch(r"[a-z][a-z0-9_.]*", metric.name), metric.name
        assert (metric.unit == "s") == metric.prometheus.endswith("_seconds"), metric.name


def test_no_attribute_is_one_of_a_single_job():
    """No id, no key, no URL: what tells jobs apart has no place in a metric."""
    allowed = {names.SYSTEM, names.OPERATION, names.QUEUE, names.FAMILY, names.TASK, names.OUTCOME}
    allowed |= {"family", "queue", "state", "reason", "outcome", "host", "device", "part", "kind", "cause"}
    assert {attribute for metric in ALL for attribute in metric.attributes} <= allowed


def test_an_sdk_gets_the_figures_as_gauges(monkeypatch):
    """Asked whenever it exports; and how many jobs a worker holds."""
    read: dict[str, Any] = {
        "qwf.queue.jobs": [(("ingest", "fetch", "queued"), 3)],
        "qwf.database.up": [((), 1)],
    }
    with sdk_here(monkeypatch) as memory:
        observe_figures(lambda: read)
        observe_in_flight("fetch", "ingest", lambda: 2)
        points = memory.points()
    assert points == {
        "qwf.queue.jobs": [({"family": "ingest", "queue": "fetch", "state": "queued"}, 3)],
        "qwf.database.up": [({}, 1)],
        "qwf.job.in_flight": [({names.QUEUE: "fetch", names.FAMILY: "ingest"}, 2)],
    }
