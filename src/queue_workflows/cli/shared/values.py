"""Values on a command line: `name=text`, `name:=JSON`, and whole files of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from queue_workflows.workflow.document.reading import Unreadable, checked_data, read_text

STDIN: Final = "-"


def document_file(word: str) -> Path:
    """The file of a document; that it cannot be opened is a mistake of the command line, as for values."""
    if word == STDIN:
        return Path("/dev/stdin")
    try:
        Path(word).open("rb").close()
    except (OSError, ValueError) as wrong:
        raise click.UsageError(f"{word}: cannot be read: {getattr(wrong, 'strerror', wrong)}") from None
    return Path(word)


def pairs(option: str, given: Sequence[str], schemas: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The values by their names; text is read as JSON where a schema wants something else than text."""
    values: dict[str, Any] = {}
    for word in given:
        name, equals, text = word.partition("=")
        if not equals or not name.removesuffix(":"):
            raise click.UsageError(f"{option} {word!r}: write name=text, or name:=JSON")
        if name.removesuffix(":") in values:
            raise click.UsageError(f"{option} {word!r}: {name.removesuffix(':')} is given twice")
        if name.endswith(":"):
            values[name[:-1]] = _json(f"{option} {word!r}:", text)
        elif kinds := _kinds_but_text(schemas, name):
            values[name] = _json(f"{option} {word!r}: {name} must be {' or '.join(kinds)}, and", text)
        else:
            values[name] = text
    return values


def _kinds_but_text(schemas: Mapping[str, Any] | None, name: str) -> list[str]:
    """The types that a schema wants; none where text is one of them, or anything will do."""
    schema = (schemas or {}).get(name)
    kinds = schema.get("type") if isinstance(schema, dict) else None
    wanted = [kinds] if isinstance(kinds, str) else [str(kind) for kind in kinds or ()]
    return [] if "string" in wanted else wanted


def _json(where: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as wrong:
        raise click.UsageError(f"{where} {text!r:.60} is no JSON: {wrong}") from None


def mapping_in(option: str, file: str) -> dict[str, Any]:
    """The JSON or YAML object of a file; `-` is standard input."""
    try:
        text = sys.stdin.read() if file == STDIN else Path(file).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as wrong:
        said = getattr(wrong, "strerror", None) or "it is no text in UTF-8"
        raise click.UsageError(f"{option} {file}: {said}") from None
    return mapping_of(f"{option} {file}", text)


def mapping_of(where: str, text: str) -> dict[str, Any]:
    """The JSON or YAML object of a text."""
    try:
        data = checked_data(read_text(text))
    except Unreadable as wrong:
        line = f" in line {wrong.line}" if wrong.line else ""
        raise click.UsageError(f"{where} {wrong.said}{line}") from None
    if not isinstance(data, dict):
        raise click.UsageError(f'{where}: it must be an object, as in {{"name": "value"}}')
    return data
