"""How a record of the log is written: as a line to read, or as a line of JSON; secrets masked in both."""

from __future__ import annotations

import json
import logging
import math
import re
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from queue_workflows.drawing.terminal import Terminal
from queue_workflows.engine.execution.redaction import MASK, Redactor

# What ends a job has its facts in its words.
JOBS: Final = "queue_workflows.jobs"
_OURS: Final = "queue_workflows"
_OF_ANY_RECORD: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
_BOUND: Final = {"job": "job_id", "attempt": "attempt", "run": "run_id", "trace": "trace_id"}
_LINE: Final = re.compile(r"(?P<time>\S+Z) (?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) (?P<rest>\d+ )")
_HEADS: Final = (
    re.compile(r"\S+Z (DEBUG|INFO|WARNING|ERROR|CRITICAL) \d+ ([^:]*): "),
    re.compile(r'\{"time": "[^"]*", "level": "([A-Z]+)", "logger": "([^"]*)"'),
)
EVERYDAY: Final = frozenset({"DEBUG", "INFO"})
NO_ERROR: Final = EVERYDAY | {"WARNING"}
_STYLES: Final[Mapping[str, Mapping[str, Any]]] = {
    "DEBUG": {"dim": True},
    "INFO": {"fg": "green"},
    "WARNING": {"fg": "yellow"},
    "ERROR": {"fg": "red", "bold": True},
    "CRITICAL": {"fg": "red", "bold": True, "reverse": True},
}
# What a job's error says must not steer the terminal.
_SHOWN: Final = {code: "?" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


class TextLines(logging.Formatter):
    """`2026-05-04T12:30:07Z INFO 4711 shop.pages: read it [job 12 attempt 1]`, and below it a traceback."""

    def __init__(self, redactor: Redactor) -> None:
        super().__init__("%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%SZ")
        self.converter = time.gmtime
        self._redactor = redactor

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The first line, with the job that wrote it."""
        line = super().formatMessage(record)
        if record.name == JOBS:
            return line
        known = {word: record.__dict__.get(name) for word, name in _BOUND.items()}
        job = " ".join(f"{word} {value}" for word, value in known.items() if value is not None)
        return f"{line} [{job}]" if job else line

    def format(self, record: logging.LogRecord) -> str:
        """The whole of it."""
        line = self._redactor.mask(super().format(record))
        return line.translate(_SHOWN) if record.name.startswith(_OURS) else line


class JsonLines(logging.Formatter):
    """One object a line: `time`, `level`, `logger`, `pid`, `message`, and `exception` if there is one.

    Between these are the other facts of the record, its `extra` and its job's, by their names.
    """

    def __init__(self, redactor: Redactor) -> None:
        super().__init__()
        self._redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        """The object on one line."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        told: dict[str, Any] = {
            "time": f"{moment}.{int(record.created % 1 * 1000):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "pid": record.process,
            "message": self._redactor.mask(record.getMessage()),
        }
        for name, value in record.__dict__.items():
            if name not in _OF_ANY_RECORD and not name.startswith("_"):
                told.setdefault(name, self._plain(name, value))
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        if record.exc_text:
            told["exception"] = self._redactor.mask(record.exc_text)
        if record.stack_info:
            told["stack"] = self._redactor.mask(record.stack_info)
        return json.dumps(told, ensure_ascii=False, allow_nan=False, default=str)

    def _plain(self, name: str, value: Any) -> Any:
        """A value that JSON has; text without secrets, which the name may tell as well."""
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, Mapping):
            return {str(key): self._plain(str(key), each) for key, each in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [self._plain(name, each) for each in value]
        if _names_a_secret(name):
            return MASK
        is_number = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
        return value if is_number else self._redactor.mask(str(value))


@lru_cache(maxsize=1024)
def _names_a_secret(name: str) -> bool:
    """Whether what has this name is masked as a whole, where it is known where it ends."""
    said = f"{name}=x1234567890"
    return Redactor().mask(said) != said


def head_of(line: str) -> tuple[str, str] | None:
    """The level and the logger of a line that a process of ours wrote; None for what is none of its log."""
    found = next((found for head in _HEADS if (found := head.match(line))), None)
    return None if found is None else (found[1], found[2])


def level_of(line: str) -> str | None:
    """How grave a line is that a process of ours wrote; None for what is no line of its log."""
    head = head_of(line)
    return None if head is None else head[0]


def painted(line: str, terminal: Terminal) -> str:
    """A line of text with its level in colour, where the terminal shows any."""
    if not terminal.colour or (found := _LINE.match(line)) is None:
        return line
    level = terminal.paint(found["level"], **_STYLES[found["level"]])
    return f"{terminal.paint(found['time'], dim=True)} {level} {found['rest']}{line[found.end() :]}"
