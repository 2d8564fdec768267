"""What the doctor found last, for all that ask within a few seconds: it makes connections and many checks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from queue_workflows import clock as time
from queue_workflows.db.doctor.findings import Report
from queue_workflows.views.doctor import read_report

KEPT_FOR_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class DatedReport:
    """A report, and when this process began to make it."""

    report: Report
    at: datetime


class LastReport:
    """Examines one database, at most once in so many seconds."""

    def __init__(
        self,
        dsn: Callable[[], str | None],
        *,
        kept_for_s: float = KEPT_FOR_S,
        read: Callable[[str | None], Report] = read_report,
    ) -> None:
        self._dsn = dsn
        self._kept_for_s = kept_for_s
        self._read = read
        self._guard = threading.Lock()
        self._last: tuple[float, DatedReport] | None = None

    def report(self) -> DatedReport:
        """The last one if it is young enough, or a new one, which others that ask wait for."""
        with self._guard:
            now = time.monotonic()
            if self._last is None or now - self._last[0] >= self._kept_for_s:
                at = datetime.now(UTC)
                self._last = now, DatedReport(self._read(self._dsn()), at)
            return self._last[1]
