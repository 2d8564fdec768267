"""Limits as a host app declares them, by `configure(limits=…)` or the table `[limits]` of its file.

A cap is a whole number, a rate is a `Rate`, and `Adaptive` says of either how it gives way to a server that
is asked too much. What a file or a variable can say is turned into the same. Begin with `declared_limits`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NoReturn

from queue_workflows.errors import ConfigurationError

UNITS: Final = {"s": 1, "min": 60, "h": 3600, "d": 86_400}
_RATE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(?:/(s|min|h|d))?")
# As the tables have it.
_MOST_SLOTS: Final = 2_147_483_647
_MOST_TOKENS: Final = 1e12
_LONGEST_KEY: Final = 512
_EXCLUSIVE: Final = "exclusive:"
_DOUBLES_S: Final = (0.1, 86_400.0)
HOW: Final = "a cap is 4, a rate Rate(10, per='s') or '10/s', and Adaptive(…) or a table with a floor adapts"


@dataclass(frozen=True, slots=True)
class Rate:
    """So many tokens of a key `per` s, min, h or d, and at most `burst` at once.

    Without `burst` that is what comes in a second, rounded up.
    """

    amount: float
    per: str = "s"
    burst: float | None = None


@dataclass(frozen=True, slots=True)
class Adaptive:
    """A cap or a rate that gives way: `down` times itself when a server says that it is too much.

    It never falls below `floor`, which is in the unit of the limit, and grows back to the limit, doubling
    every `doubles_s` seconds.
    """

    limit: int | Rate
    floor: float = 1
    down: float = 0.7
    doubles_s: float = 60.0


@dataclass(frozen=True, slots=True)
class DeclaredLimit:
    """What is declared of one key, in the words of the table `limit_declarations`."""

    key_pattern: str
    max_slots: int | None = None
    per_s: float | None = None
    burst: float | None = None
    floor_slots: int | None = None
    floor_per_s: float | None = None
    down: float | None = None
    doubles_s: float | None = None

    @property
    def words(self) -> dict[str, Any]:
        """The columns with their values."""
        return asdict(self)


def per_s_of(text: str) -> float | None:
    """Tokens per second, from `5/s`, `100/min`, `1000/h`, `10000/d`; None for what is no rate."""
    found = _RATE.fullmatch(text)
    if found is None or not float(found[1]):
        return None
    return float(found[1]) / UNITS[found[2] or "s"]


def declared_limits(given: Mapping[Any, Any]) -> dict[str, DeclaredLimit]:
    """What is declared, key by key, or an error that names the key."""
    found = {}
    for key, value in given.items():
        if isinstance(value, DeclaredLimit):
            found[key] = value
            continue
        _check_key(key)
        parts = list(_parts(key, value))
        names = [name for part in parts for name in part]
        if len(names) != len(set(names)):
            _refuse(key, "two caps or two rates are given, or two ways to adapt")
        found[key] = DeclaredLimit(key, **{name: value for part in parts for name, value in part.items()})
    return found


def limits_in(text: str) -> dict[str, str]:
    """What a variable says, as in `host:*=4,unpaywall=10/s`."""
    pairs = [pair.rpartition("=") for pair in text.split(",") if pair.strip()]
    for key, _, value in pairs:
        if not key.strip() or not value.strip():
            raise ConfigurationError(f"{text!r:.80}: pairs are written as in host:*=4,unpaywall=10/s")
    return {key.strip(): value.strip() for key, _, value in pairs}


def _parts(key: str, value: object) -> Iterator[dict[str, Any]]:
    """The columns that each part of a value says."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        if not value:
            _refuse(key, "nothing is declared of it")
        for one in value:
            yield _part(key, one)
    else:
        yield _part(key, value)


def _part(key: str, value: object) -> dict[str, Any]:
    if isinstance(value, Mapping):
        value = _of_table(key, value)
    if isinstance(value, str):
        value = int(value) if value.isascii() and value.isdigit() else _rate_of(key, value)
    if isinstance(value, Adaptive):
        return _adaptive(key, value)
    if isinstance(value, Rate):
        return _rate(key, value)
    return {"max_slots": _cap(key, value)}


