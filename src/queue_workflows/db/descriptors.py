"""Whether descriptors of this process still stand for what it opened.

A job that closes all descriptors but the first three, as code for daemons does, closes those of its worker.
Their numbers then go to whatever is opened next, such as a file of the job's: to write to one of them would
spoil that file, and two connections that share one socket would read each other's answers.
"""

from __future__ import annotations

import os
from contextlib import suppress


class Descriptors:
    """Some open files of this process, by their numbers."""

    def __init__(self, *numbers: int) -> None:
        self._files = [(number, _file_of(number)) for number in numbers]

    def are_ours(self) -> bool:
        """Whether each number stands for the file that it stood for, and stood for one."""
        return all(file is not None and _file_of(number) == file for number, file in self._files)


def _file_of(number: int) -> tuple[int, int] | None:
    with suppress(OSError, OverflowError):
        seen = os.fstat(number)
        return seen.st_dev, seen.st_ino
    return None
