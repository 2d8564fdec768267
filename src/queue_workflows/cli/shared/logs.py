"""What a role says of itself on stderr, unless the host app has set up logging of its own."""

from __future__ import annotations

import logging
import os
import time
from contextlib import suppress

from queue_workflows.db.connections.descriptors import Descriptors


class StderrHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to stderr; where a job has closed that, by a descriptor of its own.

    What cannot be written or put into words is left out: no line of a log is worth the end of a worker. Nor
    is one worth a file of a job's, which may have the number of a descriptor that a job has closed.
    """

    def __init__(self) -> None:
        super().__init__()
        try:
            self._own = os.dup(2)
        except OSError:
            self._own = -1
        self._is_own = Descriptors(self._own)
        try:
            self._is_streams: Descriptors | None = Descriptors(self.stream.fileno())
        except (OSError, ValueError):
            # It is no file, so there is no number that another could get.
            self._is_streams = None

    def emit(self, record: logging.LogRecord) -> None:
        """One line."""
        try:
            line = self.format(record) + self.terminator
        except Exception as unsaid:
            line = f"{record.levelname} {record.name}: a line of the log raised {type(unsaid).__name__}\n"
        if self._is_streams is not None and not self._is_streams.are_ours():
            self._write(line)
            return
        try:
            self.stream.write(line)
            self.stream.flush()
        except (OSError, ValueError):
            self._write(line)

    def flush(self) -> None:
        """At the end of the process too."""
        with suppress(OSError, ValueError):
            super().flush()

    def _write(self, line: str) -> None:
        # The number may be another file's, if a job has closed that as well.
        if self._is_own.are_ours():
            with suppress(OSError):
                os.write(self._own, line.encode("utf-8", "backslashreplace"))


def log_to_stderr(*, debug: bool = False, handler: logging.Handler | None = None) -> None:
    """One line an event, with UTC time and pid; a host app that set up the root logger keeps that.

    With a handler it goes there instead.
    """
    ours = logging.getLogger("queue_workflows")
    if ours.level == logging.NOTSET:
        ours.setLevel(logging.DEBUG if debug else logging.INFO)
    if logging.getLogger().handlers or ours.handlers:
        return
    formatter = logging.Formatter(
        "%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%SZ"
    )
    formatter.converter = time.gmtime
    handler = handler or StderrHandler()
    handler.setFormatter(formatter)
    ours.addHandler(handler)
