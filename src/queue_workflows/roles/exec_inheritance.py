"""What an exec hands on, and a job may have changed: put back as it was when the process began.

The mark that a sweep knows our processes by stands in the environment too, so it is noted here besides.
"""

from __future__ import annotations

import math
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
    """The working directory, the environment, the file mode mask and the limits of resources.

    They are those of the moment when they were taken last. `mark` is what the processes of our jobs bear.
    """

    def __init__(self) -> None:
        self.mark: str | None = None
        self.take()

    def take(self) -> None:
        """Note what an exec would inherit at this moment."""
        self._directory: str | None = None
        with suppress(OSError):
            self._directory = os.getcwd()
        self._environment = dict(os.environ)
        self._limits: dict[int, tuple[int, int]] = {}
        for number in _LIMITS:
            with suppress(OSError, ValueError):
                self._limits[number] = resource.getrlimit(number)
        self._mask = os.umask(0o077)
        os.umask(self._mask)

    def lift(self, number: int) -> bool:
        """Raise a limit again that is lower than what was noted; False if it was lowered for good."""
        noted, _ = self._limits.get(number, (0, 0))
        soft, hard = resource.getrlimit(number)
        if _reach(soft) >= _reach(noted):
            return True
        try:
            resource.setrlimit(number, (noted, hard))
        except (OSError, ValueError):
            return False
        return True

    def restore(self) -> None:
        """Restore what was noted as far as a process may: a limit that was lowered for good stays so."""
        for number, (soft, _) in self._limits.items():
            with suppress(OSError, ValueError):
                _, hard = resource.getrlimit(number)
                resource.setrlimit(number, (soft, hard))
        os.umask(self._mask)
        os.environ.clear()
        os.environ.update(self._environment)
        if self._directory is not None:
            with suppress(OSError):
                os.chdir(self._directory)


def _reach(limit: int) -> float:
    return math.inf if limit == resource.RLIM_INFINITY else limit


# A worker takes it again as it begins.
own: Final = ExecInheritance()
