"""The command line: one module per command group, each only parsing, calling and printing."""

from __future__ import annotations

from typing import NamedTuple


class Invocation(NamedTuple):
    """What stood before the command: `ctx.obj` of every command."""

    db_url: str | None = None
    app: str | None = None
    debug: bool = False
