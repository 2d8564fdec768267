"""The command line: one module per command group, each only parsing, calling and printing."""

from __future__ import annotations

from typing import NamedTuple


class Invocation(NamedTuple):
    """What the options of every command said: `ctx.obj` of each."""

    db_url: str | None = None
    app: str | None = None
    debug: bool = False
    quiet: bool = False
