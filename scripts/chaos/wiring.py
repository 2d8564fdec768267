"""The host app of the roles under attack: every behaviour is a task, and a node module of the same name."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

from chaos import ledger
from chaos.behaviours import BEHAVIOURS, Behaviour
from chaos.tasks import MODULES
from queue_workflows import (
    ResourceKind,
    configure,
    ingest_task,
    register_resource_kind,
    set_ingest_schedule,
    set_node_resolver,
)

assert MODULES  # importing them fills the table


def _sync(one: Behaviour) -> Any:
    def run(args: dict[str, Any], ctx: Any) -> Any:
        ledger.write("B", ctx, one.name)
        try:
            return one.run(args, ctx)
        finally:
            ledger.write("E", ctx)

    return run


def _async(one: Behaviour) -> Any:
    async def run(args: dict[str, Any], ctx: Any) -> Any:
        ledger.write("B", ctx, one.name)
        try:
            return await one.run(args, ctx)
        finally:
            ledger.write("E", ctx)

    return run


def _task(one: Behaviour, run: Any) -> Any:
    if one.is_async:

        async def task(reason: str | None, args: dict[str, Any], ctx: Any) -> Any:
            return await run(args, ctx)

    else:

        def task(reason: str | None, args: dict[str, Any], ctx: Any) -> Any:
            return run(args, ctx)

    return task


def _module(one: Behaviour, run: Any) -> Any:
    if one.is_async:

        async def node(inputs: dict[str, Any], ctx: Any) -> Any:
            return await run(inputs, ctx)

    else:

        def node(inputs: dict[str, Any], ctx: Any) -> Any:
            return run(inputs, ctx)

    return SimpleNamespace(run=node)


configure(ingest_queues={"fetch", "load"})
_MODULES: dict[str, Any] = {}
for _each in BEHAVIOURS.values():
    _run = _async(_each) if _each.is_async else _sync(_each)
    ingest_task(_each.name, queue="fetch")(_task(_each, _run))
    _MODULES[_each.name] = _module(_each, _run)
set_node_resolver(_MODULES.get)


def declare() -> None:
    """The schedules of this history, which its environment names: a process that was forked has its own."""
    import json

    set_ingest_schedule(json.loads(os.environ.get("CHAOS_SCHEDULES", "[]")))


if os.environ.get("CHAOS_RESOURCES"):
    # A janitor wants something to look after; it finds none of these.
    register_resource_kind(ResourceKind("chaos-thing", r"chaos-\d+", discover=list, teardown=print))
declare()
