"""Writes subtitles, for those who do not read the scenes' own language."""

from __future__ import annotations

from typing import Any


def run(inputs: dict[str, Any]) -> dict[str, Any]:
    """A line for each scene."""
    return {"lines": [f"[{inputs['language']}] {scene}" for scene in inputs["scenes"]]}
