"""Connections, the embedded server, LISTEN, and the schema: `bootstrap`, `downgrade`, `wait_for_schema`, and
`include_name` for an `env.py` of the host app's own.

They are loaded on first use: a worker that only connects need not import Alembic.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from queue_workflows.db.migrations import bootstrap, downgrade, wait_for_schema
    from queue_workflows.db.migrations.chain.host_filter import include_name

__all__ = ["bootstrap", "downgrade", "include_name", "wait_for_schema"]

_HOMES: Final = {"include_name": "queue_workflows.db.migrations.chain.host_filter"}


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(_HOMES.get(name, "queue_workflows.db.migrations")), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
