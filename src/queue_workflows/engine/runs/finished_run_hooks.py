"""Calls the hooks of `on_run_finished`, at least once for each end of a run.

They are the host app's code and may take their time, so they run outside of any transaction and beside the
dispatcher. One that raises is called again later, together with its neighbours.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

import psycopg

from queue_workflows.config import RunFinishedHook
from queue_workflows.engine.execution.error_capture import told_traceback
from queue_workflows.engine.execution.redaction import Redactor
from queue_workflows.repositories.runs.finished import FinishedRunRepository, LeasedEnd
from queue_workflows.repositories.runs.runs import FinishedRun, RunRepository
from queue_workflows.settings import Settings

_log = logging.getLogger(__name__)

# Hooks that take longer are called again by somebody else meanwhile.
LEASE_S: Final = 300.0
_ERROR_TEXT: Final = 4_000


def deliver(
    connection: psycopg.Connection[Any],
    hooks: Sequence[RunFinishedHook],
    settings: Settings,
    redactor: Redactor,
) -> int:
    """Tell the hooks of what has ended; how many ends that were."""
    ends = FinishedRunRepository(connection)
    if not hooks:
        return ends.forget()
    leased = ends.lease(lease_s=LEASE_S)
    for end in leased:
        run = RunRepository(connection).finished(end.run_id, end.was)
        error = None if run is None else _called(hooks, run, redactor)
        if error is None:
            ends.delivered(end)
        else:
            _failed(ends, end, error, settings)
    return len(leased)


def _called(hooks: Sequence[RunFinishedHook], run: FinishedRun, redactor: Redactor) -> str | None:
    """Call each; what those said that raised."""
    errors = []
    for hook in hooks:
        try:
            hook(run)
        except Exception as wrong:
            name = getattr(hook, "__qualname__", repr(hook))
            said = f"{name} raised {type(wrong).__name__}: {' '.join(str(wrong).split())}"
            _tell(run, redactor.head(said, _ERROR_TEXT), told_traceback(wrong, redactor))
            errors.append(said)
    return redactor.head("; ".join(errors), _ERROR_TEXT) if errors else None


def _tell(run: FinishedRun, said: str, traceback: str) -> None:
    """A warning with the place in the host app's code, as text, so that no handler shows its secrets."""
    if _log.isEnabledFor(logging.WARNING):
        record = _log.makeRecord(_log.name, logging.WARNING, __file__, 0, "run %s: %s", (run.id, said), None)
        record.exc_text = traceback.rstrip()
        _log.handle(record)


def _failed(ends: FinishedRunRepository, end: LeasedEnd, error: str, settings: Settings) -> None:
    given_up = ends.failed(
        end, error, max_tries=settings.dispatch_max_tries, backoff_s=settings.dispatch_backoff_s
    )
    if given_up:
        _log.error("run %s: its hooks are given up after %d tries: %s", end.run_id, end.tries, error)
