"""An SDK that exports to memory, for the test's own process; and what other processes exported to a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


@dataclass
class Memory:
    """What was told so far."""

    _spans: InMemorySpanExporter = field(default_factory=InMemorySpanExporter)
    _metrics: InMemoryMetricReader = field(default_factory=InMemoryMetricReader)

    def spans(self) -> dict[str, ReadableSpan]:
        """By their names, the latest of each."""
        return {span.name: span for span in self._spans.get_finished_spans()}

    def all_spans(self) -> list[ReadableSpan]:
        """In the order in which they ended."""
        return list(self._spans.get_finished_spans())

    def points(self) -> dict[str, list[tuple[dict[str, Any], float]]]:
        """Each metric's points: attributes, and the sum, value or count."""
        data = self._metrics.get_metrics_data()
        return {} if data is None else points_of(json.loads(data.to_json(indent=None)))


@contextmanager
def sdk_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[Memory]:
    """The API's globals can be set once in a process' life, which a test's process has not for itself."""
    memory = Memory()
    spans, counts = TracerProvider(), MeterProvider([memory._metrics])
    spans.add_span_processor(SimpleSpanProcessor(memory._spans))
    with monkeypatch.context() as patched:
        patched.setattr(trace, "_TRACER_PROVIDER", spans)
        patched.setattr(metrics._internal, "_METER_PROVIDER", counts)
        yield memory
    spans.shutdown()
    counts.shutdown()


def points_of(data: dict[str, Any]) -> dict[str, list[tuple[dict[str, Any], float]]]:
    """From the SDK's own JSON."""
    return {
        metric["name"]: [
            (point["attributes"], point.get("count", point.get("value")))
            for point in metric["data"]["data_points"]
        ]
        for resource in data["resource_metrics"]
        for scope in resource["scope_metrics"]
        if scope["scope"]["name"] == "queue_workflows"
        for metric in scope["metrics"]
    }


@dataclass(frozen=True)
class Told:
    """What the processes of `support.apps.traced_app` wrote to their file."""

    file: Path

    def _lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.file.read_text().splitlines()] if self.file.exists() else []

    def spans(self) -> list[dict[str, Any]]:
        return [line["span"] for line in self._lines() if "span" in line]

    def span(self, name: str) -> dict[str, Any]:
        """The one of this name."""
        (found,) = (span for span in self.spans() if span["name"] == name)
        return found

    def points(self) -> dict[str, list[tuple[dict[str, Any], float]]]:
        """The last export of each process, together."""
        latest = {line["pid"]: points_of(line["metrics"]) for line in self._lines() if "metrics" in line}
        together: dict[str, list[tuple[dict[str, Any], float]]] = {}
        for each in latest.values():
            for name, points in each.items():
                together.setdefault(name, []).extend(points)
        return together


def trace_of(span: dict[str, Any]) -> str:
    """The id of its trace."""
    return str(span["context"]["trace_id"]).removeprefix("0x")


def id_of(span: dict[str, Any]) -> str:
    """Its id, as `traceparent` has it."""
    return str(span["context"]["span_id"]).removeprefix("0x")


def parent_of(span: dict[str, Any]) -> str:
    return str(span["parent_id"]).removeprefix("0x")
