"""Labels as operators write them: `name=text`, or `name:=JSON` for what is no text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from queue_workflows.errors import FilterRefused


def labels_of(values: Sequence[str]) -> dict[str, Any] | None:
    """The labels by their names; None where there is none."""
    labels: dict[str, Any] = {}
    for value in values:
        name, equals, text = value.partition("=")
        plain_name = name.removesuffix(":")
        if not equals or not plain_name:
            raise FilterRefused(f"label {value!r:.80}: write name=text, or name:=JSON", word=f"label:{value}")
        label = _json(value, text) if name.endswith(":") else text
        if labels.setdefault(plain_name, label) != label:
            raise FilterRefused(f"label {plain_name!r:.80} is given twice", word=f"label:{value}")
    return labels or None


def _json(value: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as wrong:
        said = f"label {value!r:.80}: {text!r:.60} is no JSON: {wrong}"
        raise FilterRefused(said, word=f"label:{value}") from None
