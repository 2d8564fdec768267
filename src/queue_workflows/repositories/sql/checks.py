"""What may go into a column, checked before any statement runs; `payload` checks the JSON."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from queue_workflows.errors import PayloadError
from queue_workflows.models import rules
from queue_workflows.payload import MAX_BYTES, MAX_DEPTH, YEARS, check_payload, is_storable

NAME_BYTES: Final = rules.NAME_BYTES
KEY_BYTES: Final = rules.KEY_BYTES
TEXT_BYTES: Final = rules.TEXT_BYTES
LONGEST_S: Final = rules.LONGEST_S
SMALLINT_MAX: Final = 32_767
INT_MAX: Final = 2_147_483_647

T = TypeVar("T")
Row: TypeAlias = tuple[Any, ...]


class PayloadLimits(NamedTuple):
    """How large and deep a JSON payload may be; the public face fills it from the settings."""

    max_bytes: int = MAX_BYTES
    max_depth: int = MAX_DEPTH

    def json(self, value: Any) -> str:
        """The JSON text to send."""
        return check_payload(value, max_bytes=self.max_bytes, max_depth=self.max_depth)

    def json_object(self, field: str, value: dict[str, Any] | None) -> str:
        """The JSON text of a dict; None is an empty one."""
        if isinstance(value, dict):
            return check_payload(value, max_bytes=self.max_bytes, max_depth=self.max_depth)
        if value is None:
            return "{}"
        raise PayloadError(f"{field} must be a dict, not {type(value).__name__}", path=field)


def text(field: str, value: str, *, max_bytes: int = NAME_BYTES) -> str:
    """Text that Postgres can store, and index where it is a name or key."""
    if not isinstance(value, str):
        raise PayloadError(f"{field} must be a string, not {type(value).__name__}", path=field)
    if not value:
        raise PayloadError(f"{field} is empty", path=field, advice="give a text, or None where there is none")
    if "\x00" in value:
        advice = "Postgres cannot store it: remove it"
        raise PayloadError(f"{field}: NUL (\\u0000)", path=field, advice=advice)
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise PayloadError(
            f"{field}: a lone surrogate is no character",
            path=field,
            advice="decode with errors='replace' instead of 'surrogateescape'",
        ) from None
    if size > max_bytes:
        raise PayloadError(
            f"{field} has {size:,} bytes, more than {max_bytes:,}",
            path=field,
            advice="use a hash of it" if max_bytes <= KEY_BYTES else "shorten it",
        )
    return value


def text_or_none(field: str, value: str | None, *, max_bytes: int = NAME_BYTES) -> str | None:
    """Optional text; None stays None, an empty one is refused as the mistake that it is."""
    return None if value is None else text(field, value, max_bytes=max_bytes)


def readable(field: str, value: str) -> str:
    """A name that people can tell from another, and that breaks no line of a log."""
    if not text(field, value).isprintable() or value != value.strip():
        raise PayloadError(
            f"{field} {value!r:.80} has blanks around it or characters that cannot be seen", path=field
        )
    return value


def whole(field: str, value: int, at_least: int, at_most: int) -> int:
    """A whole number in its range."""
    if isinstance(value, bool) or not isinstance(value, int) or not at_least <= value <= at_most:
        raise PayloadError(
            f"{field} must be a whole number from {at_least} to {at_most}, not {value!r:.80}", path=field
        )
    return value


def flag(field: str, value: bool) -> bool:
    """True or false, and nothing that would pass for one."""
    if not isinstance(value, bool):
        raise PayloadError(f"{field} must be True or False, not {value!r:.80}", path=field)
    return value


def once(max_attempts: int | None) -> int:
    """How often a job is tried that begins at most once."""
    if max_attempts not in (None, 1):
        raise PayloadError(
            f"at_most_once and max_attempts={max_attempts!r:.80} contradict each other",
            path="max_attempts",
            advice="leave max_attempts out: what begins at most once is tried once",
        )
    return 1


def seconds_or_none(field: str, value: float | None, *, zero: bool = False) -> float | None:
    """An optional length of time."""
    if value is None:
        return None
    # Not by what it is as a float, which an int may be too large for; NaN is between nothing.
    sound = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= LONGEST_S
    if not sound or (value == 0 and not zero):
        raise PayloadError(f"{field} must be a number of seconds, not {value!r:.80}", path=field)
    return float(value)


def seconds(field: str, value: float) -> float:
    """A length of time, more than none."""
    checked = seconds_or_none(field, value)
    if checked is None:
        raise PayloadError(f"{field} must be a number of seconds, not None", path=field)
    return checked


def moment_or_none(field: str, value: datetime | None) -> datetime | None:
    """An optional point in time, which a naive datetime is not."""
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise PayloadError(f"{field} must be a datetime, not {type(value).__name__}", path=field)
    if value.utcoffset() is None:
        raise PayloadError(
            f"{field} {value.isoformat()} has no time zone",
            path=field,
            advice="use an aware datetime, as in datetime.now(UTC)",
        )
    return value


def stored_moment_or_none(field: str, value: datetime | None) -> datetime | None:
    """An optional point in time that goes into a row, and can be read from it in every time zone."""
    moment = moment_or_none(field, value)
    if moment is not None and not is_storable(moment):
        raise PayloadError(
            f"{field} {moment.isoformat()} is beyond the calendar",
            path=field,
            advice=f"use a year from {YEARS[0]} to {YEARS[1]}, or leave it out",
        )
    return moment


def delay_or_none(field: str, value: timedelta | float | None) -> float | None:
    """An optional delay from now, in seconds."""
    return seconds_or_none(field, value.total_seconds() if isinstance(value, timedelta) else value, zero=True)


def due(run_at: datetime | None, delay: timedelta | float | None) -> tuple[datetime | None, float | None]:
    """When a job becomes claimable: at a point in time, or some seconds from now."""
    if run_at is not None and delay is not None:
        raise PayloadError("both run_at and delay are given", path="delay", advice="give one of them")
    return stored_moment_or_none("run_at", run_at), delay_or_none("delay", delay)


# Keys that one job holds at a time, whatever limits were set.
EXCLUSIVE: Final = "exclusive:"


# What a host lock's name begins with where another host may take the job while it is held.
ELSEWHERE: Final = "elsewhere:"


def host_lock(field: str, value: str) -> str:
    """What a job's lock is called, its policy before it."""
    name = text(field, value).removeprefix(ELSEWHERE)
    if not name or name.startswith(ELSEWHERE):
        advice = "write its name behind one `elsewhere:`, as in `elsewhere:scanner`"
        raise PayloadError(f"{field} {value!r:.80} names no lock", path=field, advice=advice)
    readable(field, name)
    return value


