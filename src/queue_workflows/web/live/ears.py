"""The page's one LISTEN connection: whatever is notified already lets the watched views be read at once.

It advertises no queue, or every enqueue would have to notify it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Final

from queue_workflows.db.listen.listener import Listener
from queue_workflows.engine.watch.follow import CHANNEL as RUN_CHANGED
from queue_workflows.errors import QwfError
from queue_workflows.repositories.workers.hardware import CHANNEL as HARDWARE
from queue_workflows.web.database.opened import OpenedDatabase
from queue_workflows.web.live.hub import Hub

_log = logging.getLogger(__name__)

# Those of runs come for the runs that somebody watches with `qwf run watch`; the others are seen by looking.
CHANNELS: Final = [HARDWARE, RUN_CHANGED]

_ENDS_WITHIN_S: Final = 3.0


class Ears:
    """A thread that listens from the first page that is watched until the end, and tells the hub's loop."""

    def __init__(self, opened: OpenedDatabase, hub: Hub) -> None:
        self._opened = opened
        self._hub = hub
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None
        self._listener: Listener | None = None
        self._is_over = threading.Event()

    def listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin, if nothing does so already."""
        with self._guard:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._run, args=(loop,), name="qwf-web-ears", daemon=True
                )
                self._thread.start()

    def close(self) -> None:
        """Stop listening, and wait for that: a server that goes away next is none to complain of."""
        self._is_over.set()
        with self._guard:
            thread, listener = self._thread, self._listener
        if listener is not None:
            listener.interrupt()
        if thread is not None:
            thread.join(_ENDS_WITHIN_S)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            with self._opened.listener(CHANNELS) as listener:
                with self._guard:
                    self._listener = listener
                while not self._is_over.is_set() and not loop.is_closed():
                    if listener.wait(1.0) is not None:
                        loop.call_soon_threadsafe(self._hub.heard)
        except RuntimeError:
            if not loop.is_closed():  # else there is nobody left to tell
                raise
        except QwfError as exc:
            # Without it the views are read at their pace all the same.
            _log.warning("the page hears nothing of changes and looks by itself: %s", exc)
