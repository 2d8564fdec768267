"""`qwf healthcheck`: a probe from inside a container, for images without a shell and without curl."""

from __future__ import annotations

import json
from contextlib import closing, suppress

import click

from queue_workflows.cli.shared.probe_options import address
from queue_workflows.cli.shared.seconds import Seconds
from queue_workflows.errors import ExitCode

_MOST_BYTES = 65_536


@click.command()
@click.argument("where", metavar="[HOST:]PORT", callback=address)
@click.argument("path", default="/live")
@click.option(
    "--timeout",
    type=Seconds(),
    default=3.0,
    show_default=True,
    help="How many seconds it may take to answer.",
)
def healthcheck(where: tuple[str, int], path: str, timeout: float) -> ExitCode:
    """Ask a process of ours how it is, as a container's probe: 0 if it answers 200, else 1 with the reason.

    PATH is /live or /ready of what was started with --health, /healthz of the operator's page, /metrics of
    `qwf metrics serve`. Nothing but that is asked: neither the database nor the host app's wiring is touched.
    """
    import http.client

    host, port = where
    said = b""
    try:
        with closing(http.client.HTTPConnection(host, port, timeout=timeout)) as connection:
            connection.request("GET", path if path.startswith("/") else f"/{path}")
            answer = connection.getresponse()
            status, said = answer.status, answer.read(_MOST_BYTES)
    except (OSError, http.client.HTTPException, ValueError) as exc:
        click.echo(f"no answer from {host}:{port}: {exc}", err=True)
        return ExitCode.FAILED
    if status == http.client.OK:
        return ExitCode.DONE
    click.echo(f"{host}:{port}{path} answered {status}: {_reason(said)}", err=True)
    return ExitCode.FAILED


def _reason(said: bytes) -> str:
    """Why it is not well, as it says in JSON, or the first line of whatever else it says."""
    with suppress(ValueError, KeyError, TypeError):
        return "; ".join(json.loads(said)["reasons"])
    return said.decode("utf-8", "replace").strip().partition("\n")[0][:200] or "nothing"
