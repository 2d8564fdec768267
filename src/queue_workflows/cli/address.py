"""Addresses on the command line, for probes to ask at."""

from __future__ import annotations

import click


def address(_ctx: click.Context, _param: click.Parameter, value: str | None) -> tuple[str, int] | None:
    """`PORT` or `HOST:PORT`, as an option's callback; a port alone is one of the loopback address."""
    host, _, port = (value or "").rpartition(":")
    if value is None:
        return None
    if not (port.isascii() and port.isdecimal() and int(port) <= 65_535) or (":" in value and not host):
        raise click.BadParameter(f"{value!r} is neither a port nor an address and a port")
    return host.strip("[]") or "127.0.0.1", int(port)
