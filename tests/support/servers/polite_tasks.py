"""A host app that asks a server of the test, and declares how much: limits that adapt, in its own wiring."""

from __future__ import annotations

import urllib.error
import urllib.request
from typing import Any

from queue_workflows import Adaptive, Rate, RetryAfter, configure, ingest_task

CEILING = 120.0
configure(
    limits={
        "server": Adaptive(Rate(CEILING, burst=20), floor=2, doubles_s=2),
        "seats": Adaptive(16, floor=1, doubles_s=2),
    }
)


@ingest_task("ask", queue="fetch")
def ask(reason: str | None, args: dict[str, Any], ctx: Any) -> None:
    """One request for a token; what is refused is asked again later."""
    ctx.rate("server")
    get(args["url"])


@ingest_task("sit", queue="fetch", limit_key="seats")
def sit(reason: str | None, args: dict[str, Any]) -> None:
    """One request under the job's own key."""
    get(args["url"])


def get(url: str) -> None:
    """Ask; the client raises what the server answers."""
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            answer.read()
    except urllib.error.HTTPError as refused:
        if refused.code != 429:
            raise
        raise RetryAfter(0.1, "429") from refused
