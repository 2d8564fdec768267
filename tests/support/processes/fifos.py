"""FIFOs that tests write to."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import TextIO


def open_for_its_reader(fifo: Path, patience_s: float = 150) -> TextIO:
    """The end to write to, once somebody reads; a plain `open` waits for a reader that may never come."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            end = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
            break
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            assert time.monotonic() < deadline, f"nobody reads {fifo.name}: not within {patience_s} s"
        time.sleep(0.03)
    os.set_blocking(end, True)
    return os.fdopen(end, "w", encoding="utf-8")