def _of_table(key: str, table: Mapping[Any, Any]) -> object:
    """A table of a file: `cap` or `rate` with `burst`, and what an `Adaptive` has."""
    known = {"cap", "rate", "burst", "floor", "down", "doubles_s"}
    strange = [name for name in table if name not in known]
    if strange:
        _refuse(key, f"{strange[0]!r:.60} is not known: a table has {', '.join(sorted(known))}")
    if ("cap" in table) == ("rate" in table):
        _refuse(key, "a table has a cap or a rate, one of them; a list of two tables has both")
    if "burst" in table and "rate" not in table:
        _refuse(key, "burst goes with a rate")
    limit = table.get("cap") if "cap" in table else _rate_of(key, table["rate"], table.get("burst"))
    adapts = {name: table[name] for name in ("floor", "down", "doubles_s") if name in table}
    # Its parts are checked as those of any other.
    return Adaptive(limit, **adapts) if adapts else limit  # type: ignore[arg-type]


def _rate_of(key: str, text: object, burst: Any = None) -> Rate:
    found = _RATE.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        _refuse(key, f"{text!r:.60} is no rate: write 5/s, 100/min, 1000/h or 10000/d")
    return Rate(float(found[1]), found[2] or "s", burst)


def _cap(key: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MOST_SLOTS:
        _refuse(key, f"{value!r:.60} is no cap, a whole number from 0 to {_MOST_SLOTS:,}")
    if value > 1 and key.startswith(_EXCLUSIVE):
        _refuse(key, "what is exclusive has one job at a time, so its cap is 1")
    return value


def _rate(key: str, rate: Rate) -> dict[str, Any]:
    if not isinstance(rate.per, str) or rate.per not in UNITS:
        _refuse(key, f"per={rate.per!r:.60} is none of {', '.join(UNITS)}")
    per_s = _tokens(key, "a rate", rate.amount, UNITS[rate.per])
    return {"per_s": per_s, "burst": _tokens(key, "a burst", _burst(rate, per_s), 1)}


def _burst(rate: Rate, per_s: float) -> float:
    return float(math.ceil(per_s)) if rate.burst is None else rate.burst


def _tokens(key: str, what: str, amount: object, unit: int) -> float:
    is_number = isinstance(amount, int | float) and not isinstance(amount, bool)
    if not is_number or not 1 / _MOST_TOKENS <= amount / unit <= _MOST_TOKENS:  # type: ignore[operator]
        _refuse(key, f"{amount!r:.60} is no number for {what}: it is above 0")
    return float(amount) / unit  # type: ignore[arg-type]


def _adaptive(key: str, given: Adaptive) -> dict[str, Any]:
    how = {
        "down": _between(key, "down", given.down, 0.01, 0.99),
        "doubles_s": _between(key, "doubles_s", given.doubles_s, *_DOUBLES_S),
    }
    if isinstance(given.limit, Rate):
        rate = _rate(key, given.limit)
        floor_per_s = _tokens(key, "a floor", given.floor, UNITS[given.limit.per])
        _check_floor(key, floor_per_s, rate["per_s"])
        return rate | {"floor_per_s": floor_per_s} | how
    cap = _cap(key, given.limit)
    if not isinstance(given.floor, int) or isinstance(given.floor, bool) or given.floor < 1:
        _refuse(key, f"floor={given.floor!r:.60} is no whole number from 1 on")
    _check_floor(key, given.floor, cap)
    return {"max_slots": cap, "floor_slots": given.floor} | how


def _check_floor(key: str, floor: float, most: float) -> None:
    if floor > most:
        _refuse(key, "its floor is above the limit itself")


def _between(key: str, name: str, value: object, least: float, most: float) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value <= most:  # type: ignore[operator]
        _refuse(key, f"{name}={value!r:.60} is no number from {least:g} to {most:,g}")
    return float(value)  # type: ignore[arg-type]


def _check_key(key: object) -> None:
    is_sound = isinstance(key, str) and "\0" not in key and key.isprintable() and key == key.strip()
    if not is_sound or not 1 <= len(key.encode(errors="replace")) <= _LONGEST_KEY or "*" in key[:-1]:  # type: ignore[attr-defined, index]
        raise ConfigurationError(
            f"limits: {key!r:.80} is no key and no pattern",
            advice=f"it has 1 to {_LONGEST_KEY} bytes, and a `*` only at its end, as in host:*",
        )


def _refuse(key: str, said: str) -> NoReturn:
    raise ConfigurationError(f"limits[{key!r:.80}]: {said}", advice=HOW)
