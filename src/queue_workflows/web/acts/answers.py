"""Answering a node that waits for input, by a form that is drawn from the node's own JSON schema."""

from __future__ import annotations

import json
import shlex
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

import psycopg

from queue_workflows.engine.runs.verbs import asked_node, submit_input
from queue_workflows.errors import PayloadError
from queue_workflows.repositories.runs.runs import named_run
from queue_workflows.settings import Settings
from queue_workflows.views.runs.question import question
from queue_workflows.web.acts.act import Act, Asked, By, Done, Field, Line, Preview
from queue_workflows.workflow.document.schemas import filled

_ANSWER: Final = "answer"
_YES: Final = "yes"
_NO: Final = "no"
_KINDS: Final = {"integer": "number", "number": "number", "string": "text"}
_MOST_CHOICES: Final = 200
_WHAT: Final = "the answer"


def answer_target(name: str) -> str:
    """A run's whole id, and the node."""
    run, _, node = name.partition(" ")
    found = named_run(run)
    if found is None or not node.strip():
        raise PayloadError(
            f"{name!r:.80} is no node of a run", path="target", advice="write the run's id, a space, the node"
        )
    return f"{found} {node.strip()}"


def _place(asked: Asked) -> tuple[uuid.UUID, str]:
    run, _, node = asked.targets[0].partition(" ")
    return uuid.UUID(run), node


def _preview(connection: psycopg.Connection[Any], asked: Asked, _settings: Settings) -> Preview:
    run_id, node = _place(asked)
    schema = asked_node(run_id, node, conn=connection).answer_schema
    there = question(connection, run_id, node)
    fields = _fields(schema, asked)
    is_whole = all((one.value or not one.is_needed) and not one.flaw for one in fields)
    answer = _answer(schema, asked) if is_whole else None
    waiting = [one for one in there.answers if one.status == "pending"]
    return Preview(
        headline=f"Answer {node} of run {run_id}",
        text=there.prompt or "",
        lines=() if answer is None else (Line(node, f"would get {_written(answer)}", f"/runs/{run_id}"),),
        notes=tuple(f"{one.submitted_by or 'somebody'} has answered it just now" for one in waiting[:3]),
        command=shlex.join(
            ["qwf", "run", "submit-input", str(run_id), node, *([] if answer is None else [_written(answer)])]
        ),
        fields=fields,
        back=f"/runs/{run_id}",
    )


def _perform(
    connection: psycopg.Connection[Any], asked: Asked, by: By, _settings: Settings
) -> Iterator[Done]:
    run_id, node = _place(asked)
    schema = asked_node(run_id, node, conn=connection).answer_schema
    submission = submit_input(run_id, node, _answer(schema, asked), conn=connection, submitted_by=by.actor)
    said = f"answer {submission} is stored; an orchestrator takes it up"
    yield Done(Counter({"answer stored": 1}), (Line(node, said, f"/runs/{run_id}"),))


def _fields(schema: Mapping[str, Any] | None, asked: Asked) -> tuple[Field, ...]:
    """A field for each property, with what was typed into it and what is wrong with that."""
    if schema is None:
        typed = asked.words.get(_ANSWER, "")
        return (
            Field(_ANSWER, "Answer", "json", "An object in JSON.", typed, (), True, _flaw_of_whole(typed)),
        )
    return tuple(_field(name, rule if isinstance(rule, dict) else {}, asked) for name, rule in schema.items())


def _field(name: str, rule: Mapping[str, Any], asked: Asked) -> Field:
    word = f"{_ANSWER}.{name}"
    is_typed = word in asked.words
    has_default = "default" in rule
    typed = asked.words[word] if is_typed else _written_as(rule, rule["default"]) if has_default else ""
    choices = _choices(rule)
    kind: Any = "choice" if choices else _KINDS.get(str(rule.get("type")), "json")
    is_empty_text = is_typed and kind == "text"
    missing = f"{name} is missing" if is_typed and not has_default else ""
    hints = [str(rule[part]) for part in ("title", "description") if rule.get(part)]
    if kind == "json":
        hints.append("In JSON.")
    return Field(
        word,
        name,
        kind,
        ": ".join(hints),
        typed,
        choices,
        is_needed=not has_default and not is_empty_text,
        flaw=_flaw(name, rule, typed) if typed or is_empty_text else missing,
    )


def _choices(rule: Mapping[str, Any]) -> tuple[str, ...]:
    if rule.get("type") == "boolean":
        return (_YES, _NO)
    values = rule.get("enum")
    if not isinstance(values, list) or len(values) > _MOST_CHOICES:
        return ()
    return tuple(_written_as(rule, value) for value in values)


def _written_as(rule: Mapping[str, Any], value: Any) -> str:
    """A value as it stands in its field; `_value` reads it back."""
    if rule.get("type") == "boolean" and isinstance(value, bool):
        return _YES if value else _NO
    return value if isinstance(value, str) and _is_text(rule) else _written(value)


def _is_text(rule: Mapping[str, Any]) -> bool:
    values = rule.get("enum")
    if isinstance(values, list):
        return all(isinstance(value, str) for value in values)
    return rule.get("type") == "string"


def _value(rule: Mapping[str, Any], typed: str) -> Any:
    """What was typed, as the schema's type has it, or a sentence of what is wrong in a `PayloadError`."""
    if rule.get("type") == "boolean":
        return {_YES: True, _NO: False}.get(typed, typed)
    if _is_text(rule):
        return typed
    try:
        return json.loads(typed, parse_constant=_refuse)
    except (ValueError, RecursionError):
        # A word where a number belongs is told so by the schema.
        if str(rule.get("type")) in _KINDS:
            return typed
        raise PayloadError(f"{typed!r:.60} is no JSON") from None


def _refuse(constant: str) -> Any:
    raise ValueError(constant)


def _flaw(name: str, rule: Mapping[str, Any], typed: str) -> str:
    try:
        filled({name: rule}, {name: _value(rule, typed)}, what=_WHAT)
    except PayloadError as wrong:
        return wrong.message.removeprefix(f"{_WHAT}.")
    return ""


def _flaw_of_whole(typed: str) -> str:
    try:
        return "" if not typed or isinstance(_value({}, typed), dict) else 'It must be an object: {"name": 1}'
    except PayloadError as wrong:
        return wrong.message


def _answer(schema: Mapping[str, Any] | None, asked: Asked) -> dict[str, Any]:
    """The answer that the fields are; one that is left empty gets its default."""
    if schema is None:
        whole = _value({}, asked.words.get(_ANSWER, ""))
        if not isinstance(whole, dict):
            raise PayloadError(f"{_WHAT} must be an object", path=_ANSWER)
        return whole
    given = {}
    for name, rule in schema.items():
        known = rule if isinstance(rule, dict) else {}
        typed = asked.words.get(f"{_ANSWER}.{name}")
        if typed or (typed is not None and _is_text(known) and "default" not in known):
            given[name] = _value(known, typed)
    return filled(schema, given, what=_WHAT)


def _written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


ANSWER: Final = Act(
    "run.answer",
    "Answer",
    target=answer_target,
    preview=_preview,
    perform=_perform,
    takes_many=False,
    takes_reason=False,
)
