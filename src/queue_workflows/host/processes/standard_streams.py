"""The standard streams of a process in which many jobs run: one that closes them closes them for no other.

What is printed is seen as soon as its line ends: a pipe would else keep it until it has 8 kB, or the end.
"""

from __future__ import annotations

import io
import sys
from typing import TextIO


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
        _Shared(io.FileIO(stream.fileno(), "w", closefd=False)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=True,
        write_through=stream.write_through,
    )
