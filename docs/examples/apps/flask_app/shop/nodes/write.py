"""The report as a text."""

from __future__ import annotations

from typing import Any


def run(inputs: dict[str, Any]) -> dict[str, Any]:
    """One line an item, below the title."""
    lines = [f"{line['item']}: {line['count']}" for line in inputs["sold"]]
    return {"text": "\n".join([inputs["title"], *lines])}
