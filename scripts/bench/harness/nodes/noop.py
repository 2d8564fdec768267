"""Nothing: what is left is the engine."""

from __future__ import annotations

from typing import Any


def run(_inputs: dict[str, Any]) -> None:
    return None
