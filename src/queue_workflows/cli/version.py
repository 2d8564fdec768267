"""What `qwf --version` prints, and the short way to print it: scripts and prompts ask it often."""

from __future__ import annotations

import os
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Final

_STDOUT: Final = 1


def version_line() -> str:
    """The program's name, and the version of the package that is installed."""
    try:
        return f"qwf {version('queue-workflows')}"
    except PackageNotFoundError:
        return "qwf (not installed)"


def print_and_exit() -> None:
    """Print the version and end this process; return where that cannot be written.

    The whole command line, which takes ten times as long to load, then says what is wrong with the output.
    """
    line = f"{version_line()}\n".encode()
    try:
        written = os.write(_STDOUT, line)
    except OSError:
        return
    if written == len(line):
        sys.exit(0)
