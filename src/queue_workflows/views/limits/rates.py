"""Token buckets and their rules, with what is in them now: what `qwf limits list --rates` shows."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import psycopg

from queue_workflows.repositories.limits.rates import RateRepository

if TYPE_CHECKING:
    from queue_workflows.models import RateLimit


@dataclass(frozen=True, slots=True)
class RateList:
    """Rules and buckets as of `now` of the database's clock, and which of the asked keys have none."""

    rates: Sequence[RateLimit]
    missing: Sequence[str]
    now: datetime


def read_rates(
    connection: psycopg.Connection[Any], keys: Sequence[str] = (), *, limit: int = 100, after: str = ""
) -> RateList:
    """These keys, or the next that have a rule or a bucket."""
    repository = RateRepository(connection)
    if keys:
        found = [row for row in map(repository.fetch, keys) if row is not None]
    else:
        found = repository.list(limit=limit, after=after or None)
    missing = sorted(set(keys) - {row.rate_key for row in found})
    return RateList(found, missing, repository.now())


def tokens(row: RateLimit, now: datetime) -> float:
    """What is in a bucket; below zero where it gave in advance."""
    since = max(row.refilled_at, row.blocked_until or row.refilled_at)
    gained = row.tokens_per_s * max(0.0, (now - since).total_seconds())
    return min(row.burst, row.tokens + gained)


def blocked_s(row: RateLimit, now: datetime) -> float:
    """How long nobody may take anything."""
    return max(0.0, (row.blocked_until - now).total_seconds()) if row.blocked_until else 0.0


def json_of(seen: RateList) -> list[dict[str, Any]]:
    """What `qwf limits list --rates --json` prints."""
    return [_json_of_rate(row, seen.now) for row in seen.rates]


def _json_of_rate(row: RateLimit, now: datetime) -> dict[str, Any]:
    is_pattern = row.rate_key.endswith("*")
    return {
        "key": row.rate_key,
        "per_s": row.tokens_per_s,
        "burst": row.burst,
        "tokens": None if is_pattern else round(tokens(row, now), 3),
        "blocked_s": round(blocked_s(row, now), 3),
        "updated_by": row.updated_by,
        "updated_at": row.updated_at.astimezone(UTC).isoformat() if row.updated_by else None,
        "reason": row.reason,
    }


def command_of(keys: Sequence[str] = (), *, limit: int = 100, after: str = "") -> str:
    """The command that shows these rates."""
    words = ["qwf", "limits", "list", "--rates", *keys]
    words += ["--limit", str(limit)] if limit != 100 else []
    return shlex.join([*words, "--after", after] if after else words)
