"""Makes scenes of a brief."""

from __future__ import annotations

from typing import Any, Final

_TIMES: Final = ("dawn", "morning", "noon", "dusk", "moonrise", "midnight")


def run(inputs: dict[str, Any]) -> dict[str, Any]:
    """A scene for each time of the day."""
    return {"scenes": [f"{inputs['brief']}, at {time}" for time in _TIMES]}
