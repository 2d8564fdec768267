"""Where a process of ours is asked how it is: the addresses of probes, and the options that name them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click


def address(_ctx: click.Context, _param: click.Parameter, value: str | None) -> tuple[str, int] | None:
    """`PORT` or `HOST:PORT`, as an option's callback; a port alone is one of the loopback address."""
    host, _, port = (value or "").rpartition(":")
    if value is None:
        return None
    if not (port.isascii() and port.isdecimal() and int(port) <= 65_535) or (":" in value and not host):
        raise click.BadParameter(f"{value!r} is neither a port nor an address and a port")
    return host.strip("[]") or "127.0.0.1", int(port)


def probe_options(role: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Where a process of this role says whether it lives and is ready."""

    def decorated(command: Callable[..., Any]) -> Callable[..., Any]:
        to_file = click.option(
            "--health-file",
            type=click.Path(dir_okay=False, path_type=Path),
            help=f"Write the same answer to this file, each second while the {role} is live.",
        )
        by_http = click.option(
            "--health",
            metavar="[HOST:]PORT",
            callback=address,
            help="Answer GET /live and /ready there, on the loopback address unless said.",
        )
        return by_http(to_file(command))

    return decorated
