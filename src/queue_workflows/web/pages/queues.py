"""Queues: how full they are and how they move, what each would run next, what its jobs waited for."""

from __future__ import annotations

from queue_workflows.views.queues import next_jobs, stats, waits
from queue_workflows.web.page import MOST_ROWS, ROWS, Look, Shown


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


def all_waits(look: Look) -> Shown:
    """What jobs waited for that ended lately, of every queue or of one."""
    since, queue = look.span("since", "1d"), look.word("queue") or None
    found = waits.queue_waits(look.conn, since_s=since, queue=queue)
    rows = [
        (one, cause, waits.said_of_cause(cause), cause.seconds / one.waited_s if one.waited_s else 0.0)
        for one in found.queues
        for cause in one.causes
    ]
    return Shown(
        title="Waits",
        template="waits.html",
        command=waits.command_of(since_s=since, queue=queue),
        data={
            "found": found,
            "rows": rows[:MOST_ROWS],
            "more": max(0, len(rows) - MOST_ROWS),
            "since": look.word("since", "1d"),
            "queue": queue,
        },
        json=waits.json_of(found),
        is_live=False,
    )
