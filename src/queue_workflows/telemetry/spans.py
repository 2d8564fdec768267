"""Spans, and the W3C context that a row carries from the process that enqueued it to the one that runs it.

It is W3C's `traceparent`, with its `tracestate` behind a blank where there is one. A worker that knows only
the first part takes the two for no context at all, and runs the job as a trace of its own.

Where there is no SDK, what was current all the same is passed on: a service behind a proxy that traces may
have a context without exporting anything itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from queue_workflows.telemetry.harmless import harmless
from queue_workflows.telemetry.names import (
    FAMILY,
    OPERATION,
    OPERATION_TYPE,
    OPERATION_TYPES,
    QUEUE,
    SYSTEM,
    SYSTEM_NAME,
    TASK,
)
from queue_workflows.telemetry.provider import is_silent, tracer

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanContext, Tracer


class Traced:
    """What a piece of work is told of its span, and tells it; without a span it is told the context alone."""

    def __init__(self, traceparent: str | None = None, span: Span | None = None) -> None:
        self.traceparent = traceparent
        self._span = span

    @harmless
    def note(self, name: str, value: str | int) -> None:
        """An attribute that is known only now."""
        if self._span is not None:
            self._span.set_attribute(name, value)

    @harmless
    def end(self) -> None:
        """End the span from outside of what it is around, which will not come to its end."""
        if self._span is not None:
            self._span.end()

    @harmless
    def failed(self, error: Mapping[str, Any]) -> None:
        """The work failed; `error` is an entry of a job's errors, in which no secrets are left."""
        if self._span is None:
            return
        from opentelemetry.trace import StatusCode

        said = {
            f"exception.{name}": str(error[key])
            for name, key in (("type", "type"), ("message", "message"), ("stacktrace", "traceback"))
            if error.get(key)
        }
        self._span.add_event("exception", said)
        self._span.set_attribute("error.type", str(error.get("type") or error.get("kind")))
        self._span.set_status(StatusCode.ERROR, said.get("exception.message"))


class _Untraced(Traced):
    """No span and no context; of a class and not a generator, for it stands in front of every job."""

    def __enter__(self) -> Traced:
        return self

    def __exit__(self, *_: object) -> None:
        return None


UNTRACED: Final = _Untraced()
STATE_BYTES: Final = 512


def producing(
    operation: str, task: str | None, queue: str | None, family: str
) -> AbstractContextManager[Traced]:
    """Around what stores a job, many or a run; its context is for their rows."""
    if is_silent():
        return _Untraced(_current_traceparent()) if "opentelemetry.trace" in sys.modules else UNTRACED
    made = tracer()
    if made is None:
        return _Untraced(_current_traceparent())
    from opentelemetry.trace import SpanKind

    attributes = _attributes(operation, task, queue, family)
    name = operation if task is None else f"{operation} {task}"
    return _Spanned(lambda: made.start_span(name, None, SpanKind.PRODUCER, attributes))


def sending(task: str, queue: str, family: str) -> Traced:
    """The span of one job of many that go in one statement and have nothing to do with each other.

    It is told when it is ended, and never if the job turns out to be another's to insert.
    """
    made = tracer()
    return UNTRACED if made is None else _Sent(made, task, _attributes("enqueue", task, queue, family))


def consuming(
    task: str, queue: str, family: str, traceparent: str | None, more: Mapping[str, str | int]
) -> AbstractContextManager[Traced]:
    """Around what runs a job, as a child of what enqueued it."""
    made = tracer()
    if made is None:
        return UNTRACED
    from opentelemetry.trace import SpanKind

    attributes = {**_attributes("process", task, queue, family), **more}
    return _Spanned(
        lambda: made.start_span(f"process {task}", _context_of(traceparent), SpanKind.CONSUMER, attributes)
    )


def dispatching(
    workflow: str, traceparent: str | None, more: Mapping[str, str | int]
) -> AbstractContextManager[Traced]:
    """Around what advances a run, as a child of what started it."""
    made = tracer()
    if made is None:
        return UNTRACED
    from opentelemetry.trace import SpanKind

    attributes = {**_attributes("dispatch", workflow, None, "run"), **more}
    return _Spanned(
        lambda: made.start_span(
            f"dispatch {workflow}", _context_of(traceparent), SpanKind.INTERNAL, attributes
        )
    )


def current_ids() -> Mapping[str, str]:
    """The trace and the span that are current, for a line of a log; empty without any."""
    if is_silent() or "opentelemetry.trace" not in sys.modules:
        return {}
    from opentelemetry.trace import get_current_span

    try:
        context = get_current_span().get_span_context()
        if not context.is_valid:
            return {}
    # Not told as elsewhere: to tell it is a line of the log, which asks here.
    except Exception:
        return {}
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}


class _Spanned(Traced):
    """A span that is current meanwhile; its errors are told by `failed`, which keeps secrets out of them."""

    def __init__(self, start: Callable[[], Span]) -> None:
        super().__init__()
        self._start = start
        self._scope: AbstractContextManager[Span] | None = None

    def __enter__(self) -> Traced:
        self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._finish(exc)

    @harmless
    def _begin(self) -> None:
        from opentelemetry.trace import use_span

        self._span = self._start()
        scope = use_span(self._span, end_on_exit=True, record_exception=False, set_status_on_exception=False)
        scope.__enter__()
        self._scope = scope
        self.traceparent = _current_traceparent()

    @harmless
    def _finish(self, exc: BaseException | None) -> None:
        from opentelemetry.trace import StatusCode

        if self._scope is None:
            return
        if exc is not None and self._span is not None:
            self._span.set_attribute("error.type", type(exc).__qualname__)
            self._span.set_status(StatusCode.ERROR)
        self._scope.__exit__(None, None, None)


class _Sent(Traced):
    """A span that begins a trace and is never current."""

    def __init__(self, made: Tracer, task: str, attributes: Mapping[str, str | int]) -> None:
        super().__init__()
        self._begin(made, task, attributes)

    @harmless
    def _begin(self, made: Tracer, task: str, attributes: Mapping[str, str | int]) -> None:
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind

        self._span = made.start_span(f"enqueue {task}", Context(), SpanKind.PRODUCER, attributes)
        self.traceparent = _said(self._span.get_span_context())


def _attributes(operation: str, task: str | None, queue: str | None, family: str) -> dict[str, str | int]:
    given = {QUEUE: queue, TASK: task, OPERATION_TYPE: OPERATION_TYPES.get(operation)}
    known = {name: value for name, value in given.items() if value is not None}
    return {SYSTEM: SYSTEM_NAME, OPERATION: operation, FAMILY: family, **known}


def _context_of(traceparent: str | None) -> Context:
    """The context that a row carries; nothing of what happens to be current in its worker."""
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    if traceparent is None:
        return Context()
    parent, _, state = traceparent.partition(" ")
    return TraceContextTextMapPropagator().extract({"traceparent": parent, "tracestate": state}, Context())


def _current_traceparent() -> str | None:
    """Of the span that is current."""
    from opentelemetry.trace import get_current_span

    return _said(get_current_span().get_span_context())


def _said(context: SpanContext) -> str | None:
    """As a row carries it; of a longer state than W3C asks for, what the latest vendors have entered."""
    if not context.is_valid:
        return None
    said = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    if not context.trace_state:
        return said
    state = context.trace_state.to_header()
    while len(state) > STATE_BYTES:
        state = state.rpartition(",")[0]
    return f"{said} {state}" if state else said
