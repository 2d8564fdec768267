"""Queues: how full they are, and how fast they move."""

from __future__ import annotations

from queue_workflows.errors import PayloadError
from queue_workflows.views.filters.spans import seconds_of
from queue_workflows.views.queues import stats
from queue_workflows.web.pages.page import Look, Shown


def queues(look: Look) -> Shown:
    """What waits, runs and ended on each queue, and which workers are there."""
    since = seconds_of(look.word("since", "1h"))
    if since is None:
        raise PayloadError("since takes a length of time, as 90s, 2h or 7d", path="since")
    queue = look.word("queue") or None
    seen = stats.queue_stats(look.conn, stale_s=look.settings.stale_heartbeat_s, window_s=since, queue=queue)
    return Shown(
        title="Queues",
        template="queues.html",
        command=stats.command_of(queue=queue, window_s=since),
        data={"seen": seen, "queue": queue},
        json=stats.json_of(seen),
    )
