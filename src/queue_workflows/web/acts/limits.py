"""Setting and taking back how many jobs hold a key at once, and how fast it may be used."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import psycopg

from queue_workflows.errors import PayloadError
from queue_workflows.repositories.limits.caps import LimitRepository
from queue_workflows.repositories.limits.rates import RateRepository
from queue_workflows.repositories.sql import checks as check
from queue_workflows.settings import Settings
from queue_workflows.settings.declared_limits import per_s_of
from queue_workflows.views.forecast.changes import Changes
from queue_workflows.views.limits.cap_changes import clear_cap, lines_of, said_of_clear, said_of_set, set_cap
from queue_workflows.views.limits.rate_changes import (
    HOW,
    rate_rule,
    said_of_rate,
    set_rate,
)
from queue_workflows.views.limits.what_if import read_preview
from queue_workflows.web.acts.act import Act, Asked, By, Done, Field, Line, Preview
from queue_workflows.web.acts.counting import drains
from queue_workflows.web.page import part

Connection = psycopg.Connection[Any]
_MOST_DIGITS: Final = 10


def key_target(name: str) -> str:
    """A key, or a beginning with a star."""
    return check.key_pattern("target", name)


def _said(key: str, said: str, *, left: int = 0) -> Done:
    return Done(Counter({said: 1}), (Line(key, said, _page(key)),), left)


def _page(key: str) -> str:
    return f"/limits/{part(key)}"


def _cap_of(typed: str) -> int | None:
    is_number = typed.isascii() and typed.isdigit() and len(typed) <= _MOST_DIGITS
    return int(typed) if is_number and int(typed) <= check.INT_MAX else None


def _preview_cap(connection: Connection, asked: Asked, settings: Settings) -> Preview:
    key, typed = asked.targets[0], asked.word("cap")
    cap, flaw = _cap_of(typed), ""
    notes: tuple[str, ...] = ()
    if typed and cap is None:
        flaw = f"{typed!r:.60} is no number of jobs"
    elif cap is not None:
        try:
            notes = tuple(lines_of(read_preview(connection, key, cap)))
            notes += tuple(drains(connection, Changes(caps={key: cap}), settings))
        except PayloadError as refused:
            flaw = str(refused)
    hint = "0 closes it. What holds a slot keeps it, also where the cap is lowered."
    return Preview(
        headline=f"Set the cap of {key}" + (f" to {cap:,}" if cap is not None else ""),
        notes=notes,
        command=shlex.join(["qwf", "limits", "set", key, typed or "CAP"]),
        fields=(Field("cap", "At most so many at once", "number", hint, typed, (), True, flaw),),
        back=_page(key),
    )


def _set_cap(connection: Connection, asked: Asked, by: By, _settings: Settings) -> Iterator[Done]:
    cap = _cap_of(asked.word("cap"))
    if cap is None:
        raise PayloadError("a cap is a number of jobs", path="cap")
    change = set_cap(connection, asked.targets[0], cap, actor=by.actor, reason=by.reason)
    yield _said(change.key, said_of_set(change))


def _preview_clear(connection: Connection, asked: Asked, _settings: Settings) -> Preview:
    key = asked.targets[0]
    now = LimitRepository(connection).fetch(key)
    said = "nobody has set a limit for it" if now is None else f"at most {now.max_slots} at once"
    return Preview(
        headline=f"Take the cap of {key} back",
        count=0 if now is None else 1,
        lines=(Line(key, said, _page(key)),),
        notes=("Then what code declares of it holds, else the longest pattern that it matches, or none.",),
        command=shlex.join(["qwf", "limits", "clear", key]),
        back=_page(key),
    )


def _clear(connection: Connection, asked: Asked, by: By, _settings: Settings) -> Iterator[Done]:
    change = clear_cap(connection, asked.targets[0], actor=by.actor, reason=by.reason)
    yield _said(change.key, said_of_clear(change), left=int(change.was is None))


def _burst_of(typed: str) -> float | None:
    try:
        return float(typed) if len(typed) <= 30 and 0 < float(typed) < float("inf") else None
    except ValueError:
        return None


def _preview_rate(connection: Connection, asked: Asked, _settings: Settings) -> Preview:
    key, rate, burst = asked.targets[0], asked.word("rate"), asked.word("burst")
    before = RateRepository(connection).fetch(key)
    is_now = "no rate of its own" if before is None else rate_rule(before.tokens_per_s, before.burst)
    flaw = f"{rate!r:.60} is no rate: {HOW}" if rate and per_s_of(rate) is None else ""
    burst_flaw = f"{burst!r:.60} is no number" if burst and _burst_of(burst) is None else ""
    options = ["--rate", rate or "RATE", *(["--burst", burst] if burst else [])]
    return Preview(
        headline=f"Set the rate of {key}" + (f" to {rate}" if rate and not flaw else ""),
        lines=(Line(key, f"now: {is_now}", "/rates"),),
        command=shlex.join(["qwf", "limits", "set", key, *options]),
        fields=(
            Field("rate", "Used so often", "text", f"{HOW}.", rate, (), True, flaw),
            Field(
                "burst",
                "So often at once",
                "number",
                "What comes in a second, if it is left out.",
                burst,
                flaw=burst_flaw,
            ),
        ),
        back="/rates",
    )


def _set_rate(connection: Connection, asked: Asked, by: By, _settings: Settings) -> Iterator[Done]:
    key, per_s = asked.targets[0], per_s_of(asked.word("rate"))
    if per_s is None:
        raise PayloadError(f"this is no rate: {HOW}", path="rate")
    burst = _burst_of(asked.word("burst"))
    told = set_rate(connection, key, per_s, burst, actor=by.actor, reason=by.reason)
    yield _said(key, said_of_rate(told))


def _preview_clear_rate(connection: Connection, asked: Asked, _settings: Settings) -> Preview:
    key = asked.targets[0]
    now = RateRepository(connection).fetch(key)
    said = "it has no rate" if now is None else rate_rule(now.tokens_per_s, now.burst)
    return Preview(
        headline=f"Take the rate of {key} back",
        count=0 if now is None else 1,
        lines=(Line(key, said, "/rates"),),
        command=shlex.join(["qwf", "limits", "clear", key, "--rate"]),
        back="/rates",
    )


def _clear_rate(connection: Connection, asked: Asked, by: By, _settings: Settings) -> Iterator[Done]:
    key = asked.targets[0]
    gone = RateRepository(connection).clear(key, actor=by.actor, reason=by.reason)
    said = "it has no rate" if gone is None else "no rate of its own any more"
    yield _said(key, said, left=int(gone is None))


LIMIT_ACTS: Final = (
    Act("limits.set", "Set", key_target, _preview_cap, _set_cap, takes_many=False),
    Act("limits.clear", "Take back", key_target, _preview_clear, _clear, takes_many=False),
    Act("rates.set", "Set", key_target, _preview_rate, _set_rate, takes_many=False),
    Act("rates.clear", "Take back", key_target, _preview_clear_rate, _clear_rate, takes_many=False),
)
