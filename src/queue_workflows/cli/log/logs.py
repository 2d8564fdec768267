"""What a role and its jobs write on stderr, unless the host app has set up logging of its own."""

from __future__ import annotations

import logging
import os
import select
import stat
from contextlib import suppress
from typing import Final

from queue_workflows.cli import Invocation
from queue_workflows.cli.log.log_lines import JsonLines, TextLines, painted
from queue_workflows.cli.log.log_options import JSON
from queue_workflows.db.connections.descriptors import Descriptors
from queue_workflows.drawing.terminal import Terminal
from queue_workflows.engine.execution.log_fields import JobLogFilter
from queue_workflows.engine.execution.redaction import Redactor
from queue_workflows.errors import ConfigurationError
from queue_workflows.settings import Layer, Settings

# How long a line waits for a reader that is slow.
_PATIENCE_MS: Final = 1_000


class StderrHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to stderr; where a job has closed that, by a descriptor of its own.

    What cannot be written or put into words is left out: no line of a log is worth the end of a worker, or a
    wait for a pipe that nobody reads. Nor is one worth a file of a job's, which may have the number of a
    descriptor that a job has closed.
    """

    def __init__(self) -> None:
        super().__init__()
        self._terminal = Terminal.of(self.stream, os.environ)
        try:
            self._own = os.dup(2)
        except OSError:
            self._own = -1
        self._is_own = Descriptors(self._own)
        self._left_out = 0
        self._pipe: int | None = None
        self._whole = -1
        try:
            self._is_streams: Descriptors | None = Descriptors(self.stream.fileno())
            mode = os.fstat(self.stream.fileno()).st_mode
            if not stat.S_ISREG(mode):
                self._pipe = self.stream.fileno()
            if stat.S_ISFIFO(mode):
                self._whole = _unblocked(self._pipe)
        except (OSError, ValueError):
            # It is no file, so there is no number that another could get.
            self._is_streams = None
        self._is_whole = Descriptors(self._whole)

    def emit(self, record: logging.LogRecord) -> None:
        """One line."""
        try:
            line = painted(self.format(record), self._terminal) + self.terminator
        except Exception as unsaid:
            line = f"{record.levelname} {record.name}: a line of the log raised {type(unsaid).__name__}\n"
        if self._is_streams is not None and not self._is_streams.are_ours():
            self._write(line)
            return
        try:
            if self._pipe is not None:
                self._write_to_pipe(self._pipe, line)
                return
            self.stream.write(line)
            self.stream.flush()
        except (OSError, ValueError):
            self._write(line)

    def flush(self) -> None:
        """At the end of the process too."""
        with suppress(OSError, ValueError):
            super().flush()

    def _write_to_pipe(self, fd: int, line: str) -> None:
        """Wait until it is read, but not for long, and not again until some of it was read."""
        if self._left_out and self._has_room(fd, 0):
            line = f"WARNING: {self._left_out} lines were left out here, as nobody read them\n{line}"
            self._left_out = 0
        left = line.encode("utf-8", "backslashreplace")
        while left:
            if not self._has_room(fd, 0 if self._left_out else _PATIENCE_MS):
                self._left_out += 1
                return
            left = left[self._written(fd, left) :]

    def _written(self, fd: int, line: bytes) -> int:
        """As much of it as there is room for, at once: lines of other processes do not come into it."""
        if self._whole >= 0 and self._is_whole.are_ours():
            try:
                return os.write(self._whole, line)
            except BlockingIOError:
                return 0
        # So much goes at once into a pipe that has any room.
        return os.write(fd, line[: select.PIPE_BUF])

    @staticmethod
    def _has_room(fd: int, within_ms: int) -> bool:
        room = select.poll()
        room.register(fd, select.POLLOUT)
        return bool(room.poll(within_ms))

    def _write(self, line: str) -> None:
        # The number may be another file's, if a job has closed that as well.
        if self._is_own.are_ours():
            with suppress(OSError):
                os.write(self._own, line.encode("utf-8", "backslashreplace"))


def _unblocked(pipe: int | None) -> int:
    """The pipe once more, where a write does not wait; -1 where it cannot be had so, as beside Linux."""
    try:
        return os.open(f"/proc/self/fd/{pipe}", os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return -1


def log_arguments(settings: Settings) -> list[str]:
    """What our own command line said of the log, for the processes that we start; they know all else."""
    said = [name for name in ("log_level", "log_format") if settings.layer_of(name) is Layer.ARGUMENT]
    return [word for name in said for word in (f"--{name.replace('_', '-')}", str(getattr(settings, name)))]


def log_to_stderr(
    invocation: Invocation,
    settings: Settings,
    *,
    handler: logging.Handler | None = None,
    is_of_apps: bool = False,
    everyday: bool = True,
) -> None:
    """Write the log as the settings say, unless the host app has set up its root logger: that stays as it is.

    To stderr, or to the handler. `is_of_apps` has the app's loggers at the same level as ours; without
    `everyday` it begins at warnings, unless somebody asked for more.
    """
    root, ours = logging.getLogger(), logging.getLogger("queue_workflows")
    is_asked = settings.layer_of("log_level") is not Layer.DEFAULT
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    if not everyday and not is_asked:
        level = logging.WARNING
    if ours.level == logging.NOTSET or is_asked:
        ours.setLevel(logging.DEBUG if invocation.debug else level)
    if root.handlers or ours.handlers:
        return
    if is_of_apps and (is_asked or root.level == logging.WARNING):
        root.setLevel(level)
        # It tells of each step that it takes in a database of ours.
        if logging.getLogger("alembic").level == logging.NOTSET:
            logging.getLogger("alembic").setLevel(max(level, logging.WARNING))
    redactor = Redactor(_secrets(invocation, settings))
    handler = handler or StderrHandler()
    handler.setFormatter(JsonLines(redactor) if settings.log_format == JSON else TextLines(redactor))
    handler.addFilter(JobLogFilter())
    handler.addFilter(_is_ours_to_write)
    root.addHandler(handler)


def _secrets(invocation: Invocation, settings: Settings) -> list[str]:
    """The passwords of the configured databases, wherever a line may have them."""
    urls = [url for url in (invocation.db_url, settings.db_url, settings.direct_db_url) if url]
    if not urls:
        return []
    from queue_workflows.db.connections.dsn import parse_dsn, secrets_of

    found: list[str] = []
    for url in urls:
        # What is wrong with it is said where it is used.
        with suppress(ConfigurationError):
            found += secrets_of(parse_dsn(url))
    return found


def _is_ours_to_write(record: logging.LogRecord) -> bool:
    """Whether the host app has given no handler to this logger, which writes the line already."""
    logger: logging.Logger | None = logging.getLogger(record.name)
    while logger is not None and logger.parent is not None:
        if any(not isinstance(handler, logging.NullHandler) for handler in logger.handlers):
            return False
        logger = logger.parent
    return True
