"""JSON Schema properties: whether they make sense, and whether data is as they say."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any, Final

from queue_workflows.errors import PayloadError
from queue_workflows.workflow.document.reading import Place
from queue_workflows.workflow.references.paths import written
from queue_workflows.workflow.references.references import near

_SHOWN: Final = 5
_WORDS: Final = {
    "minimum": "must be at least {}",
    "maximum": "must be at most {}",
    "exclusiveMinimum": "must be more than {}",
    "exclusiveMaximum": "must be less than {}",
    "multipleOf": "must be a multiple of {}",
    "minLength": "must have at least {} characters",
    "maxLength": "must have at most {} characters",
    "minItems": "must have at least {} elements",
    "maxItems": "must have at most {} elements",
    "pattern": "must match {}",
    "format": "must be of the format {}",
}
# jsonschema's own words for these name keys only.
_ABOUT_KEYS: Final = {"required", "additionalProperties", "unevaluatedProperties", "dependentRequired"}


def flaws_of_schema(properties: Mapping[str, Any]) -> Iterator[tuple[Place, str]]:
    """What is wrong with the properties: each is a JSON Schema, and a default must be one of its values."""
    for name, schema in properties.items():
        if not isinstance(schema, dict | bool):
            hint = "; list the properties themselves" if name in {"type", "properties", "required"} else ""
            yield (name,), f"must be a JSON Schema such as {{type: string}}{hint}"
            continue
        flaws = list(_flaws_of_one(schema))
        yield from (((name, *place), said) for place, said in flaws)
        if not flaws and isinstance(schema, dict) and schema.get("default") is not None:
            for error in _errors(_validator(schema), schema["default"]):
                yield (name, "default", *error.absolute_path), _said(error)


def _flaws_of_one(schema: Any) -> Iterator[tuple[Place, str]]:
    from jsonschema import Draft202012Validator, FormatChecker
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    meta = Draft202012Validator(Draft202012Validator.META_SCHEMA, format_checker=FormatChecker(["regex"]))
    flaws = [
        (tuple(error.absolute_path), f"is no JSON Schema: {_said(error)}") for error in _errors(meta, schema)
    ]
    yield from sorted(flaws, key=str)
    if flaws:
        return
    resolver = Registry().resolver_with_root(DRAFT202012.create_resource(schema))
    for place, reference in _references(schema):
        try:
            resolver.lookup(reference)
        except (Unresolvable, LookupError, TypeError, ValueError):
            yield place, f"{reference!r} leads nowhere; only the schema itself is known"


def _references(schema: Any, place: Place = ()) -> Iterator[tuple[Place, str]]:
    """Every reference of a schema; data in it, such as a default, has none."""
    children = (
        schema.items() if isinstance(schema, dict) else enumerate(schema) if isinstance(schema, list) else ()
    )
    for key, child in children:
        if key in {"$ref", "$dynamicRef"} and isinstance(child, str):
            yield (*place, key), child
        elif key not in {"default", "const", "enum", "examples"}:
            yield from _references(child, (*place, key))


def filled(properties: Mapping[str, Any] | None, given: Mapping[str, Any], *, what: str) -> dict[str, Any]:
    """The data with defaults filled in, or `PayloadError` that says everything that is wrong with it."""
    if not isinstance(given, Mapping):
        raise PayloadError(f"{what} must be an object, not {type(given).__name__}", path=what)
    if properties is None:
        return dict(given)
    wrong: list[tuple[str, str]] = []
    whole: dict[str, Any] = {}
    for name, schema in properties.items():
        place = what + written(name)
        if name in given:
            whole[name] = given[name]
            wrong += [
                (place + "".join(map(written, error.absolute_path)), _said(error))
                for error in _errors(_validator(schema), given[name])
            ]
        elif isinstance(schema, dict) and "default" in schema:
            whole[name] = deepcopy(schema["default"])
        else:
            wrong.append((place, "is missing"))
    strangers = [str(name) for name in given if name not in properties]
    wrong += [
        (what + written(name), f"is not asked for{near(name, properties)}") for name in strangers[:_SHOWN]
    ]
    if wrong:
        said = "; ".join(f"{place} {words}" for place, words in wrong[:_SHOWN])
        more = len(wrong) + len(strangers[_SHOWN:]) - len(wrong[:_SHOWN])
        raise PayloadError(said + (f"; and {more:,} more" if more else ""), path=wrong[0][0])
    return whole


def _validator(schema: Any) -> Any:
    """Knows no other schemas than this one: nothing is fetched from anywhere."""
    from jsonschema import Draft202012Validator
    from referencing import Registry

    return Draft202012Validator(schema, registry=Registry())


def _errors(validator: Any, value: Any) -> list[Any]:
    """What a validator says; references that lead nowhere, or in circles, are errors too."""
    from jsonschema import ValidationError
    from referencing.exceptions import Unresolvable

    try:
        return list(validator.iter_errors(value))
    except Unresolvable as unknown:
        return [ValidationError(f"$ref {unknown.ref!r} leads nowhere; only the schema itself is known")]
    except RecursionError:
        return [
            ValidationError("is nested too deeply to be checked, or a $ref of its schema leads to itself")
        ]


def _said(error: Any) -> str:
    """One line, without the value, which may be long or nobody's business."""
    rule, wanted = error.validator, error.validator_value
    if rule is None:
        return "is not allowed"
    if not isinstance(rule, str) or rule in _ABOUT_KEYS:
        return str(error.message)
    if rule == "type":
        return f"must be {' or '.join([wanted] if isinstance(wanted, str) else wanted)}"
    if rule == "enum":
        return f"must be one of {', '.join(map(_shown, wanted))[:200]}"
    if rule == "const":
        return f"must be {_shown(wanted)}"
    return _WORDS.get(rule, f"does not fit {rule}: {{}}").format(_shown(wanted))


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)[:100]
