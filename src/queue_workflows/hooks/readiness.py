"""When a background hook is ready for those after it.

    {"file": "session.json", "within_s": 30}      a file that it writes where it works
    {"file": "state", "line": "^ready"}           a line in that file
    {"line": "^listening on "}                    a line that it prints, on either stream
    {"port": "BROWSER_PORT"}                      a port of this machine: a number, or a value

Its plugin's `config.json` says so as `x-ready`, or the directory's `hooks.toml` in `[ready]`, which
counts first. What was there before the hook began counts for nothing: a file has to be another one, or
written again, and a port that is open already is another process's, so that the hook does not begin.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from queue_workflows import clock as time
from queue_workflows.errors import HookError, PluginConfigError
from queue_workflows.hooks.files import open_regular
from queue_workflows.host.directories.below import Beneath, directory_beneath

DEFAULT_WITHIN_S: Final = 60.0
_LONGEST_WITHIN_S: Final = 3_600.0
_SIGNS: Final = ("file", "line", "port")
_FIRST_LOOK_S: Final = 0.02
_LONGEST_LOOK_S: Final = 0.25
_CONNECT_S: Final = 1.0
_CHUNK: Final = 1 << 20
_HOSTS: Final = ("127.0.0.1", "::1")

# Waits so many seconds; whether the hook has ended by then.
Ends: TypeAlias = Callable[[float], bool]


@dataclass(frozen=True, slots=True)
class Readiness:
    """What shows that a hook is ready, and within which time after its start; a `line` is one of the `file`
    where both are said."""

    file: str | None = None
    line: str | None = None
    port: int | str | None = None
    within_s: float = DEFAULT_WITHIN_S


def read_readiness(given: Mapping[str, Any]) -> Readiness:
    """What is said of it, without flaws."""
    return Readiness(**given)


def flaws_of_readiness(given: object) -> Iterator[str]:
    """What is wrong with what is said of it, in words."""
    if not isinstance(given, dict) or given.keys() - {*_SIGNS, "within_s"} or not _are_signs(given.keys()):
        yield 'must have one of "file", "line" and "port", or a "line" of a "file", and may have "within_s"'
        return
    within = given.get("within_s", DEFAULT_WITHIN_S)
    if isinstance(within, bool) or not isinstance(within, int | float) or not 0 < within <= _LONGEST_WITHIN_S:
        yield f"must have as within_s seconds, more than 0 and at most {_LONGEST_WITHIN_S:,.0f}"
    file, line, port = (given.get(sign) for sign in _SIGNS)
    if "file" in given and not _is_name_beneath(file):
        yield "must have as file a path below the hook's directory"
    if "line" in given and not _is_pattern(line):
        yield "must have as line a regular expression"
    if "port" in given and not _is_port(port) and (not isinstance(port, str) or not port.isidentifier()):
        yield "must have as port a number from 1 to 65535, or the name of a value that is one"


def _are_signs(said: Collection[str]) -> bool:
    signs = {sign for sign in _SIGNS if sign in said}
    return len(signs) == 1 or signs == {"file", "line"}


def _is_name_beneath(name: object) -> bool:
    if not isinstance(name, str) or "\0" in name or name in ("", "."):
        return False
    return not Path(name).is_absolute() and ".." not in Path(name).parts


def _is_pattern(pattern: object) -> bool:
    try:
        return isinstance(pattern, str) and bool(pattern) and re.compile(pattern.encode()) is not None
    except re.error:
        return False


def _is_port(port: object) -> bool:
    return isinstance(port, int) and not isinstance(port, bool) and 0 < port < 65_536


class Watch:
    """Looks whether a hook is ready; made before it starts, so that it knows what was there already."""

    def __init__(
        self,
        readiness: Readiness,
        *,
        plugin: str,
        directory: Path,
        printed: tuple[Path, Path],
        beneath: Beneath,
        values: Mapping[str, Any],
    ) -> None:
        self._readiness, self._beneath = readiness, beneath
        self._printed = printed
        self._file = None if readiness.file is None else directory / readiness.file
        self._line = None if readiness.line is None else re.compile(readiness.line.encode())
        self._was = self._stamp()
        self._port = _port_of(readiness.port, values, plugin)
        if readiness.port is not None and self._is_open():
            raise HookError(
                f"plugin {plugin}: port {self._port}, which is to show that its hook is ready, is a taken"
                " port: another process of this machine has it open",
                advice="end that process, or give the plugin another port",
            )
        self._seen: Callable[[], bool] = self._is_open if readiness.port is not None else self._is_written

    @property
    def within_s(self) -> float:
        """How long it may take."""
        return self._readiness.within_s

    def until_ready(self, ends: Ends) -> bool | None:
        """Wait until it is ready; false if it is not in its time, None if it has ended before."""
        until, pause = time.monotonic() + self._readiness.within_s, _FIRST_LOOK_S
        with ExitStack() as held:
            look = self._seen
            if self._line is not None and self._file is None:
                look = held.enter_context(_Lines(self._line, self._printed, self._beneath)).look
            while not look():
                left = until - time.monotonic()
                if left <= 0:
                    return False
                if ends(min(pause, left)):
                    return None
                pause = min(pause * 2, _LONGEST_LOOK_S)
        return True

    def _is_written(self) -> bool:
        now = self._stamp()
        if self._file is None or now is None or now == self._was:
            return False
        if self._line is None:
            return True
        with _Lines(self._line, (self._file,), self._beneath, is_whole=False) as lines:
            return lines.look()

    def _stamp(self) -> tuple[int, int, int] | None:
        if self._file is None:
            return None
        try:
            with directory_beneath(self._file.parent, beneath=self._beneath) as within:
                seen = os.stat(self._file.name, dir_fd=within, follow_symlinks=False)
        except OSError:
            return None
        return seen.st_ino, seen.st_mtime_ns, seen.st_ctime_ns

    def _is_open(self) -> bool:
        for host in _HOSTS:
            with suppress(OSError), socket.create_connection((host, self._port), _CONNECT_S):
                return True
        return False


class _Lines:
    """Lines of some files, read on from where they were read to before; a last one without its end counts
    unless it has to be `is_whole`."""

    def __init__(
        self, pattern: re.Pattern[bytes], printed: Iterable[Path], beneath: Beneath, *, is_whole: bool = True
    ) -> None:
        self._pattern, self._is_whole = pattern, is_whole
        self._files: list[int] = []
        self._rests: dict[int, bytes] = {}
        for path in printed:
            with suppress(OSError), directory_beneath(path.parent, beneath=beneath) as within:
                self._files.append(open_regular(path.name, within=within))

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *_: object) -> None:
        for opened in self._files:
            os.close(opened)

    def look(self) -> bool:
        """Whether one of the lines by now matches."""
        return any(self._finds(opened) for opened in self._files)

    def _finds(self, opened: int) -> bool:
        while data := os.read(opened, _CHUNK):
            # A return ends a line as well; of both together the second ends an empty one.
            *lines, rest = (self._rests.get(opened, b"") + data.replace(b"\r", b"\n")).split(b"\n")
            self._rests[opened] = rest[-_CHUNK:]
            if any(self._pattern.search(line) for line in lines):
                return True
        return not self._is_whole and self._pattern.search(self._rests.get(opened, b"")) is not None


def _port_of(port: int | str | None, values: Mapping[str, Any], plugin: str) -> int:
    if port is None or isinstance(port, int):
        return port or 0
    said = values.get(port)
    number = int(said) if isinstance(said, str) and said.isdecimal() else said
    if not isinstance(number, int) or not _is_port(number):
        raise PluginConfigError(
            plugin,
            f"is {said!r:.60}, and x-ready takes it for a port",
            key=port,
            advice="declare it, with a number from 1 to 65535",
        )
    return number
