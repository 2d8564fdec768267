"""What tasks write down outside the database: one short line for each begin, sign of life and end."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Any, NamedTuple

VARIABLE = "CHAOS_LEDGER"
_path = os.environ.get(VARIABLE, "")


def settle() -> None:
    """Take the path of the environment again: a process that was forked has another one now."""
    global _path  # noqa: PLW0603 - tasks change their environment, and the ledger stays where it was
    _path = os.environ[VARIABLE]


class Line(NamedTuple):
    """`what` is `B` for a begin, `H` for a sign of life, `E` for an end."""

    what: str
    family: str
    job: int
    attempt: int
    generation: int
    pid: int
    at_ns: int
    extra: str


def write(what: str, ctx: Any, extra: str = "") -> None:
    """Add a line; opened each time, because a task may have closed every descriptor."""
    words = (
        what,
        ctx.family.split()[0],
        ctx.id,
        ctx.attempt,
        ctx.generation,
        os.getpid(),
        time.monotonic_ns(),
        extra,
    )
    text = " ".join(map(str, words)).strip() + "\n"
    try:
        number = os.open(_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError:
        # A task took away the right or the descriptors to do so; what was seen before counts.
        return
    try:
        # Nor may it write, where a task allowed files of no size.
        with suppress(OSError):
            os.write(number, text.encode())
    finally:
        os.close(number)


def read(path: str) -> list[Line]:
    """All whole lines."""
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        lines = file.read().split("\n")[:-1]
    found = []
    for line in lines:
        words = line.split(" ", 7)
        found.append(Line(words[0], words[1], *map(int, words[2:7]), words[7] if len(words) > 7 else ""))  # type: ignore[arg-type]
    return found


def work(ctx: Any, seconds: float) -> None:
    """Take so long, and say every now and then that it goes on."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, 0.03))
        write("H", ctx)
