"""Limits and rates: what holds them, what waits for them."""

from __future__ import annotations

from queue_workflows.views.limits import listing, rates
from queue_workflows.web.page import Look, Shown


def limits(look: Look) -> Shown:
    """The keys that have a cap, a holder or a lane."""
    after, limit = look.word("after"), look.number("limit", 100)
    lines = listing.read_limits(look.conn, limit=limit, after=after)
    return Shown(
        title="Limits",
        template="limits.html",
        command=listing.command_of(limit=limit, after=after),
        data={"lines": lines, "next": lines[-1].key if len(lines) == limit else None, "after": after},
        json=listing.json_of(lines),
    )


def one_limit(look: Look) -> Shown:
    """One key: its slots and the jobs that come next."""
    key = look.parts["key"]
    seen = listing.limit(look.conn, key)
    return Shown(
        title=key,
        template="limit.html",
        command=listing.command_of_limit(key),
        data={"seen": seen},
        json=listing.limit_json(seen),
    )


def all_rates(look: Look) -> Shown:
    """The token buckets."""
    after, limit = look.word("after"), look.number("limit", 100)
    seen = rates.read_rates(look.conn, limit=limit, after=after)
    return Shown(
        title="Rates",
        template="rates.html",
        command=rates.command_of(limit=limit, after=after),
        data={
            "seen": seen,
            "lines": look.redaction.document(rates.json_of(seen)),
            "next": seen.rates[-1].rate_key if len(seen.rates) == limit else None,
        },
        json=rates.json_of(seen),
    )
