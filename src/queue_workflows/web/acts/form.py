"""What a form says: the words behind an address, or a body of them, each within bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl

from starlette.requests import Request

from queue_workflows.web.access.requests import RequestRefused
from queue_workflows.web.acts.act import LONGEST_REASON, LONGEST_TARGET, MOST_TARGETS, Act, Asked

MOST_BYTES: Final = 1_048_576
MOST_FIELDS: Final = 5_000
LONGEST_FILTER: Final = 4_096
FORM: Final = "application/x-www-form-urlencoded"
_OURS: Final = frozenset({"act", "target", "where", "reason", "seen"})


@dataclass(frozen=True)
class Form:
    """A request for an act: which, of what, why, and the mark of the preview that was seen."""

    asked: Asked
    reason: str
    seen: str


async def read_form(request: Request, acts: Mapping[str, Act]) -> tuple[Act, Form]:
    """The act that a request asks for, with its things written in their one way, or `RequestRefused`."""
    said = await fields_of(request)
    name = _one(said, "act")
    act = acts.get(name)
    if act is None:
        raise RequestRefused(400, f"There is no act {name!r:.80}", advice=f"one of {', '.join(acts)}")
    where = _one(said, "where", longest=LONGEST_FILTER) if _has(said, "where") else None
    targets = [value for field, value in said if field == "target"]
    words = {field: value for field, value in said if field not in _OURS}
    reason = _one(said, "reason", longest=LONGEST_REASON).strip()
    return act, Form(asked_for(act, targets, where, words), reason, _one(said, "seen"))


def asked_for(act: Act, targets: Sequence[str], where: str | None, words: Mapping[str, str]) -> Asked:
    """What is asked for, with its things written in their one way, or `RequestRefused`."""
    named, matched = _targets(act, targets), _filter(act, where)
    if bool(named) == (matched is not None):
        raise RequestRefused(400, "Name things by target, or all of them by a filter; not both")
    return Asked(act.name, named, matched, words)


async def fields_of(request: Request) -> list[tuple[str, str]]:
    """The names and values of a form, in their order."""
    text = _query(request) if request.method in ("GET", "HEAD") else await _body(request)
    try:
        said = parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict")
    except UnicodeDecodeError:
        raise RequestRefused(400, "This form is not in UTF-8") from None
    except ValueError:
        raise RequestRefused(413, f"A form has at most {MOST_FIELDS:,} fields") from None
    if any("\0" in part for pair in said for part in pair):
        raise RequestRefused(400, "A form has no NUL in its text")
    return said


def _query(request: Request) -> str:
    query: bytes = request.scope["query_string"]
    return query.decode("ascii")


async def _body(request: Request) -> str:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != FORM:
        raise RequestRefused(415, f"What is sent here is a form: {FORM}")
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MOST_BYTES:
            raise RequestRefused(413, f"A form has at most {MOST_BYTES:,} bytes")
        parts.append(part)
    try:
        return b"".join(parts).decode("ascii")
    except UnicodeDecodeError:
        raise RequestRefused(400, "This form is not encoded as forms are") from None


def _has(said: list[tuple[str, str]], name: str) -> bool:
    return any(field == name for field, _ in said)


def _one(said: list[tuple[str, str]], name: str, *, longest: int = LONGEST_TARGET) -> str:
    values = [value for field, value in said if field == name]
    if len(values) > 1:
        raise RequestRefused(400, f"This form says {name} more than once")
    value = values[0] if values else ""
    if len(value) > longest:
        raise RequestRefused(400, f"{name} has more than {longest:,} characters")
    return value


def _filter(act: Act, text: str | None) -> str | None:
    if text is None:
        return None
    if act.filter is None:
        raise RequestRefused(400, f"{act.name} takes no filter", advice="name each by target")
    return act.filter(text)


def _targets(act: Act, given: Sequence[str]) -> tuple[str, ...]:
    if len(given) > MOST_TARGETS:
        raise RequestRefused(
            400, f"At most {MOST_TARGETS} things at once can be named", advice="use a filter"
        )
    for value in given:
        if len(value) > LONGEST_TARGET:
            raise RequestRefused(400, f"target has more than {LONGEST_TARGET:,} characters")
    targets = tuple(dict.fromkeys(act.target(value.strip()) for value in given))
    if len(targets) > 1 and not act.takes_many:
        raise RequestRefused(400, f"{act.name} is about one thing at a time")
    return targets
