"""Queues: how full they are and how fast they move, and what each would run next."""

from __future__ import annotations

from queue_workflows.views.queues import next_jobs, stats
from queue_workflows.web.page import ROWS, Look, Shown


def queues(look: Look) -> Shown:
    """Every queue that has jobs or workers, or one of them."""
    since, queue = look.span("since", "1h"), look.word("queue") or None
    seen = stats.queue_stats(look.conn, stale_s=look.settings.stale_heartbeat_s, window_s=since, queue=queue)
    return Shown(
        title="Queues",
        template="queues.html",
        command=stats.command_of(queue=queue, window_s=since),
        data={"seen": seen},
        json=stats.json_of(seen),
    )


def one_queue(look: Look) -> Shown:
    """One queue, with its next jobs in the claim's own order."""
    queue, limit = look.parts["queue"], look.number("limit", ROWS)
    stale_s = look.settings.stale_heartbeat_s
    there = stats.attendance(look.conn)
    seen = stats.queue_stats(look.conn, stale_s=stale_s, queue=queue, there=there)
    coming = next_jobs.next_jobs(look.conn, queue, limit=limit, stale_s=stale_s, there=there)
    return Shown(
        title=queue,
        template="queue.html",
        command=next_jobs.command_of(queue, limit=limit),
        data={
            "queue": queue,
            "seen": seen,
            "coming": coming,
            "lanes": stats.lanes(look.conn, queue),
        },
        json=next_jobs.json_of(coming),
    )
