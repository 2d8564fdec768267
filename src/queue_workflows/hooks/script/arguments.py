"""From a run's inputs to a script's arguments: `--key=value`, which any language can read.

url="https://example.org/"   --url=https://example.org/
depth=2, ratio=0.5           --depth=2  --ratio=0.5
enable_js=True               --enable-js              (False and None: no argument at all)
tags=["a", "b,c"]            --tags=a,"b,c"           (one line of CSV)
overrides={"pip": [...]}     --overrides={"pip":[...]}
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from queue_workflows.errors import PayloadError
from queue_workflows.payload import check_payload

_KEY: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,199}")
# The kernel takes no single argument of more than 128 KiB, its ending NUL included.
LONGEST_ARGUMENT: Final = 131_071


def hook_arguments(inputs: Mapping[str, Any]) -> list[str]:
    """The arguments for these inputs, in their order; `PayloadError` names one that cannot be an argument."""
    arguments: dict[str, str] = {}
    for key, value in inputs.items():
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise PayloadError(
                f"input {str(key)[:60]!r} cannot be the name of an argument",
                path=f"inputs[{str(key)[:60]!r}]",
                advice="a letter, then letters, digits and any of `_ . -`",
            )
        option = f"--{key.replace('_', '-')}"
        if option in arguments:
            raise PayloadError(
                f"two inputs would both be {option}",
                path=f"inputs.{key}",
                advice="a `_` and a `-` in a name are the same to a script: rename one",
            )
        if value is not None and value is not False:
            arguments[option] = _checked(key, option if value is True else f"{option}={argument_text(value)}")
    return list(arguments.values())


def config_in(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The values for plugins among a run's inputs; `PayloadError` if they are none."""
    given = inputs.get("config")
    if given is not None and not isinstance(given, dict):
        raise PayloadError(
            f"input 'config' is {str(given)[:60]!r}, and no object of plugins' values",
            path="inputs.config",
            advice='as in {"TITLE_TIMEOUT": 30}',
        )
    return dict(given or {})


def argument_text(value: Any) -> str:
    """A value as a script reads it: a text as it is, a list of plain values as CSV, anything else as JSON."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, list | tuple) and not any(isinstance(one, dict | list | tuple) for one in value):
        return _csv_line(value)
    return check_payload(value)


def _csv_line(values: Sequence[Any]) -> str:
    line = io.StringIO()
    # The writer quotes what holds a part of its line end, so this one has both; and a single empty text.
    csv.writer(line, lineterminator="\r\n").writerow([_element(one) for one in values])
    return line.getvalue().removesuffix("\r\n")


def _element(value: Any) -> str:
    return str(value) if isinstance(value, str) else check_payload(value)


def _checked(key: str, argument: str) -> str:
    try:
        size = len(argument.encode())
    except UnicodeEncodeError:
        raise PayloadError(
            f"input {key!r} holds half a character, a lone surrogate",
            path=f"inputs.{key}",
            advice="decode it with errors='replace'",
        ) from None
    if "\0" in argument:
        raise PayloadError(
            f"input {key!r} holds a NUL, which no argument of a program can", path=f"inputs.{key}"
        )
    if size > LONGEST_ARGUMENT:
        raise PayloadError(
            f"input {key!r} is too long for an argument: {size:,} bytes of at most {LONGEST_ARGUMENT:,}",
            path=f"inputs.{key}",
            advice="write it to a file and hand over its path",
        )
    return argument
