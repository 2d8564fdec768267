"""What the jobs of queues waited for that ended lately, and how many job-hours each cause took."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import Any, Final

import psycopg

from queue_workflows.engine.explain.queue_waits import OTHERS, WaitCause, Waits
from queue_workflows.engine.explain.queue_waits import queue_waits as waits_of
from queue_workflows.engine.explain.time_spent import json_of_cause, said_of
from queue_workflows.repositories.reports.queue_statistics import StatisticsRepository
from queue_workflows.views.filters import spans

SINCE_S: Final = 86_400.0
# So many of each queue are counted to see whether there is one at all.
MOST: Final = 1


def queue_waits(
    connection: psycopg.Connection[Any], *, since_s: float = SINCE_S, queue: str | None = None
) -> Waits:
    """Every queue of which a job ended, or one; read within one snapshot, so that its parts fit together."""
    return waits_of(connection, since_s=since_s, queue=queue)


def is_known(connection: psycopg.Connection[Any], queue: str) -> bool:
    """Whether something waits or runs on a queue, or ended there lately, or a worker serves it."""
    seen = StatisticsRepository(connection).read(stale_s=SINCE_S, most=MOST)
    return queue in {one.queue for one in seen.queues}


def said_of_cause(one: WaitCause) -> str:
    """A cause in words."""
    return "other causes" if one.cause == OTHERS else said_of(one.cause)


def json_of(found: Waits) -> dict[str, Any]:
    """What `qwf queue waits --json` prints."""
    return {
        "at": found.at,
        "since_s": found.since_s,
        "queues": [
            asdict(one)
            | {
                "causes": [
                    {**json_of_cause(cause.cause), "jobs": cause.jobs, "seconds": cause.seconds}
                    for cause in one.causes
                ]
            }
            for one in found.queues
        ],
    }


def command_of(*, since_s: float = SINCE_S, queue: str | None = None) -> str:
    """The command that shows it."""
    words = ["qwf", "queue", "waits"] + ([] if queue is None else ["--queue", queue])
    return shlex.join(words if since_s == SINCE_S else [*words, "--since", spans.text_of(since_s)])
