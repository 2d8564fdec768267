"""Draws one scene. The first one that a worker draws loads the model; the worker keeps it for those after."""

from __future__ import annotations

import time
from typing import Any, Final

from queue_workflows import JobContext
from queue_workflows.demo.landscape import load

_STROKES: Final = 5
_STROKE_S: Final = 0.08


def run(inputs: dict[str, Any], ctx: JobContext) -> dict[str, Any]:
    """The picture, and whether the model was warm."""
    began = time.monotonic()
    was_warm = load.cache_info().currsize > 0
    landscape = load()
    load_s = time.monotonic() - began
    for stroke in range(_STROKES):
        ctx.progress(stroke / _STROKES, inputs["scene"])
        ctx.sleep(_STROKE_S)
    picture = landscape.picture(inputs["number"])
    return {"picture": picture, "warm": was_warm, "load_s": round(load_s, 2)}
