"""What a host app puts around each of its jobs: a tenant's session, a trace, a lock.

Its own errors are the job's failure and are named as what they are; the job's own exceptions pass through it
unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

from queue_workflows.config import InvokeContext
from queue_workflows.engine.outcomes import Cancelled, Discard, RetryAfter, Skip
from queue_workflows.errors import InvokeContextError, LeaseLost

# By these the host app's code around a job may decide the job, as the job itself may.
_VERDICTS: Final = (Skip, Discard, RetryAfter, Cancelled, LeaseLost, KeyboardInterrupt)


class _Invocation:
    """The host app's context around one job; its own errors are named, the job's pass through unchanged."""

    def __init__(self, factory: InvokeContext, job: Any, run: Any) -> None:
        self._factory, self._job, self._run = factory, job, run
        self._manager: Any = None
        self._finalize: Any = None

    def __enter__(self) -> Callable[[Any], Any]:
        with _Step("making it"):
            self._manager = self._factory(self._job, self._run)
        kind = type(self._manager)
        if not hasattr(kind, "__enter__") or not hasattr(kind, "__exit__"):
            raise InvokeContextError(
                f"the invoke context is no context manager but {kind.__name__}",
                advice="decorate the factory of set_invoke_context with @contextlib.contextmanager",
            )
        with _Step("entering it"):
            self._finalize = self._manager.__enter__()
        return self._finalized

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Always left, and with the job's exception; that it be swallowed is not for the context to say."""
        try:
            self._manager.__exit__(kind, exc, tb)
        except BaseException as raised:
            if raised is exc:
                return
            with _Step("leaving it"):
                raise

    def _finalized(self, value: Any) -> Any:
        # A context manager that was made for something else yields itself, or what it is about.
        if not callable(self._finalize):
            return value
        with _Step("finalize"):
            return self._finalize(value)


class _NoContext:
    """For a host app that put nothing around its jobs."""

    def __enter__(self) -> Callable[[Any], Any]:
        return unchanged

    def __exit__(self, *_: object) -> None:
        return None


def unchanged(value: Any) -> Any:
    """What is applied to a result where nobody has anything to apply."""
    return value


_NO_CONTEXT: Final = _NoContext()


def invocation(factory: InvokeContext | None, job: Any, run: Any) -> _Invocation | _NoContext:
    """What to run a job within; it yields the function to apply to the result."""
    return _NO_CONTEXT if factory is None else _Invocation(factory, job, run)


class _Step:
    """Turns an error of the host app's context into one that says so; verdicts pass through."""

    def __init__(self, step: str) -> None:
        self._step = step

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, exc: BaseException | None, _tb: object) -> None:
        if exc is not None and not isinstance(exc, _VERDICTS):
            raise InvokeContextError(
                f"the invoke context failed ({self._step}): {type(exc).__name__}"
            ) from exc
