"""Workflows: which ran of late, and one by its last runs and their nodes."""

from __future__ import annotations

import uuid

from queue_workflows.errors import PayloadError
from queue_workflows.views import workflows as view
from queue_workflows.web.page import Look, Shown, href, part
from queue_workflows.web.rendering.pictures import grid_picture

_MOST_RUNS = 60


def workflows(look: Look) -> Shown:
    """The workflows of the latest runs."""
    found = view.recent_workflows(look.conn)
    told = view.json_of_workflows(found)
    return Shown(
        title="Workflows",
        template="workflows.html",
        command=view.command_of_workflows(),
        data={"found": found, "told": told},
        json=told,
    )


def workflow(look: Look) -> Shown:
    """The last runs of a workflow, and what each of their nodes came to."""
    name, limit = look.parts["workflow"], look.number("limit", view.USUAL, most=_MOST_RUNS)
    before = _run(look.word("before"))
    grid = view.workflow_grid(look.conn, name, before=before, limit=limit)
    here = f"{look.prefix}/workflows/{part(name)}"
    return Shown(
        title=name,
        template="workflow.html",
        command=view.command_of(name, before=before, limit=limit),
        data={
            "grid": grid,
            "picture": grid_picture(grid, look.prefix),
            "further": href(here, before=grid.next) if grid.next else None,
        },
        json=view.json_of(grid),
        is_live=before is None,
    )


def _run(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(text) if text else None
    except ValueError:
        raise PayloadError(f"{text!r:.80} is no run's id", path="before") from None
