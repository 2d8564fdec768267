"""The references of a document, which are resolved late: when the node executes.

A mapping with exactly one key that begins with `$` is an operator: `$from` a path, `$value` a literal,
`$filter`, and what is true or false, from `$eq` to `$not`. Everything else stands for itself. What a
reference yields is data and is never looked into for further references, so nothing that a node returned can
refer to anything.
"""

from __future__ import annotations

import copy
import difflib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final, NamedTuple, TypeAlias

from queue_workflows.config import EveryRef, RefResolver
from queue_workflows.errors import PayloadError, RefError
from queue_workflows.payload import check_payload
from queue_workflows.workflow.references.paths import SHAPE, Path, written

COMPARISONS: Final = ("$eq", "$ne", "$gt", "$lt", "$in")
# Of conditions, of which those behind the one that decides are not looked at.
JOINTS: Final = ("$and", "$or")
CONDITIONS: Final = (*COMPARISONS, *JOINTS, "$not")
OPERATORS: Final = ("$from", "$value", "$filter", *CONDITIONS)
# What a path may begin with beside a node's id; no node may be called so.
ROOTS: Final = ("inputs", "run", "item", "index", "it", "host")
MAX_ELEMENTS: Final = 100_000
_FILTER_SHAPE: Final = (
    "$filter has `in` and `where`, as in "
    "{$filter: {in: {$from: plan.scenes}, where: {$eq: [{$from: it.kind}, day]}}}"
)
_EXAMPLES: Final = {
    "$eq": "{$eq: [{$from: plan.kind}, short]}",
    "$ne": "{$ne: [{$from: plan.kind}, short]}",
    "$gt": "{$gt: [{$from: plan.minutes}, 90]}",
    "$lt": "{$lt: [{$from: plan.minutes}, 90]}",
    "$in": "{$in: [{$from: plan.kind}, [short, long]]}",
}
_AT_MOST_SHOWN: Final = 10
_AT_MOST_COMPARED: Final = 2000
HostRefs: TypeAlias = RefResolver | EveryRef
_RUN: Final = Path("run")


class HostFailed(Exception):
    """What is raised instead of what the host app's resolver raised, where no job is there to fail by it."""


class Absent(Enum):
    """In a scope: a node or element that was skipped, failed or cancelled; null, however deep one looks."""

    ABSENT = "absent"


ABSENT: Final = Absent.ABSENT


class Glimpse(dict[str | int, Any]):
    """In a scope: what was read of an object or a list, by the steps that lead there, without the rest."""


class FoundReference(NamedTuple):
    """A reference in a value: its place in it, and its path or what is wrong with it."""

    place: tuple[str | int, ...]
    path: Path | None = None
    wrong: str | None = None


@dataclass(frozen=True, slots=True)
class _Sight:
    """What can be seen from where a reference stands; `it` is the element that a `$filter` looks at."""

    scope: Mapping[str, Any]
    host: HostRefs | None
    it: Any = ABSENT
    in_filter: bool = False


class _Malformed(Exception):
    """A mapping that wants to be an operator and is none."""


def resolve(value: Any, scope: Mapping[str, Any], *, where: str, host: HostRefs | None = None) -> Any:
    """The value with every reference in it resolved; the very same object where there is none.

    `scope` maps the roots (`inputs`, `run`, `item`, `index`, node ids) to what they hold, with `ABSENT` for
    nodes and elements without a result. `where` is the place that errors name, as in `draw.inputs`.
    """
    return _resolved(value, _Sight(scope, host), where)


def resolve_ref(ref: Any, scope: Mapping[str, Any], *, where: str = "$", host: HostRefs | None = None) -> Any:
    """What one reference yields; a text is a path, as in `resolve_ref("plan.scenes", scope)`."""
    return resolve({"$from": ref} if isinstance(ref, str) else ref, scope, where=where, host=host)


def resolve_condition(
    value: Any, scope: Mapping[str, Any], *, where: str, host: HostRefs | None = None
) -> bool:
    """What a `skip_if` says: true or false, and null is false; anything else is refused as a mistake."""
    return _truth(resolve(value, scope, where=where, host=host), where)


