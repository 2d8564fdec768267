"""The supervisor's thread at the hardware, so that a tool that hangs never keeps it from its children."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

from queue_workflows.gpu.release import Sight
from queue_workflows.telemetry.hw.reading import Reading

_log = logging.getLogger(__name__)

# While somebody waits for a device, the next look begins so soon after the one before.
HURRIED_S: Final = 0.5
_LOOK_ENDS_WITHIN_S: Final = 1.0


class Looks(Protocol):
    """What the sampler looks with."""

    def look(self) -> Reading:
        """The figures of now."""

    def cancel(self) -> None:
        """End a look that hangs; called from another thread."""


class Sampler(threading.Thread):
    """Looks every few seconds, or soon again while it is `hurried`; `tell` is called after each look."""

    def __init__(
        self,
        reader: Looks,
        *,
        every_s: float,
        tell: Callable[[], None],
        publish: Callable[[Reading], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name="qwf-sampler", daemon=True)
        self._reader = reader
        self._every_s = every_s
        self._tell = tell
        self._publish = publish
        self._now = now
        self._wake = threading.Event()
        self._closing = False
        self._said: dict[str, str] = {}
        self.sight = Sight()
        self._is_hurried = False

    def hurry(self, wanted: bool) -> None:
        """Whether somebody waits for what the next look finds."""
        is_new = wanted and not self._is_hurried
        self._is_hurried = wanted
        if is_new:
            self._wake.set()

    def close(self, *, within_s: float) -> None:
        """Look no more; a look that hangs is not waited for any longer than that."""
        self._closing = True
        self._wake.set()
        if self.is_alive():
            self.join(min(_LOOK_ENDS_WITHIN_S, max(0.0, within_s)))
            self._reader.cancel()

    def run(self) -> None:
        """Looks, until `close`."""
        while not self._closing:
            asked_at = self._now()
            try:
                self._look(asked_at)
            except Exception:
                _log.exception("the hardware could not be looked at")
            self._tell()
            self._wake.wait(min(HURRIED_S, self._every_s) if self._is_hurried else self._every_s)
            self._wake.clear()

    def _look(self, asked_at: float) -> None:
        reading = self._reader.look()
        troubles = {str(vendor): text for vendor, text in reading.devices.troubles.items()}
        self._say(troubles)
        self.sight = Sight(asked_at, {one.id: one for one in reading.devices.found}, troubles)
        self._publish(reading)

    def _say(self, troubles: dict[str, str]) -> None:
        """Log each trouble once, and that it is over."""
        for vendor, trouble in troubles.items():
            if self._said.get(vendor) != trouble:
                _log.warning("%s", trouble)
        for vendor in self._said.keys() - troubles.keys():
            _log.info("the tool for %s answers again", vendor)
        self._said = troubles
