"""From what is wrong at a place of a document to problems that name its file, line, node and field."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from queue_workflows.errors import Problem
from queue_workflows.workflow.document.nodes import TYPES, Part, Retry
from queue_workflows.workflow.document.reading import Place
from queue_workflows.workflow.references.paths import written
from queue_workflows.workflow.references.references import near

MISSING: Final = "is missing"
_SAID: Final = {
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
    "string_type": "must be a text",
    "bool_type": "must be true or false",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a number",
}


class Flaw(NamedTuple):
    """What is wrong, and the place of it in the document's data."""

    place: Place
    said: str


def flaws_in(refused: ValidationError, top: type[Part]) -> list[Flaw]:
    """What the models refused, in words of the document."""
    return [_flaw(dict(error), top) for error in refused.errors(include_url=False, include_context=True)]


def problems(
    flaws: Iterable[Flaw], data: Any, *, file: str | None, lines: Mapping[Place, int]
) -> list[Problem]:
    """The flaws with the names that a reader knows them by, in the order of the document."""
    told = [_problem(flaw, data, file, lines) for flaw in flaws]
    return sorted(told, key=lambda problem: problem.line or 0)


def without(flaws: Iterable[Flaw], data: dict[str, Any]) -> dict[str, Any]:
    """A copy of the data without the fields that have flaws."""
    copy, nodes = dict(data), data.get("nodes")
    if isinstance(nodes, list):
        copy["nodes"] = nodes = [dict(node) if isinstance(node, dict) else node for node in nodes]
    for flaw in flaws:
        if flaw.place[0] == "nodes" and len(flaw.place) > 2 and isinstance(nodes, list):
            nodes[int(flaw.place[1])].pop(flaw.place[2], None)
        else:
            copy.pop(str(flaw.place[0]), None)
    return copy


def _problem(flaw: Flaw, data: Any, file: str | None, lines: Mapping[Place, int]) -> Problem:
    node, inside = None, flaw.place
    if len(inside) > 1 and inside[0] == "nodes" and isinstance(inside[1], int):
        node, inside = _name_of_node(data, inside[1]), inside[2:]
    field = "".join(map(written, inside)).removeprefix(".") or None
    around = (flaw.place[:length] for length in range(len(flaw.place), 0, -1))
    line = next((lines[place] for place in around if place in lines), None)
    return Problem(flaw.said, node, field, line, file)


def _name_of_node(data: Any, at: int) -> str:
    """Its id, or its place in the list if it has none."""
    try:
        name = data["nodes"][at]["id"]
    except (LookupError, TypeError):
        name = None
    return name if isinstance(name, str) and name else f"#{at + 1}"


def _flaw(error: Mapping[str, Any], top: type[Part]) -> Flaw:
    place, given = tuple(error["loc"]), error["input"]
    model = top
    if len(place) > 2 and place[0] == "nodes" and place[2] in TYPES:
        model, place = TYPES[str(place[2])], (*place[:2], *place[3:])
        if place[2:3] == ("retry",) and len(place) > 3:
            model = Retry
    kind = error["type"]
    if kind == "extra_forbidden":
        return Flaw(place, _unknown_field(str(place[-1]), model))
    if kind in {"union_tag_invalid", "union_tag_not_found"}:
        return _wrong_type(place, given)
    return Flaw(place, _refused(error))


def _refused(error: Mapping[str, Any]) -> str:
    """What a value must be, and what it is where that helps."""
    kind = error["type"]
    if kind == "missing":
        return MISSING
    if kind in {"enum", "literal_error"}:
        said = f"must be {error['ctx']['expected'].replace(chr(39), '')}"
    elif kind == "value_error":
        said = str(error["ctx"]["error"])
    else:
        said = _SAID.get(kind) or error["msg"].replace("Input should", "must").replace("String", "Text")
    return f"{said}, not {_short(error['input'])}" if said.startswith("must ") else said


def _unknown_field(name: str, model: type[Part]) -> str:
    known = [field.alias or name for name, field in model.model_fields.items()]
    others = [kind for kind, other in TYPES.items() if name in _names(other)]
    kind = next((kind for kind, other in TYPES.items() if other is model), None)
    if kind is not None and others:
        return f"is not for nodes of type {kind}, only for {' and '.join(others)}"
    hint = near(name, known)
    return f"there is no such field{hint or '; there are ' + ', '.join(known)}"


def _names(model: type[Part]) -> set[str]:
    return {field.alias or name for name, field in model.model_fields.items()}


def _wrong_type(place: Place, given: Any) -> Flaw:
    if not isinstance(given, dict):
        return Flaw(place, f"a node must be a mapping, not {_short(given)}")
    kind = given.get("type")
    hint = near(kind, TYPES) if isinstance(kind, str) else ""
    known = hint or f"; there are {', '.join(TYPES)}"
    return Flaw((*place, "type"), f"there is no type {_short(kind)}{known}")


def _short(given: Any) -> str:
    """What was given, as a JSON reader would know it, and no longer than a line takes."""
    if isinstance(given, dict):
        return "a mapping"
    if isinstance(given, list | tuple):
        return "a list"
    if given is None or isinstance(given, bool):
        return {None: "null", True: "true", False: "false"}[given]
    shown = repr(given)
    return shown if len(shown) <= 60 else f"{shown[:56]}…{shown[-1]}"