def exclusive_key(name: str | None, limit_key: str | None) -> str | None:
    """The one key that a job takes a slot of: the one it was given, or that of what it holds alone."""
    if name is None:
        return limit_key
    if limit_key is not None:
        raise PayloadError(
            "both exclusive and limit_key are given, and a job takes a slot of one key",
            path="exclusive",
            advice="take the other one in its body, by ctx.limit",
        )
    if "*" in readable("exclusive", name):
        raise PayloadError(f"exclusive {name!r:.80} contains `*`", path="exclusive", advice="name one thing")
    return EXCLUSIVE + name


def limit_key(key: str) -> str:
    """The key of a limit; `*` is for the patterns that limits are set by."""
    if "*" in text("limit_key", key):
        raise PayloadError(f"limit_key {key!r:.80} contains `*`", path="limit_key", advice="name one key")
    return text("limit_key", key)


def limit_key_or_none(key: str | None) -> str | None:
    """An optional key of a limit."""
    return None if key is None else limit_key(key)


def key_pattern(field: str, pattern: str) -> str:
    """A key, or the beginning of keys and a `*`: what limits are set by."""
    if "*" in text(field, pattern)[:-1]:
        raise PayloadError(
            f"{field} {pattern!r:.80} has a `*` before its end",
            path=field,
            advice="a pattern is a beginning, as in `host:*`",
        )
    return pattern


def each(field: str, items: Iterable[T], checked: Callable[[T], Row]) -> list[Row]:
    """All items as rows to send, or `PayloadError` that says which one is refused."""
    rows = []
    for number, item in enumerate(items):
        try:
            rows.append(checked(item))
        except PayloadError as refused:
            raise in_place(refused, field, number) from None
    return rows


def in_place(refused: PayloadError, field: str, number: int) -> PayloadError:
    """What is said of one of many."""
    place = f"{field}[{number}]"
    return PayloadError(f"{place}: {refused.message}", path=f"{place}.{refused.path}", advice=refused.advice)


def are_sound_texts(values: Collection[str], most_bytes: int) -> bool:
    """Whether `text` would take each of them, found out for all at once; false may be wrong."""
    joined = "".join(values)
    try:
        joined.encode()
    except UnicodeEncodeError:
        return False
    return "\x00" not in joined and "" not in values and max(map(len, values)) * 4 <= most_bytes


def words_or_none(field: str, value: str | Iterable[str] | None, allowed: type[StrEnum]) -> list[str] | None:
    """One word of an enumeration or several, to filter by; a misspelt one would silently find nothing."""
    if value is None:
        return None
    return [word(field, each, allowed) for each in ([value] if isinstance(value, str) else value)]


def word(field: str, value: str, allowed: type[StrEnum]) -> str:
    """One word of an enumeration."""
    try:
        return allowed(value).value
    except ValueError:
        raise PayloadError(f"{field} {value!r:.80} is none of {', '.join(allowed)}", path=field) from None
