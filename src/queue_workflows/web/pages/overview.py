"""The first page: what is stuck, then how full and how fast everything is."""

from __future__ import annotations

from dataclasses import replace

from queue_workflows.views import overview as view
from queue_workflows.views.stuck import Stuck
from queue_workflows.web.page import Look, Shown, href
from queue_workflows.web.pages.redacted import redacted_stuck


def overview(look: Look) -> Shown:
    """All of it at a glance."""
    seen = view.read_overview(look.conn, look.knowledge())
    seen = replace(seen, stuck=[redacted_stuck(one, look.redaction) for one in seen.stuck])
    told = view.json_of(seen)
    return Shown(
        title="Overview",
        template="overview.html",
        command=view.command_of(),
        data={
            "seen": seen,
            "told": told,
            "stuck": [(one, _place(look.prefix, one)) for one in seen.stuck],
            # A chart goes from the left to now, a view from now backwards.
            "ended": [minute.ended for minute in reversed(seen.minutes)],
            "failed": [minute.failed for minute in reversed(seen.minutes)],
        },
        json=told,
    )


def _place(prefix: str, one: Stuck) -> str | None:
    """Where the example is, or else the queue."""
    name = one.example or ""
    if name.startswith(("ingest:", "node:")):
        return f"{prefix}/jobs/{name}"
    if name.startswith("run:"):
        return f"{prefix}/runs/{name.removeprefix('run:')}"
    return None if one.queue is None else href(f"{prefix}/queues/{one.queue}")
