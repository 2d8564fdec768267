"""A worker and a quarantined device in words: the cells and lines that several commands print."""

from __future__ import annotations

from typing import Final

from queue_workflows.drawing.words import say_span
from queue_workflows.repositories.workers.code import CodeOfWorkers
from queue_workflows.repositories.workers.obedience import Obedience, Standing
from queue_workflows.views.workers.wishes import asked_of

WORKER_TITLES: Final = [
    *("HOST", "QUEUE", "PID", "STATE", "JOB", "UP", "SEEN", "MB", "VERSION"),
    *("APP", "KNOWS", "ASKED"),
]
_AHEAD: Final = {Obedience.PENDING: " (not heard yet)", Obedience.HEARD: " (finishing)", Obedience.OBEYED: ""}


def worker_cells(one: Standing, stale_s: float, code: CodeOfWorkers | None = None) -> list[str]:
    """The cells below `WORKER_TITLES`; `code` is what it knows, if it tells."""
    silent = one.age_s > stale_s
    return [
        one.host_label,
        one.queue,
        str(one.pid),
        f"silent, was {one.state}" if silent else one.state,
        one.current_job or "-",
        say_span((one.last_seen - one.started_at).total_seconds() + one.age_s),
        f"{say_span(one.age_s)} ago",
        str(one.load.get("rss_mb", "-")),
        str(one.versions.get("queue_workflows", "-")),
        one.app_version or "-",
        known_count(code),
        _wanted(one),
    ]


def known_count(code: CodeOfWorkers | None) -> str:
    """How many tasks or modules; a plus says that there may be more, which only a look finds out."""
    return "-" if code is None else f"{len(code.names)}{'+' if code.is_open else ''}"


def _wanted(one: Standing) -> str:
    if one.is_quarantined:
        return "-"
    if one.control is None:
        return "on" if one.obedience() is Obedience.OBEYED else "on (not back yet)"
    return asked_of(one.control) + _AHEAD[one.obedience()]


def lacks_of(one: Standing) -> str:
    """The tasks or modules that a worker met and leaves to others."""
    return f"{one.worker_id} does not know, and leaves to others: {', '.join(one.lacks)}"


def quarantine_of(one: Standing) -> str:
    """What keeps workers from a device, and how that ends."""
    how = f"`qwf workers on {one.host_label} {one.queue}` has it tried again"
    return f"{one.load.get('device')} of {one.host_label} is quarantined: {one.state_reason} — {how}"
