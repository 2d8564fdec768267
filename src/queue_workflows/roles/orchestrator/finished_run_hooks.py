"""The orchestrator's second thread: tells the host app's hooks of the ends of runs, which may take long."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Self

import psycopg

from queue_workflows.db.connections.failures import DATABASE_AWAY
from queue_workflows.db.connections.kept_line import Line

_log = logging.getLogger(__name__)


class FinishedRunHooks:
    """Delivers when it is rung, and in any case after each `poll_s`."""

    def __init__(
        self,
        connect: Callable[[], psycopg.Connection[Any]],
        deliver: Callable[[psycopg.Connection[Any]], int],
        *,
        poll_s: float,
        grace_s: float,
        answer_within_s: float,
    ) -> None:
        self._line = Line(connect)
        self._deliver = deliver
        self._poll_s = poll_s
        self._grace_s = grace_s
        self._answer_within_s = answer_within_s
        self._rung = threading.Event()
        self._over = False
        self._thread = threading.Thread(target=self._run, name="qwf-finished-runs", daemon=True)

    def ring(self) -> None:
        """There may be something to tell; from any thread."""
        self._rung.set()

    def cut_if_stuck(self) -> None:
        """Let go, from another thread, of a server that gives no answer."""
        self._line.cut_if_unanswered(self._answer_within_s)

    def tell_all(self) -> None:
        """Deliver all that is due, in the caller's thread, instead of this one's own."""
        self._close()
        while not self._thread.is_alive() and self._deliver(self._line.connected()):
            pass

    def _run(self) -> None:
        was_away = False
        while not self._over:
            self._rung.clear()
            try:
                while not self._over and self._deliver(self._line.connected()):
                    was_away = False
            except DATABASE_AWAY as exc:
                self._line.let_go()
                if not was_away:
                    _log.warning("hooks cannot be told: %s", " ".join(str(exc).split()))
                was_away = True
            except Exception:
                # One row that is odd must not silence the rest for ever.
                _log.exception("hooks cannot be told")
                self._line.let_go()
            self._rung.wait(self._poll_s)
        self._line.let_go()

    def _close(self) -> None:
        self._over = True
        self._rung.set()
        if self._thread.is_alive():
            self._thread.join(self._grace_s)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """A hook that takes longer than the grace is called again by another orchestrator."""
        self._close()
