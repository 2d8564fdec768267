"""What an exec would hand on of a job that has changed it: put back as it was when the process began."""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from typing import Final

_LIMITS: Final = sorted(
    number
    for name, number in vars(resource).items()
    if name.startswith("RLIMIT_") and isinstance(number, int)
)


class ExecInheritance:
    """The working directory, the file mode mask and the limits of resources, as they were when taken last."""

    def __init__(self) -> None:
        self.take()

    def take(self) -> None:
        """Note what an exec would inherit at this moment."""
        self._directory: str | None = None
        with suppress(OSError):
            self._directory = os.getcwd()
        self._limits: dict[int, tuple[int, int]] = {}
        for number in _LIMITS:
            with suppress(OSError, ValueError):
                self._limits[number] = resource.getrlimit(number)
        self._mask = os.umask(0o077)
        os.umask(self._mask)

    def restore(self) -> None:
        """Restore what was noted as far as a process may: a limit that was lowered for good stays so."""
        for number, (soft, _) in self._limits.items():
            with suppress(OSError, ValueError):
                _, hard = resource.getrlimit(number)
                resource.setrlimit(number, (soft, hard))
        os.umask(self._mask)
        if self._directory is not None:
            with suppress(OSError):
                os.chdir(self._directory)


# A worker takes it again as it begins.
own: Final = ExecInheritance()
