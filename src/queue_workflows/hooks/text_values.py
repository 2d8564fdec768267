"""Texts, as the environment has them, read as the type that a JSON Schema says."""

from __future__ import annotations

import json
import re
import sys
from typing import Any, Final, cast

_FALSE: Final = frozenset({"false", "0", "no", "off", "n", "f", ""})
_TRUE: Final = frozenset({"true", "1", "yes", "on", "y", "t"})


def read_as(text: str, schema: Any) -> Any:
    """A text as the type that a schema says; ValueError, in words, if it is none. Unread without a type."""
    said = schema.get("type") if isinstance(schema, dict) else None
    types = [said] if isinstance(said, str) else list(said or ["string"])
    if "null" in types and text == "":
        return None
    for kind in ("boolean", "integer", "number", "array", "object"):
        if kind in types:
            try:
                return _READERS[kind](text.strip())
            except ValueError:
                continue
    if "string" in types:
        return text
    raise ValueError(f"must be {' or '.join(map(str, types))}")


def _boolean(text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise ValueError(text)


def _integer(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        raise ValueError(text)
    return int(text)


def _number(text: str) -> float:
    if not re.fullmatch(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?", text):
        raise ValueError(text)
    whole = re.fullmatch(r"[+-]?[0-9]{1,18}", text)
    value = int(text) if whole else float(text)
    if abs(value) > sys.float_info.max:
        raise ValueError(text)
    return value


def _array(text: str) -> list[Any]:
    """JSON, or elements parted by commas."""
    if text.startswith("["):
        return cast("list[Any]", _json(text))
    return [one.strip() for one in text.split(",")] if text else []


def _object(text: str) -> dict[str, Any]:
    value = _json(text)
    if not isinstance(value, dict):
        raise ValueError(text)
    return value


def _json(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=refused)
    except RecursionError as deep:
        raise ValueError(text) from deep


def refused(constant: str) -> None:
    """For `json.loads`: NaN and infinities are not JSON."""
    raise ValueError(f"{constant} is not JSON")


_READERS: Final = {
    "boolean": _boolean,
    "integer": _integer,
    "number": _number,
    "array": _array,
    "object": _object,
}
