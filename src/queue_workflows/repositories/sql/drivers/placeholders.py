"""A statement as a driver wants it: all are written in psycopg's `%(name)s` style, and rewritten only here.

psycopg    %(args)s::jsonb   %(ids)b::bigint[]      as it is written
psycopg2   %(args)s::jsonb   %(ids)s::bigint[]      it knows no binary parameters
asyncpg    $1::text::jsonb   $2::bigint[]           by numbers, and a text is cast from a text
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any, Final

from queue_workflows.repositories.sql.drivers.handles import Params

_PLACE: Final = re.compile(r"%\((\w+)\)[sb]|%%")
_BINARY: Final = re.compile(r"%\((\w+)\)b")


def numbered(sql: str, names: Sequence[str] = (), texts: Collection[str] = ()) -> tuple[str, list[str]]:
    """A statement with `$1`, and the names in the order of their numbers: first those given, then as met.

    What `texts` names is handed over as a text: its cast reads it, as it reads a literal.
    """
    numbers = {name: number for number, name in enumerate(names, 1)}

    def place(found: re.Match[str]) -> str:
        name = found[1]
        if name is None:
            return "%"
        number = numbers.setdefault(name, len(numbers) + 1)
        return f"${number}::text" if name in texts else f"${number}"

    return _PLACE.sub(place, sql), list(numbers)


def for_asyncpg(sql: str, params: Params) -> tuple[str, tuple[Any, ...]]:
    """By numbers. The type of a parameter is that of its cast, which asyncpg wants its value to be of."""
    texts = frozenset(name for name, value in params.items() if isinstance(value, str))
    text, names = _numbered(sql, texts)
    return text, tuple([params[name] for name in names])


def for_psycopg2(sql: str, params: Params) -> tuple[str, dict[str, Any]]:
    """By names, with ids as texts: psycopg2 adapts none unless all of the process is told to."""
    return _without_binary(sql), {name: _adaptable(value) for name, value in params.items()}


@lru_cache(maxsize=512)
def _numbered(sql: str, texts: frozenset[str]) -> tuple[str, list[str]]:
    return numbered(sql, texts=texts)


@lru_cache(maxsize=512)
def _without_binary(sql: str) -> str:
    return _BINARY.sub(r"%(\1)s", sql)


def _adaptable(value: Any) -> Any:
    if isinstance(value, uuid.UUID):
        return str(value)
    return [_adaptable(each) for each in value] if isinstance(value, list) else value
