"""Writes subtitles for viewers with another language than the scenes' own."""

from __future__ import annotations

from typing import Any


def run(inputs: dict[str, Any]) -> dict[str, Any]:
    """A line for each scene."""
    return {"lines": [f"[{inputs['language']}] {scene}" for scene in inputs["scenes"]]}
