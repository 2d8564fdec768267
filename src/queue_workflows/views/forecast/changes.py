"""What an operator would change: workers of a queue, caps of keys, hosts switched off, queues paused."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from queue_workflows.errors import PayloadError
from queue_workflows.repositories.limits.caps import cap_params
from queue_workflows.settings import check_queue_name

MOST_WORKERS: Final = 10_000
_WHOLE: Final = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class Changes:
    """A fleet that differs: so many workers of a queue, caps by key or pattern, what would claim no more."""

    workers: Mapping[str, int] = field(default_factory=dict)
    caps: Mapping[str, int] = field(default_factory=dict)
    off: frozenset[tuple[str, str]] = frozenset()
    paused: frozenset[str] = frozenset()

    @property
    def queues(self) -> list[str]:
        """The queues that these name."""
        return sorted({*self.workers, *(queue for queue, _ in self.off), *self.paused})

    def cap_of(self, key: str) -> int | None:
        """The cap that a key would have, its own or of the longest pattern; None where none is changed."""
        if key in self.caps:
            return self.caps[key]
        patterns = [one for one in self.caps if one.endswith("*") and key.startswith(one.removesuffix("*"))]
        return self.caps[max(patterns, key=len)] if patterns else None


def read_changes(
    *,
    workers: Iterable[str] = (),
    limits: Iterable[str] = (),
    off: Iterable[str] = (),
    paused: Iterable[str] = (),
) -> Changes:
    """Changes as they are written: `fetch=4`, `host:x=8`, `gpu@node3`, `fetch`; or `PayloadError`."""
    counts = _counts("--workers", workers, MOST_WORKERS)
    caps = _counts("--limit", limits, 2**31 - 1)
    for key, cap in caps.items():
        cap_params(key, cap)
    hosts = frozenset(_queue_at_host(one) for one in off)
    for queue in (*counts, *(queue for queue, _ in hosts), *(paused := frozenset(paused))):
        check_queue_name(queue)
    return Changes(counts, caps, hosts, paused)


def _counts(option: str, written: Iterable[str], most: int) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in written:
        name, number = _count(option, one, most)
        if found.setdefault(name, number) != number:
            raise PayloadError(f"{option} says two numbers of {name!r}", path=option)
    return found


def _count(option: str, written: str, most: int) -> tuple[str, int]:
    name, equals, number = written.rpartition("=")
    if not name or not equals or _WHOLE.fullmatch(number) is None or int(number) > most:
        raise PayloadError(
            f"{option} {written!r} is not a name, `=` and a whole number from 0 to {most:,}", path=option
        )
    return name, int(number)


def _queue_at_host(written: str) -> tuple[str, str]:
    queue, at, host = written.partition("@")
    if not queue or not at or not host:
        raise PayloadError(f"--off {written!r} is not a queue, `@` and a host, as in gpu@node3", path="--off")
    return queue, host
