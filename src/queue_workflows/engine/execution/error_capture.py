"""From an exception to what is stored of it: bounded, redacted, and never an error of its own."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from queue_workflows.engine.execution.redaction import Redactor
from queue_workflows.errors import HookFailed
from queue_workflows.repositories.claims.end import ERROR_TEXT, ERROR_TRACE, error_entry

_LONGEST_TYPE: Final = 200
_OURS: Final = str(Path(__file__).parents[1])


def captured(exc: BaseException, redactor: Redactor) -> str:
    """An entry for `errors[]`: the type, the message, and the end of the traceback with its causes."""
    return error_entry(
        "exception",
        redactor.head(_message_of(exc), ERROR_TEXT),
        error_type=redactor.head(_type_of(exc), _LONGEST_TYPE),
        # Where a script fails our own frames say nothing, and what it printed does.
        traceback=(
            redactor.tail(exc.printed, ERROR_TRACE)
            if isinstance(exc, HookFailed)
            else told_traceback(exc, redactor)
        ),
    )


def told_traceback(exc: BaseException, redactor: Redactor) -> str:
    """The end of the traceback, without secrets and without frames of ours above the host app's."""
    return redactor.tail(_traceback_of(exc), ERROR_TRACE)


def _type_of(exc: BaseException) -> str:
    """A private one of ours is called what it extends, which people can look up."""
    kind: type = type(exc)
    while kind.__module__.startswith("queue_workflows.") and kind.__name__.startswith("_"):
        kind = kind.__bases__[0]
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _message_of(exc: BaseException) -> str:
    if isinstance(exc, SystemExit):
        return f"it called sys.exit({_safely(repr, exc.code) if exc.code is not None else ''})"
    return _safely(str, exc)


def _traceback_of(exc: BaseException) -> str:
    try:
        told = traceback.TracebackException(type(exc), exc, _beyond_ours(exc.__traceback__), compact=True)
        return "".join(told.format())
    except BaseException as failed:  # an exception can be so odd that it cannot be shown
        return f"(no traceback: formatting it raised {type(failed).__name__})"


def _beyond_ours(tb: TracebackType | None) -> TracebackType | None:
    """Without the frames of this package at its top, unless there are no others."""
    first = tb
    while tb is not None and tb.tb_frame.f_code.co_filename.startswith(_OURS):
        tb = tb.tb_next
    return tb or first


def _safely(show: Callable[[Any], str], value: object) -> str:
    try:
        return str(show(value))
    except BaseException as failed:
        return f"(no message: {show.__name__}() of it raised {type(failed).__name__})"
