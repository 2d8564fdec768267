"""The wiring of a host app with models: what they and their nodes do is written down, and waits where told.

Everything is files of one directory, `MODELS_AT`: `log` has a line for each load, unload and run; a load
waits while `loading-NAME` is there, an unload while `unloading-NAME`, a node while `running-NODE` is.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from queue_workflows import JobContext, ModelSpec, set_model_registrar, set_node_resolver

PLACE = Path(os.environ["MODELS_AT"])


def _note(what: str, name: str) -> None:
    with (PLACE / "log").open("a") as log:
        log.write(f"{what} {name}\n")


def _wait_while(name: str) -> None:
    while (PLACE / name).exists():
        time.sleep(0.02)


def _load(name: str) -> dict[str, str]:
    _note("load", name)
    _wait_while(f"loading-{name}")
    if name == "broken":
        raise OSError("its weights are gone")
    return {"name": name}


def _unload(name: str) -> None:
    _note("unload", name)
    _wait_while(f"unloading-{name}")


def draw(inputs: dict[str, Any], ctx: JobContext, model: Any) -> dict[str, Any]:
    _note("run", f"{ctx.node_id}:{model and model['name']}")
    _wait_while(f"running-{ctx.node_id}")
    return {"model": model, "pid": os.getpid()}


async def draw_async(inputs: dict[str, Any], ctx: JobContext, model: Any) -> dict[str, Any]:
    return draw(inputs, ctx, model)


def draw_and_stall(inputs: dict[str, Any], ctx: JobContext, model: Any) -> dict[str, Any]:
    """Says something once; as long as it waits it says nothing more."""
    ctx.progress(0.1)
    return draw(inputs, ctx, model)


def models() -> list[ModelSpec]:
    return [
        ModelSpec(name, load=lambda name=name: _load(name), unload=lambda model: _unload(model["name"]))
        for name in os.environ.get("MODELS", "a b broken").split()
    ]


set_model_registrar(models)
set_node_resolver({"draw": draw, "draw_async": draw_async, "draw_and_stall": draw_and_stall}.get)
