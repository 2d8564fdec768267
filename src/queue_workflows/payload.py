"""What a JSON payload may be: the one check, made before any state changes.

`check_payload` walks the containers (keys, types, depth, size) before it encodes, so that nothing it is
handed can exhaust the stack or the memory, and then looks at the text for what Postgres refuses. Only a
refusal pays for the second, slower walk, which names the place.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from enum import Enum
from typing import Any, Final

from queue_workflows.errors import PayloadError

MAX_BYTES: Final = 16_777_216
MAX_DEPTH: Final = 100
# What Python's own parser takes by default: a longer integer could be stored, but not read back.
MAX_DIGITS: Final = 4300
# What is beyond the ends of Python's calendar in some time zone could be stored, but not read back.
YEARS: Final = (2, 9998)

_WORD: Final = 1 << 63
_MAX_INT: Final = 10**MAX_DIGITS
_CONTAINERS: Final = (dict, list, tuple)
_SMALL: Final = frozenset({float, bool, type(None)})
_REFUSED: Final = sys.maxsize
_FEW: Final = 32
_SHORT: Final = 1024
_ADVICE: Final = {
    "datetime": "use .isoformat()",
    "date": "use .isoformat()",
    "time": "use .isoformat()",
    "timedelta": "use .total_seconds()",
    "bytes": "decode it, or encode it as base64 text",
    "bytearray": "decode it, or encode it as base64 text",
    "set": "use sorted(…) or list(…)",
    "frozenset": "use sorted(…) or list(…)",
    "Decimal": "use str(…), or float(…) where that is exact enough",
    "UUID": "use str(…)",
    "PurePath": "use str(…)",
    "Enum": "use its .value, or make it a StrEnum",
    "BaseModel": "use .model_dump(mode='json')",
    "ndarray": "use .tolist()",
    "generic": "use .item()",
    "Mapping": "use dict(…)",
}

# The walk before it has bounded the depth, so no cycle comes this far.
_ENCODER: Final = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")
)
# What the encoder makes anew for each text, which takes as long as a small text itself; only CPython has it.
_maker: Final[Any] = getattr(json.encoder, "c_make_encoder", None)
_pieces: Final[Callable[[object, int], Iterable[str]] | None] = _maker and _maker(
    *(None, _ENCODER.default, json.encoder.encode_basestring, None),
    *(_ENCODER.key_separator, _ENCODER.item_separator, False, False, False),
)


def is_storable(moment: datetime) -> bool:
    """Whether a point in time can be stored, and read back in whatever time zone."""
    return YEARS[0] <= moment.year <= YEARS[1]


def check_payload(value: object, *, max_bytes: int = MAX_BYTES, max_depth: int = MAX_DEPTH) -> str:
    """The JSON text of a value, or `PayloadError` naming a place that JSON or Postgres could not take.

    Tuples become lists; subclasses of `dict`, `list`, `str`, `int` and `float` (a `StrEnum`, say) become what
    they extend. Anything else that is not JSON is refused rather than guessed at.
    """
    small = small_text(value)
    if small is not None and len(small) <= longest_small(max_bytes, max_depth):
        return small
    sound = _is_sound(value, max_bytes, max_depth)
    if sound:
        try:
            text = _encode(value)
            if "\\u0000" not in text and len(text.encode()) <= max_bytes:
                return text
        except (ValueError, RecursionError):
            pass  # NaN, a lone surrogate: explained below
    _name_the_place(value, max_bytes, max_depth)
    if not sound:
        raise _too_large(max_bytes, "$")
    return _encoded_after_all(value, max_bytes)


def _encode(value: object) -> str:
    return _ENCODER.encode(value) if _pieces is None else "".join(_pieces(value, 0))


def longest_small(max_bytes: int, max_depth: int) -> int:
    """How many characters `small_text` may have for `check_payload` to take it as it is."""
    return max_bytes // 4 if max_depth > 0 else -1


def small_text(value: object) -> str | None:
    """The text of a small dict of short texts and plain numbers, as most payloads are; None for any other."""
    if type(value) is not dict or len(value) > _FEW or not _are_small(value):
        return None
    try:
        text = "".join(_pieces(value, 0)) if _pieces is not None else _ENCODER.encode(value)
        if not text.isascii():
            text.encode()
    except ValueError:
        return None
    return None if "\\u0000" in text else text


def _are_small(items: dict[Any, Any]) -> bool:
    for key, child in items.items():
        if type(key) is not str or len(key) > _SHORT:
            return False
        kind = type(child)
        if kind is int:
            if not -_WORD < child < _WORD:
                return False
        elif kind is str:
            if len(child) > _SHORT:
                return False
        elif kind not in _SMALL:
            return False
    return True


def _is_sound(value: object, max_bytes: int, max_depth: int) -> bool:
    """Keys, types, depth and a lower bound of the size; level by level, so that our own stack stays flat."""
    level: list[Any] = [(value,)]
    size = 0
    for _ in range(max_depth + 1):
        deeper: list[Any] = []
        for container in level:
            children = container
            if isinstance(container, dict):
                size += _size_of_keys(container)
                children = container.values()
            for child in children:
                kind = type(child)
                if kind is str:
                    size += len(child)
                elif kind is dict or kind is list:
                    deeper.append(child)
                elif kind not in _SMALL and (kind is not int or not -_WORD < child < _WORD):
                    size += _size_of_unusual(child, deeper)
            size += 2 * len(container)
            if size > max_bytes:
                return False
        if not deeper:
            return True
        level = deeper
    return False


def _size_of_keys(container: dict[Any, Any]) -> int:
    size = 0
    for key in container:
        if not isinstance(key, str):
            return _REFUSED
        size += len(key)
    return size


def _size_of_unusual(child: object, deeper: list[Any]) -> int:
    """Long integers and subclasses; what is no JSON counts as larger than any limit."""
    if isinstance(child, _CONTAINERS):
        deeper.append(child)
        return 0
    if isinstance(child, str):
        return len(child)
    if isinstance(child, int):
        return child.bit_length() // 4 if -_MAX_INT < child < _MAX_INT else _REFUSED
    return 0 if isinstance(child, float) else _REFUSED


def _encoded_after_all(value: object, max_bytes: int) -> str:
    """The text of a value with nothing wrong in it but its size, or a backslash before `u0000`."""
    try:
        text = _encode(value)
        size = len(text.encode())
    except (ValueError, RecursionError) as refused:
        raise PayloadError(f"the payload cannot be written as JSON: {refused}") from refused
    if size > max_bytes:
        raise _too_large(max_bytes, "$")
    return text


def _name_the_place(value: object, max_bytes: int, max_depth: int) -> None:
    """Raise for the first bad place in document order; return if there is none."""
    path: list[str] = []
    holders: list[int] = [0]
    frames: list[Iterator[tuple[str, Any]]] = [iter([("$", value)])]
    size = 0
    while frames:
        segment, child = next(frames[-1], (None, None))
        if segment is None:
            frames.pop()
            holders.pop()
            del path[-1:]
            continue
        path.append(segment)
        if isinstance(child, _CONTAINERS):
            if id(child) in holders:
                raise _refusal("contains itself", path, "JSON has no references: name it by an id instead")
            if len(frames) > max_depth:
                raise _refusal(
                    f"nested deeper than {max_depth} levels",
                    path,
                    "flatten it, or raise QWF_PAYLOAD_MAX_DEPTH",
                )
            size += 2 * len(child)
            if isinstance(child, dict):
                size += sum(len(key) for key in child if isinstance(key, str))
            frames.append(_children(child, path))
            holders.append(id(child))
        else:
            size += _checked_size(child, path, max_bytes)
            path.pop()
        if size > max_bytes:
            raise _too_large(max_bytes, "$")


def _children(container: Any, path: list[str]) -> Iterator[tuple[str, Any]]:
    if not isinstance(container, dict):
        for index, child in enumerate(container):
            yield f"[{index}]", child
        return
    for key, child in container.items():
        if not isinstance(key, str):
            shown = f"{key!r} " if key is None or isinstance(key, bool | int | float) else ""
            raise _refusal(
                f"key {shown}of type {type(key).__name__}", path, "JSON keys are strings: use str(…)"
            )
        segment = f".{key}" if re.fullmatch(r"[A-Za-z_]\w{0,59}", key, re.A) else f"[{json.dumps(key[:60])}]"
        _check_text(key, "key", [*path, segment])
        yield segment, child


def _checked_size(atom: object, path: list[str], max_bytes: int) -> int:
    """Refuse what is no JSON atom; else a lower bound of its size."""
    if isinstance(atom, str):
        if len(atom) > max_bytes:
            raise _too_large(max_bytes, "".join(path))
        _check_text(atom, "string", path)
        return len(atom)
    if isinstance(atom, int):
        digits = min(MAX_DIGITS, sys.get_int_max_str_digits() or MAX_DIGITS)
        if abs(atom) >= 10**digits:
            raise _refusal(f"integer of more than {digits} digits", path, "send it as a string")
        return atom.bit_length() // 4
    if isinstance(atom, float):
        if not math.isfinite(atom):
            raise _refusal(f"{float.__repr__(atom)} is not JSON", path, "use None, or a string")
        return 1
    if atom is None:
        return 1
    raise _refusal(f"{type(atom).__name__} is not JSON", path, _advice_for(atom))


def _check_text(text: str, what: str, path: list[str]) -> None:
    if "\x00" in text:
        raise _refusal(f"NUL (\\u0000) in a {what}", path, "Postgres cannot store it: remove it")
    try:
        text.encode()
    except UnicodeEncodeError as lone:
        where = f"surrogate \\u{ord(text[lone.start]):04x} in a {what}"
        raise _refusal(
            where, path, "it is no character: decode with errors='replace' instead of 'surrogateescape'"
        ) from None


def _advice_for(atom: object) -> str:
    names = ["Enum"] if isinstance(atom, Enum) else [kind.__name__ for kind in type(atom).__mro__]
    return next((_ADVICE[name] for name in names if name in _ADVICE), "use dicts, lists, strings and numbers")


def _refusal(what: str, path: list[str], advice: str) -> PayloadError:
    place = "".join(path)
    short = place if len(place) <= 120 else f"{place[:60]}…{place[-50:]}"
    return PayloadError(f"payload at {short}: {what}", path=place, advice=advice)


def _too_large(max_bytes: int, place: str) -> PayloadError:
    return PayloadError(
        f"payload at {place}: larger than {max_bytes:,} bytes of JSON",
        path=place,
        advice="store the data elsewhere and send a reference, or raise QWF_PAYLOAD_MAX_BYTES",
    )