def resolve_elements(
    value: Any, scope: Mapping[str, Any], *, where: str, host: HostRefs | None = None
) -> list[Any]:
    """What a `for_each` goes through: a list, and null is an empty one."""
    elements = _elements(resolve(value, scope, where=where, host=host), where)
    if len(elements) > MAX_ELEMENTS:
        raise RefError(
            f"a list of {len(elements):,}, and for_each takes at most {MAX_ELEMENTS:,}",
            where=where,
            advice="give each element a part of the list",
        )
    return elements


def resolve_inputs(
    value: Any, scope: Mapping[str, Any], *, where: str, host: HostRefs | None = None
) -> dict[str, Any]:
    """What a node gets as its inputs: an object."""
    inputs = resolve(value, scope, where=where, host=host)
    if not isinstance(inputs, dict):
        raise RefError(f"inputs must be an object, and this is {_kind(inputs)}", where=where)
    return inputs


def paths_in(value: Any) -> list[Path]:
    """The paths that a value needs to be resolved, each once, in the order of their first appearance."""
    paths: dict[Path, None] = {}
    for found in references_in(value):
        if found.path is None:
            raise RefError(str(found.wrong), where="".join(("$", *map(written, found.place))))
        paths[found.path] = None
    return list(paths)


def paths_to_read(paths: Iterable[Path], host: HostRefs | None) -> list[Path]:
    """What resolving these paths takes: the run too, where the host app's resolver is asked for each."""
    needed = list(paths)
    return [*needed, _RUN] if needed and isinstance(host, EveryRef) else needed


def references_in(value: Any) -> Iterator[FoundReference]:
    """Every reference in a value, sound or not, in document order; `it` belongs to its own `$filter`."""
    todo: list[tuple[tuple[str | int, ...], Any, bool]] = [((), value, False)]
    while todo:
        place, one, in_filter = todo.pop()
        if isinstance(one, list):
            todo += [((*place, at), child, in_filter) for at, child in reversed(list(enumerate(one)))]
        elif isinstance(one, dict):
            try:
                operator = _operator(one)
                if operator == "$from":
                    path = _path(one["$from"])
                    if not (in_filter and path.root == "it"):
                        yield FoundReference(place, path)
                    continue
            except _Malformed as malformed:
                yield FoundReference(place, wrong=str(malformed))
                continue
            todo += reversed(list(_parts(one, operator, place, in_filter)))


