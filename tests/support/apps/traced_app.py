"""The wiring of a host app with an SDK that exports only when it is flushed, to lines in a file.

TRACED_TO is the file. With TRACED_HANGS the exporters never come back, as if nobody took what they send.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Sequence
from typing import Any

import psycopg
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from support.apps.films_traced import FILMS

from queue_workflows import Discard, enqueue_ingest_job, ingest_task, set_node_resolver, set_workflow_provider

NEVER_MS = 3_600_000


def told(line: dict[str, Any]) -> None:
    """Append one line, whole, whichever process else does."""
    while "TRACED_HANGS" in os.environ:
        time.sleep(60)
    with open(os.environ["TRACED_TO"], "a", encoding="utf-8") as file:
        file.write(json.dumps(line | {"pid": os.getpid()}) + "\n")


class Spans(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        for span in spans:
            told({"span": json.loads(span.to_json(indent=None))})
        return SpanExportResult.SUCCESS


class Metrics(MetricExporter):
    def export(self, metrics_data: MetricsData, timeout_millis: float = 0, **_: Any) -> MetricExportResult:
        told({"metrics": json.loads(metrics_data.to_json(indent=None))})
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 0) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 0, **_: Any) -> None:
        return None


tracer_provider = TracerProvider()
tracer_provider.add_span_processor(BatchSpanProcessor(Spans(), schedule_delay_millis=NEVER_MS))
trace.set_tracer_provider(tracer_provider)
metrics.set_meter_provider(
    MeterProvider([PeriodicExportingMetricReader(Metrics(), export_interval_millis=NEVER_MS)])
)


def current_span() -> str:
    return f"{trace.get_current_span().get_span_context().span_id:016x}"


@ingest_task("nesting", queue="fetch")
def nesting(reason: str | None) -> str:
    """Enqueues another; says which span it is in."""
    with psycopg.connect(os.environ["QWF_DB_URL"], autocommit=True) as connection:
        enqueue_ingest_job("seen_async", queue="fetch", conn=connection)
    return current_span()


@ingest_task("seen_async", queue="fetch")
async def seen_async(reason: str | None) -> str:
    await asyncio.sleep(0)
    return current_span()


@ingest_task("wrong", queue="fetch")
def wrong(reason: str | None) -> None:
    raise Discard("cannot reach postgresql://shop:hunter2@db/shop")


@ingest_task("stuck", queue="fetch")
def stuck(reason: str | None) -> None:
    while True:
        time.sleep(0.02)


def note(inputs: dict[str, Any]) -> dict[str, Any]:
    return {"span": current_span()}


set_node_resolver({"note": note}.get)
set_workflow_provider(load_workflow=FILMS.get)
