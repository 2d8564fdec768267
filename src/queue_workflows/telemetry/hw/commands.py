"""Asking a vendor's tool: never for longer than it may take, and never a second time while it hangs.

A driver in trouble keeps its tool in the kernel, where no signal reaches it. Such a process is killed, left
behind, and waited for without waiting; until it is gone the tool is not started again, lest they pile up.
"""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, Final

_MOST_BYTES: Final = 8 * 2**20
_SHOWN: Final = 160


class ToolAbsent(Exception):
    """There is no such program on the PATH."""


class ToolFailed(Exception):
    """It did not answer, or nothing that could be understood; the text says so in one line."""


class ToolSilent(ToolFailed):
    """It did not answer at all, so nothing is known of what it would have said."""


class Asker:
    """Runs tools for one thread; `timeout_s` is what each question may take."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._stuck: dict[str, subprocess.Popen[bytes]] = {}
        self._asked: subprocess.Popen[bytes] | None = None

    def cancel(self) -> None:
        """From another thread: end the tool that is being asked, as nobody will hear its answer."""
        process = self._asked
        if process is not None and process.poll() is None:
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)

    def ask(self, tool: str, *arguments: str) -> tuple[int, str]:
        """The status that it ended with, and what it said on stdout, or else on stderr."""
        path = shutil.which(tool)
        if path is None:
            raise ToolAbsent(tool)
        stuck = self._stuck.get(tool)
        if stuck is not None:
            if stuck.poll() is None:
                raise ToolSilent(f"{tool} hangs: process {stuck.pid} cannot be ended")
            del self._stuck[tool]
        try:
            process = subprocess.Popen(
                [path, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                env={**os.environ, "LC_ALL": "C"},
            )
        except OSError as exc:
            raise ToolFailed(f"{tool} could not be started: {exc.strerror or exc}") from exc
        return self._heard(tool, process)

    def _heard(self, tool: str, process: subprocess.Popen[bytes]) -> tuple[int, str]:
        until = time.monotonic() + self._timeout_s
        self._asked = process
        try:
            said = _read(*_streams(process), until)
        finally:
            status = self._end(tool, process, until)
            self._asked = None
        if said is None or status is None:
            raise ToolSilent(f"{tool} gave no answer within {self._timeout_s:g} s")
        out, err = (part.decode("utf-8", "replace") for part in said)
        return status, out if out.strip() else err

    def _end(self, tool: str, process: subprocess.Popen[bytes], until: float) -> int | None:
        """Its status; when the question has taken all that it may, it and its children are killed instead."""
        try:
            return process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            pass
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.5)
            return None
        self._stuck[tool] = process
        return None


def _streams(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    if process.stdout is None or process.stderr is None:
        raise ValueError("the process was started without pipes")
    return process.stdout, process.stderr


def _read(out: IO[bytes], err: IO[bytes], until: float) -> tuple[bytes, bytes] | None:
    """All that it writes, to the end of both streams; None when the time is over or it says too much."""
    parts: dict[int, list[bytes]] = {}
    total = 0
    with selectors.DefaultSelector() as selector, out, err:
        for stream in (out, err):
            parts[stream.fileno()] = []
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            left_s = until - time.monotonic()
            if left_s <= 0 or total > _MOST_BYTES:
                return None
            for key, _ in selector.select(left_s):
                chunk = os.read(key.fd, 65_536)
                total += len(chunk)
                parts[key.fd].append(chunk)
                if not chunk:
                    selector.unregister(key.fileobj)
        first, second = parts.values()
        return b"".join(first), b"".join(second)


def shown(text: str) -> str:
    """The first line that says something, for a message."""
    line = next((line for line in text.splitlines() if line.strip()), "nothing")
    clean = "".join(char if char.isprintable() else "?" for char in " ".join(line.split()))
    return clean if len(clean) <= _SHOWN else clean[: _SHOWN - 1] + "…"


def not_understood(tool: str, status: int, text: str) -> ToolFailed:
    """For an answer of another shape, or a refusal in the tool's own words."""
    ended = f" (it ended with {status})" if status else ""
    return ToolFailed(f"{tool} said{ended}: {shown(text)}")


def first_of(values: Sequence[object]) -> object:
    """The first that is there."""
    return next((value for value in values if value not in (None, "N/A")), None)
