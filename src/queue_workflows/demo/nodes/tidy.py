"""Cleans up, whatever became of the film."""

from __future__ import annotations

from typing import Any


def run(inputs: dict[str, Any]) -> dict[str, Any]:
    """What there was to keep: a film that was not published has no frames."""
    return {"kept": inputs["frames"] or 0}