def same(left: Any, right: Any) -> bool:
    """Whether two JSON values are equal: 1 is 1.0, and true is not 1."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def near(word: str, known: Iterable[str]) -> str:
    """A hint at the known word that was probably meant, or nothing."""
    found = difflib.get_close_matches(word, list(known)[:_AT_MOST_COMPARED], n=1, cutoff=0.6)
    return f"; did you mean {found[0]!r}?" if found else ""


def _parts(
    one: dict[str, Any], operator: str | None, place: tuple[str | int, ...], in_filter: bool
) -> Iterator[tuple[tuple[str | int, ...], Any, bool]]:
    """Where else references may stand in a mapping, and whether `it` is known there."""
    if operator is None:
        yield from (((*place, key), child, in_filter) for key, child in one.items())
    elif operator == "$filter":
        yield (*place, operator, "in"), one[operator]["in"], in_filter
        yield (*place, operator, "where"), one[operator]["where"], True
    elif operator == "$not":
        yield (*place, operator), one[operator], in_filter
    elif operator != "$value":
        yield from (((*place, operator, at), child, in_filter) for at, child in enumerate(one[operator]))


def _operator(one: dict[str, Any]) -> str | None:
    """The operator that a mapping is, in sound form, or None if it is an ordinary one."""
    marked = [key for key in one if isinstance(key, str) and key.startswith("$")]
    if not marked:
        return None
    name = marked[0]
    if name not in OPERATORS:
        hint = near(name, OPERATORS)
        raise _Malformed(f"there is no {name[:60]}{hint or '.'} A literal key like this goes into $value")
    if len(one) > 1:
        other = next(key for key in one if key != name)
        raise _Malformed(f"{name} must be the only key, and beside it is {other[:60]!r}")
    operand = one[name]
    if name in COMPARISONS and not (isinstance(operand, list) and len(operand) == 2):
        raise _Malformed(f"{name} compares a list of two, as in {_EXAMPLES[name]}")
    if name in JOINTS and not (isinstance(operand, list) and operand):
        raise _Malformed(f"{name} joins a list of conditions, as in {{{name}: [{_EXAMPLES['$eq']}, …]}}")
    if name == "$filter" and not (isinstance(operand, dict) and operand.keys() == {"in", "where"}):
        raise _Malformed(_FILTER_SHAPE)
    return name


def _path(text: object) -> Path:
    if not isinstance(text, str):
        raise _Malformed(f"$from takes a path as text, not {_kind(text)}; {SHAPE}")
    try:
        return Path.parse(text)
    except ValueError as wrong:
        raise _Malformed(f"{wrong}; {SHAPE}") from None


def _resolved(value: Any, sight: _Sight, where: str) -> Any:
    if isinstance(value, dict):
        return _resolved_mapping(value, sight, where)
    if isinstance(value, list):
        items = [_resolved(child, sight, f"{where}[{at}]") for at, child in enumerate(value)]
        return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
    return value


def _resolved_mapping(value: dict[str, Any], sight: _Sight, where: str) -> Any:
    try:
        operator = _operator(value)
        if operator == "$from":
            return _looked_up(_path(value[operator]), sight, where)
    except _Malformed as malformed:
        raise RefError(str(malformed), where=where) from None
    if operator is None:
        changed = {key: _resolved(child, sight, where + written(key)) for key, child in value.items()}
        return changed if any(changed[key] is not value[key] for key in value) else value
    return _operated(operator, value[operator], sight, where)


def _operated(operator: str, operand: Any, sight: _Sight, where: str) -> Any:
    if operator == "$value":
        return operand
    if operator == "$filter":
        return _filtered(operand, sight, f"{where}.$filter")
    return _is_true(operator, operand, sight, where)


def _is_true(operator: str, operand: Any, sight: _Sight, where: str) -> bool:
    """What a condition says."""
    if operator == "$not":
        inside = f"{where}.$not"
        return not _truth(_resolved(operand, sight, inside), inside)
    if operator in JOINTS:
        return _joined(operator, operand, sight, where)
    left, right = (_resolved(side, sight, f"{where}.{operator}[{at}]") for at, side in enumerate(operand))
    if operator in {"$eq", "$ne"}:
        return same(left, right) is (operator == "$eq")
    if operator == "$in":
        return any(same(left, element) for element in _elements(right, f"{where}.$in[1]"))
    return _is_before(*((right, left) if operator == "$gt" else (left, right)), f"{where}.{operator}")


def _joined(operator: str, conditions: list[Any], sight: _Sight, where: str) -> bool:
    """Whether all, or any, of the conditions are true; those behind the one that decides are not resolved."""
    decides = operator == "$or"
    for at, condition in enumerate(conditions):
        inside = f"{where}.{operator}[{at}]"
        if _truth(_resolved(condition, sight, inside), inside) is decides:
            return decides
    return not decides


def _is_before(less: Any, more: Any, where: str) -> bool:
    """Whether one number, or text, is less than another; null is neither less nor more than anything."""
    if less is None or more is None:
        return False
    if isinstance(less, str) and isinstance(more, str):
        return less < more
    if _is_number(less) and _is_number(more):
        return bool(less < more)
    raise RefError(
        f"two numbers or two texts can be compared, and these are {_kind(less)} and {_kind(more)}",
        where=where,
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _filtered(operand: dict[str, Any], sight: _Sight, where: str) -> list[Any]:
    elements = _elements(_resolved(operand["in"], sight, f"{where}.in"), f"{where}.in")
    inside = f"{where}.where"
    return [
        element
        for element in elements
        if _truth(_resolved(operand["where"], replace(sight, it=element, in_filter=True), inside), inside)
    ]


def _truth(value: Any, where: str) -> bool:
    if value is None or isinstance(value, bool):
        return bool(value)
    raise RefError(
        f"a condition is true or false, and this is {_kind(value)}",
        where=where,
        advice="compare it, as in {$ne: [{$from: plan.scenes}, []]}",
    )


def _elements(value: Any, where: str) -> list[Any]:
    if value is None:
        return []
    if isinstance(value, list):
        return value
    raise RefError(f"a list is needed, and this is {_kind(value)}", where=where)


def _looked_up(path: Path, sight: _Sight, where: str) -> Any:
    if isinstance(sight.host, EveryRef):
        if not (path.root == "it" and sight.in_filter):
            return _asked_anyway(path, sight, where, sight.host)
    elif path.root == "host":
        return _asked(path, sight, where, sight.host)
    return _found(path, sight, where)


def _found(path: Path, sight: _Sight, where: str) -> Any:
    """What is there in the scope."""
    if path.root == "it" and sight.in_filter:
        value = sight.it
    else:
        try:
            value = sight.scope[path.root]
        except KeyError:
            known = sorted(sight.scope)
            there = f"there is {_some(known)}{near(path.root, known)}"
            raise RefError(f"there is no {path.root!r}", where=where, path=str(path), there=there) from None
    for number, step in enumerate(path.steps):
        if value is ABSENT:
            return None
        try:
            value = _one_step(value, step)
        except LookupError:
            raise RefError(
                f"nothing is there at {written(step)}",
                where=where,
                path=str(path),
                there=f"{path.up_to(number)} is {_described(value, step)}",
            ) from None
    if isinstance(value, list) and not path.steps:
        return [None if element is ABSENT else element for element in value]
    return None if value is ABSENT else value


def _one_step(value: Any, step: str | int) -> Any:
    if isinstance(value, dict) and (isinstance(step, str) or isinstance(value, Glimpse)):
        return value[step]
    if isinstance(value, list):
        if isinstance(step, int):
            return value[step]
        if step.isascii() and step.isdecimal() and len(step) < 10:
            return value[int(step)]
    raise LookupError(step)


def _asked(path: Path, sight: _Sight, where: str, host: RefResolver | None) -> Any:
    """What the host app's resolver makes of `host.…`."""
    if host is None:
        raise RefError(
            "this process has nobody to ask for it",
            where=where,
            path=str(path),
            advice="set_ref_resolver(…) in the module that --app or QWF_APP names",
        )
    asked = "".join(map(written, path.steps)).removeprefix(".")
    return _answer(lambda: host(asked, _run_of(sight)), path, where)


