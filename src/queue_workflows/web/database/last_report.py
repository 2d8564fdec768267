"""What the doctor found last, for all that ask within a few seconds: it makes connections and many checks."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from queue_workflows import clock as time
from queue_workflows.db.doctor.findings import Report
from queue_workflows.views.doctor import read_report

_log = logging.getLogger(__name__)

KEPT_FOR_S: Final = 10.0
# One that is older than that, and not older than this, is shown while the next one is made.
SHOWN_FOR_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class DatedReport:
    """A report, when this process began to make it, and whether the next one is being made."""

    report: Report
    at: datetime
    is_made_anew: bool = False


class LastReport:
    """Examines one database, at most once in so many seconds, however many ask."""

    def __init__(
        self,
        dsn: Callable[[], str | None],
        *,
        kept_for_s: float = KEPT_FOR_S,
        shown_for_s: float = SHOWN_FOR_S,
        read: Callable[[str | None], Report] = read_report,
    ) -> None:
        self._dsn = dsn
        self._kept_for_s = kept_for_s
        self._shown_for_s = shown_for_s
        self._read = read
        self._guard = threading.Lock()
        self._last: tuple[float, DatedReport] | None = None

    def report(self) -> DatedReport:
        """The last one, if it is young enough; else a new one, which others that ask wait for."""
        last = self._last
        if last is not None:
            age_s = time.monotonic() - last[0]
            if age_s < self._kept_for_s:
                return last[1]
            if age_s < self._shown_for_s:
                if not self._guard.locked():
                    threading.Thread(target=self._made_beside, args=[last], daemon=True).start()
                return replace(last[1], is_made_anew=True)
        return self._made_after(last)

    def _made_beside(self, seen: tuple[float, DatedReport]) -> None:
        """For nobody in particular: what asks when the last one is too old meets what is wrong."""
        try:
            self._made_after(seen)
        except Exception:
            _log.warning("the doctor's next report was not made", exc_info=True)

    def _made_after(self, seen: tuple[float, DatedReport] | None) -> DatedReport:
        with self._guard:
            if self._last is None or self._last is seen:
                began, at = time.monotonic(), datetime.now(UTC)
                self._last = began, DatedReport(self._read(self._dsn()), at)
            return self._last[1]
