"""Token buckets and their rules, with what is in them now: what `qwf limits list --rates` shows."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import psycopg

from queue_workflows.repositories.limits.adapted import AdaptedRepository
from queue_workflows.repositories.limits.rates import DeclaredRate, RateRepository
from queue_workflows.repositories.sql.table import LONGEST_PAGE

if TYPE_CHECKING:
    from queue_workflows.models import RateLimit


@dataclass(frozen=True, slots=True)
class RateList:
    """Rules and buckets as of `now` of the database's clock, and which of the asked keys have none.

    `declared` is what apps declare of them; a rule that nobody has used yet has no bucket, and is here as one
    that is full. `lowered` are the rates that have adapted to less, per second.
    """

    rates: Sequence[RateLimit]
    missing: Sequence[str]
    now: datetime
    declared: Mapping[str, DeclaredRate] = field(default_factory=dict)
    lowered: Mapping[str, float] = field(default_factory=dict)

    def said_by(self, row: RateLimit) -> str | None:
        """From where the rate is: an operator's name, or the apps that declare it."""
        one = self.declared.get(row.rate_key)
        if row.updated_by is not None or one is None:
            return row.updated_by
        return f"declared by {', '.join(one.owners)}"

    def said_of_it(self, row: RateLimit) -> str | None:
        """Why it is so."""
        one = self.declared.get(row.rate_key)
        parts = [row.reason] if row.reason else []
        if one is not None and one.is_disputed:
            parts.append("they differ, the stricter holds")
        if row.rate_key in self.lowered:
            parts.append("adapts")
        return "; ".join(parts) or None

    def per_s(self, row: RateLimit) -> float:
        """The rate that holds at this moment."""
        one = self.declared.get(row.rate_key)
        most = row.tokens_per_s if one is None or row.updated_by is not None else one.per_s
        return min(most, self.lowered.get(row.rate_key, most))


def read_rates(
    connection: psycopg.Connection[Any], keys: Sequence[str] = (), *, limit: int = 100, after: str = ""
) -> RateList:
    """These keys, or the next that have a rule or a bucket."""
    repository = RateRepository(connection)
    if keys:
        found = [row for row in map(repository.fetch, keys) if row is not None]
    else:
        found = repository.list(limit=limit, after=after or None)
    declared = {one.key: one for one in repository.declared(keys, limit=limit, after=after)}
    unused = set(declared) - {row.rate_key for row in found}
    if unused:
        found = sorted([*found, *(_unused(declared[key]) for key in unused)], key=lambda row: row.rate_key)
        found = found if keys else found[:limit]
    missing = sorted(set(keys) - {row.rate_key for row in found})
    lowered = {
        one.key: one.value
        for one in (AdaptedRepository(connection).lowered(limit=LONGEST_PAGE) if declared else ())
        if one.kind == "rate" and one.value is not None
    }
    return RateList(found, missing, repository.now(), declared, lowered)


def _unused(declared: DeclaredRate) -> RateLimit:
    """The bucket that the first take makes."""
    from queue_workflows.models import RateLimit

    return RateLimit(
        rate_key=declared.key,
        tokens_per_s=declared.per_s,
        burst=declared.burst,
        tokens=declared.burst,
        refilled_at=declared.now,
        blocked_until=None,
        updated_by=None,
        reason=None,
    )


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
    return [_json_of_rate(seen, row, seen.now) for row in seen.rates]


def _json_of_rate(seen: RateList, row: RateLimit, now: datetime) -> dict[str, Any]:
    declared = seen.declared.get(row.rate_key)
    is_pattern = row.rate_key.endswith("*")
    return {
        "key": row.rate_key,
        "per_s": seen.per_s(row),
        "burst": row.burst,
        "tokens": None if is_pattern else round(tokens(row, now), 3),
        "blocked_s": round(blocked_s(row, now), 3),
        "updated_by": row.updated_by,
        "updated_at": row.updated_at.astimezone(UTC).isoformat() if row.updated_by else None,
        "reason": row.reason,
        "declared_by": [] if declared is None else declared.owners,
        "declared_per_s": None if declared is None else declared.per_s,
    }


def command_of(keys: Sequence[str] = (), *, limit: int = 100, after: str = "") -> str:
    """The command that shows these rates."""
    words = ["qwf", "limits", "list", "--rates", *keys]
    words += ["--limit", str(limit)] if limit != 100 else []
    return shlex.join([*words, "--after", after] if after else words)