def _asked_anyway(path: Path, sight: _Sight, where: str, host: EveryRef) -> Any:
    """What the host app's resolver makes of any path; what is found is a copy, as others have it too."""

    def found() -> Any:
        if path.root == "host":
            raise LookupError(str(path))
        return copy.deepcopy(_found(path, sight, where))

    return _answer(lambda: host.answer(str(path), _run_of(sight), found), path, where)


def _run_of(sight: _Sight) -> Any:
    """A copy of the run for the host app, which may change it."""
    return copy.deepcopy(sight.scope.get("run") or {})


def _answer(ask: Callable[[], Any], path: Path, where: str) -> Any:
    """The host app's answer, as JSON; an error that is no LookupError is its own."""
    try:
        return json.loads(check_payload(ask()))
    except HostFailed as failed:
        raise RefError(f"the host app cannot say: {failed}", where=where, path=str(path)) from failed
    except LookupError as unknown:
        raise RefError("the host app does not know it", where=where, path=str(path)) from unknown
    except PayloadError as wrong:
        raise RefError(
            f"the host app's answer cannot be used: {wrong}", where=where, path=str(path)
        ) from wrong


def _described(value: Any, step: str | int) -> str:
    """What is there, without its values, which may be nobody's business."""
    if isinstance(value, dict):
        known = list(value)
        hint = near(step, known) if isinstance(step, str) else ""
        return f"an object with {_some(known)}{hint}" if known else "an empty object"
    if isinstance(value, list):
        return f"a list of {len(value):,}"
    return _kind(value)


def _some(words: list[str]) -> str:
    shown = ", ".join(repr(word[:60]) for word in words[:_AT_MOST_SHOWN])
    return f"{shown} and {len(words) - _AT_MOST_SHOWN:,} more" if len(words) > _AT_MOST_SHOWN else shown


def _kind(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    kinds = {str: "a text", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return kinds.get(type(value), type(value).__name__)
