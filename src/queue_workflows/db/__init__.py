"""Connections, the embedded server, LISTEN, and the schema: `bootstrap`, `downgrade`, `wait_for_schema`.

The verbs are loaded on first use: a worker that only connects need not import Alembic.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from queue_workflows.db.migrations import bootstrap, downgrade, wait_for_schema

__all__ = ["bootstrap", "downgrade", "wait_for_schema"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("queue_workflows.db.migrations"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
