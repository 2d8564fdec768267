"""The first page: what is stuck, then how full and how fast everything is."""

from __future__ import annotations

from dataclasses import dataclass, replace

from queue_workflows.views import overview as view
from queue_workflows.views.stuck import Stuck
from queue_workflows.web.page import Look, Shown
from queue_workflows.web.pages.links import Explained, look_of, place
from queue_workflows.web.pages.redacted import redacted_stuck


@dataclass(frozen=True, slots=True)
class Example:
    """A job or a run that stands for a group, and where it is."""

    name: str
    href: str


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
            "stuck": [_linked(look.prefix, one) for one in seen.stuck],
            # A chart goes from the left to now, a view from now backwards.
            "ended": [minute.ended for minute in reversed(seen.minutes)],
            "failed": [minute.failed for minute in reversed(seen.minutes)],
        },
        json=told,
    )


def _linked(prefix: str, one: Stuck) -> tuple[Stuck, str, str, Example | None]:
    """One entry with its look, where its cause is, and where its example is."""
    kind, _, name = (one.example or "").partition(":")
    of = Explained(queue=one.queue)
    if kind == "run":
        of = Explained(run=name, queue=one.queue)
    elif kind:
        of = Explained(job=one.example, queue=one.queue)
    shown = None
    if kind:
        where = f"/runs/{name}" if kind == "run" else f"/jobs/{one.example}"
        shown = Example(f"run {name[:8]}" if kind == "run" else f"{kind}:{name}", prefix + where)
    look = "info" if one.goes_on else look_of(one.code)
    return one, look, prefix + place(one.code, one.data, of), shown
