"""Keys and patterns with their caps: the list, and one key with what holds its slots and what waits."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg

from queue_workflows.repositories.limits.caps import LimitRepository
from queue_workflows.repositories.limits.overview import LimitLine, LimitLineRepository
from queue_workflows.repositories.limits.waiting import WaitingForLimit, WaitingRepository

if TYPE_CHECKING:
    from queue_workflows.models import LimitSlot

# Of more holders and waiting jobs than this the first are shown.
MOST_SHOWN: Final = 50


@dataclass(frozen=True, slots=True)
class LimitView:
    """A key as of one moment: its line in the list, the slots that are held, the jobs that come next."""

    line: LimitLine
    slots: Sequence[LimitSlot]
    waiting: Sequence[WaitingForLimit]


def read_limits(
    connection: psycopg.Connection[Any], keys: Sequence[str] = (), *, limit: int = 100, after: str = ""
) -> list[LimitLine]:
    """These keys, whatever there is of them, or the next that have a limit, a holder or a lane."""
    lines = LimitLineRepository(connection)
    return [lines.of(key) for key in keys] if keys else lines.page(limit=limit, after=after)


def json_of(lines: Sequence[LimitLine]) -> list[dict[str, Any]]:
    """What `qwf limits list --json` prints."""
    return [asdict(line) for line in lines]


def command_of(keys: Sequence[str] = (), *, limit: int = 100, after: str = "") -> str:
    """The command that shows this list."""
    words = ["qwf", "limits", "list", *keys]
    words += ["--limit", str(limit)] if limit != 100 else []
    return shlex.join([*words, "--after", after] if after else words)


def limit(connection: psycopg.Connection[Any], key: str) -> LimitView:
    """One key or pattern; a key that nobody uses has no cap, no holder and nothing that waits."""
    line = LimitLineRepository(connection).of(key)
    slots = LimitRepository(connection).slots(key)[:MOST_SHOWN]
    return LimitView(line, slots, WaitingRepository(connection).first(key, limit=MOST_SHOWN))


def limit_json(seen: LimitView) -> dict[str, Any]:
    """What `qwf limits show --json` prints."""
    return asdict(seen.line) | {
        "slots": [
            {
                "slot": one.slot,
                "job": f"{one.job_family}:{one.job_id}",
                "attempt": one.attempt,
                "worker_id": one.claimed_by,
                "since": one.acquired_at,
                "lease_expires_at": one.lease_expires_at,
            }
            for one in seen.slots
        ],
        "next": [
            {
                "job": one.name,
                "title": one.title,
                "queue": one.queue,
                "priority": one.priority,
                "in_lane": one.in_lane,
                "created_at": one.created_at,
            }
            for one in seen.waiting
        ],
    }


def command_of_limit(key: str) -> str:
    """The command that shows one key."""
    return shlex.join(["qwf", "limits", "show", key])
