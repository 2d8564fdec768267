"""Spans, and the W3C context that a row carries from who enqueued it to who runs it.

Where there is no SDK, what was current all the same is passed on: a service behind a proxy that traces may
have a context without exporting anything itself.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from queue_workflows.telemetry.names import FAMILY, OPERATION, QUEUE, SYSTEM, SYSTEM_NAME, TASK
from queue_workflows.telemetry.provider import is_silent, tracer

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanKind, Tracer


class Traced:
    """What a piece of work is told of its span, and tells it; without a span it is told the context alone."""

    def __init__(self, traceparent: str | None = None, span: Span | None = None) -> None:
        self.traceparent = traceparent
        self._span = span

    def note(self, name: str, value: str | int) -> None:
        """An attribute that is known only now."""
        if self._span is not None:
            self._span.set_attribute(name, value)

    def end(self) -> None:
        """End the span from outside of what it is around, which will not come to its end."""
        if self._span is not None:
            self._span.end()

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

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


UNTRACED: Final = _Untraced()


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
    return _spanned(made, name, SpanKind.PRODUCER, None, attributes)


def consuming(
    task: str, queue: str, family: str, traceparent: str | None, more: Mapping[str, str | int]
) -> AbstractContextManager[Traced]:
    """Around what runs a job, as a child of what enqueued it."""
    made = tracer()
    if made is None:
        return UNTRACED
    from opentelemetry.trace import SpanKind

    attributes = {**_attributes("process", task, queue, family), **more}
    return _spanned(made, f"process {task}", SpanKind.CONSUMER, _context_of(traceparent), attributes)


def dispatching(
    workflow: str, traceparent: str | None, more: Mapping[str, str | int]
) -> AbstractContextManager[Traced]:
    """Around what advances a run, as a child of what started it."""
    made = tracer()
    if made is None:
        return UNTRACED
    from opentelemetry.trace import SpanKind

    attributes = {**_attributes("dispatch", workflow, None, "run"), **more}
    return _spanned(made, f"dispatch {workflow}", SpanKind.INTERNAL, _context_of(traceparent), attributes)


@contextmanager
def _spanned(
    made: Tracer, name: str, kind: SpanKind, parent: Context | None, attributes: Mapping[str, str | int]
) -> Iterator[Traced]:
    """A span that is current meanwhile; its errors are told by `Traced`, which keeps secrets out of them."""
    from opentelemetry.trace import StatusCode, use_span

    span = made.start_span(name, parent, kind, attributes)
    with use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        try:
            yield Traced(_current_traceparent(), span)
        except BaseException as exc:
            span.set_attribute("error.type", type(exc).__qualname__)
            span.set_status(StatusCode.ERROR)
            raise


def _attributes(operation: str, task: str | None, queue: str | None, family: str) -> dict[str, str | int]:
    given = {QUEUE: queue, TASK: task}
    known = {name: value for name, value in given.items() if value is not None}
    return {SYSTEM: SYSTEM_NAME, OPERATION: operation, FAMILY: family, **known}


def _context_of(traceparent: str | None) -> Context:
    """The context that a row carries; nothing of what happens to be current in its worker."""
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    if traceparent is None:
        return Context()
    return TraceContextTextMapPropagator().extract({"traceparent": traceparent}, Context())


def _current_traceparent() -> str | None:
    """As in W3C's header; what a vendor adds in `tracestate` has no column."""
    from opentelemetry.trace import get_current_span

    current = get_current_span().get_span_context()
    if not current.is_valid:
        return None
    return f"00-{current.trace_id:032x}-{current.span_id:016x}-{current.trace_flags:02x}"
