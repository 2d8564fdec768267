"""The wiring of a host app whose tasks look at all that their jobs hold."""

from __future__ import annotations

import os
from typing import Any

from queue_workflows import ModelSpec, ingest_task, set_model_registrar, set_node_resolver


@ingest_task("reads")
def reads(reason: str | None, args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """Everything that a job knows of itself."""
    told = [ctx.job.run_at, ctx.job.created_at, ctx.job.traceparent, ctx.job.dedupe_key, ctx.job.priority]
    return {"pid": os.getpid(), "args": len(args), "told": len(told)}


@ingest_task("fails")
def fails(reason: str | None) -> None:
    raise ValueError("as it always does")


def node(inputs: dict[str, Any], ctx: Any) -> dict[str, Any]:
    told = [ctx.job.run_at, ctx.job.item, ctx.job.step, ctx.job.traceparent]
    return {"pid": os.getpid(), "told": len(told)}


set_node_resolver(lambda module: node if module == "reads" else None)
set_model_registrar(lambda: [ModelSpec("m", load=dict, unload=lambda model: None)])
