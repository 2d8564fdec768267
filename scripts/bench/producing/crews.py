"""Processes that enqueue together, round after round, and are started once."""

from __future__ import annotations

import select
import subprocess
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Final, Self

_PATIENCE_S: Final = 300.0


class Crew:
    """So many processes of one command, which take orders as `bench.producing.orders` has it."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], *, size: int) -> None:
        self._members = [
            subprocess.Popen(
                command, env=dict(environment), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for _ in range(size)
        ]

    def rate(self, form: str, each: int) -> float:
        """Jobs a second, from when the first began until the last was done."""
        began_ns, ended_ns = self.moments(form, each)
        return each * len(self._members) / (ended_ns - began_ns) * 1e9

    def moments(self, form: str, each: int) -> tuple[int, int]:
        """When the first began and the last was done, on the clock of this machine."""
        for member in self._members:
            assert member.stdin is not None
            member.stdin.write(f"{form} {each}\n")
            member.stdin.flush()
        moments = [[int(moment) for moment in _line(member).split()] for member in self._members]
        return min(began for began, _ in moments), max(ended for _, ended in moments)

    def __enter__(self) -> Self:
        try:
            for member in self._members:
                _line(member)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        for member in self._members:
            member.kill()
            member.communicate()


def _line(member: subprocess.Popen[str]) -> str:
    assert member.stdout is not None
    if not select.select([member.stdout], [], [], _PATIENCE_S)[0] or not (line := member.stdout.readline()):
        raise SystemExit("a producer failed")
    return line
