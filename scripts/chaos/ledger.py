"""What tasks write down outside the database: one short line for each begin, sign of life and end."""

from __future__ import annotations

import os
from contextlib import suppress
from select import select

# As they were before any task replaced them.
from time import monotonic, monotonic_ns
from typing import Any, NamedTuple

VARIABLE, DSN = "CHAOS_LEDGER", "CHAOS_DSN"
_path, _dsn = os.environ.get(VARIABLE, ""), os.environ.get(DSN, "")


def settle() -> None:
    """Take the path and the DSN of the environment again: a process that was forked has others now."""
    global _path, _dsn
    _path, _dsn = os.environ[VARIABLE], os.environ[DSN]


def sleep(seconds: float) -> None:
    """Sleep for a span, not until a time: libfaketime does not know how far off that is, and refuses it."""
    select([], [], [], max(0.0, seconds))


def dsn() -> str:
    """Of the history's database, as a host app knows it."""
    return _dsn


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
        monotonic_ns(),
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
    until = monotonic() + seconds
    while (left := until - monotonic()) > 0:
        sleep(min(left, 0.03))
        write("H", ctx)
