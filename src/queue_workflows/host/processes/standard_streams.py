"""The standard streams of a process in which many jobs run: one that closes them closes them for no other.

What is printed is seen as soon as its line ends: a pipe would else keep it until it has 8 kB, or the end.
What a pipe's reader is not there for any more is dropped: to print is no failure of a job or a hook.
"""

from __future__ import annotations

import io
import sys
from typing import Any, TextIO


class _WhileRead(io.FileIO):
    def write(self, data: Any, /) -> int:
        """Below the buffer, which would else keep what was not taken and fail with it each time."""
        try:
            return super().write(data)
        except BrokenPipeError:
            return memoryview(data).nbytes


class _Shared(io.BufferedWriter):
    def close(self) -> None:
        """What other jobs print is still to be written."""
        self.flush()


def share_standard_streams() -> None:
    """Let `sys.stdout` and `sys.stderr` be closed in vain; what stands there instead stays as it is."""
    sys.stdout = _shared(sys.stdout, sys.__stdout__)
    sys.stderr = _shared(sys.stderr, sys.__stderr__)


def _shared(stream: TextIO, of_the_process: TextIO | None) -> TextIO:
    if stream is not of_the_process or not isinstance(stream, io.TextIOWrapper) or stream.closed:
        return stream
    stream.flush()
    return io.TextIOWrapper(
        _Shared(_WhileRead(stream.fileno(), "w", closefd=False)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=True,
        write_through=stream.write_through,
    )
