"""A node of version 1.8."""

from __future__ import annotations

from typing import Any


def run(inputs: dict[str, Any]) -> dict[str, Any]:
    return {"app": "1.8"}
