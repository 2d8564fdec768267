"""What can be asked: each tool with its arguments, and the page that answers it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from queue_workflows.errors import PayloadError
from queue_workflows.repositories.runs.runs import named_run
from queue_workflows.repositories.sql.families import named_job
from queue_workflows.views.filters import jobs as job_filters
from queue_workflows.views.filters import runs as run_filters
from queue_workflows.views.jobs.names import name_of
from queue_workflows.web.page import MOST_ROWS, Look, Shown
from queue_workflows.web.pages import jobs, operations, queues, runs, workers

USUAL_ROWS: Final = 20
JOB_NAME: Final = "A job: ingest:7 or node:7."
RUN_ID: Final = "A run's whole id."

Schema = Mapping[str, Any]
Arguments = Mapping[str, Any]


@dataclass(frozen=True)
class Asked:
    """A page, and what it is asked; `path` is what `authorize` is asked about."""

    path: str
    show: Callable[[Look], Shown]
    parts: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Tool:
    """A question, its arguments as JSON schemas, and which page answers it."""

    name: str
    description: str
    arguments: Mapping[str, Schema]
    page: Callable[[Arguments], Asked]
    needed: tuple[str, ...] = ()
    # What is answered even while the database is away, on a thread of its own.
    needs_database: bool = True

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of all arguments together."""
        return schema_of(self.arguments, self.needed)


def schema_of(arguments: Mapping[str, Schema], needed: tuple[str, ...]) -> dict[str, Any]:
    """An object of exactly these arguments."""
    return {
        "type": "object",
        "properties": {name: dict(schema) for name, schema in arguments.items()},
        "required": list(needed),
        "additionalProperties": False,
    }


def text(description: str, longest: int = 400) -> Schema:
    """An argument that is text."""
    return {"type": "string", "minLength": 1, "maxLength": longest, "description": description}


def _where(keys: Mapping[str, str] | tuple[str, ...]) -> Schema:
    return text(
        f"A filter of KEY:VALUE words with the keys {', '.join(keys)}; a value with blanks in double quotes, "
        "spans as 90s, 2h or 7d. Left out: all of them.",
        longest=4096,
    )


_LIMIT: Final = {
    "type": "integer",
    "minimum": 1,
    "maximum": MOST_ROWS,
    "default": USUAL_ROWS,
    "description": "How many at most, the newest first.",
}


_BEFORE: Final = text(
    "Go on behind an earlier answer: what it said by `before`. One that has none was the last; one with few "
    "lines may still have one, as a search stops after a while.",
    100,
)


def _words(given: Arguments, **names: str) -> dict[str, str]:
    """The page's words for these arguments; what was left out stays out."""
    return {word: _word(given[name]) for word, name in names.items() if given.get(name) is not None}


def _word(value: Any) -> str:
    return ("1" if value else "") if isinstance(value, bool) else str(value)


def _list(path: str, show: Callable[[Look], Shown], given: Arguments) -> Asked:
    limit = str(given.get("limit", USUAL_ROWS))
    return Asked(path, show, words=_words(given, q="where", before="before") | {"limit": limit})


def _explain(given: Arguments) -> Asked:
    what = given["what"].strip()
    job = named_job(what)
    if job is not None and job[0] is not None:
        if given.get("node"):
            raise PayloadError("a node goes with a run", path="node")
        name = name_of(job[0], job[1])
        return Asked(f"/jobs/{name}/explain", jobs.explained, {"job": name})
    run = _run(what, "write ingest:7 or node:7 for a job, and a run's whole id")
    return Asked(f"/runs/{run}/explain", runs.explained, {"run": run}, _words(given, node="node"))


def _run_show(given: Arguments) -> Asked:
    run = _run(given["run"], "list_runs has the ids")
    # The view with the cheapest pictures: no program looks at them.
    return Asked(f"/runs/{run}", runs.one_run, {"run": run}, {"view": "nodes"})


def _run(name: str, advice: str) -> str:
    found = named_run(name.strip())
    if found is None:
        raise PayloadError(f"{name!r:.80} is neither a job nor a run's id", path="what", advice=advice)
    return str(found)


TOOLS: Final = (
    Tool(
        "explain",
        "Why a job or a run does not go on, what it is at, or how it ended: reasons with codes, and its "
        "history. Ask this first about anything that seems stuck.",
        {
            "what": text(f"{JOB_NAME} Or {RUN_ID}"),
            "node": text("With a run: only this node of it."),
        },
        _explain,
        needed=("what",),
    ),
    Tool(
        "list_jobs",
        "The newest jobs that match a filter.",
        {"where": _where(job_filters.KEYS), "limit": _LIMIT, "before": _BEFORE},
        lambda given: _list("/jobs", jobs.jobs, given),
    ),
    Tool(
        "list_runs",
        "The newest runs of workflows that match a filter.",
        {"where": _where(run_filters.KEYS), "limit": _LIMIT, "before": _BEFORE},
        lambda given: _list("/runs", runs.runs, given),
    ),
    Tool(
        "run_show",
        "One run: its nodes with what each is at, and what operators did to it. Of a run with many nodes "
        "only the first are shown; list_jobs finds the others, as by 'run:ID status:failed'.",
        {"run": text(RUN_ID)},
        _run_show,
        needed=("run",),
    ),
    Tool(
        "queue_stats",
        "What waits, runs and ended on each queue, how fast, and which workers and wishes are there.",
        {"queue": text("Only this queue."), "since": text("Count what ended in it, as 1h.", 40)},
        lambda given: Asked("/queues", queues.queues, words=_words(given, queue="queue", since="since")),
    ),
    Tool(
        "failures",
        "What failed lately, in groups of queue, task and last error, the most frequent first.",
        {"queue": text("Only this queue."), "since": text("How far back, as 7d.", 40)},
        lambda given: Asked("/failures", jobs.failed, words=_words(given, queue="queue", since="since")),
    ),
    Tool(
        "workers",
        "Every worker: what it does, when it was seen, and what operators asked of it.",
        {
            "host": text("Only of this host."),
            "queue": text("Only of this queue."),
            "all": {"type": "boolean", "description": "Also those that were not heard of for an hour."},
        },
        lambda given: Asked(
            "/workers", workers.workers, words=_words(given, host="host", queue="queue", all="all")
        ),
    ),
    Tool(
        "doctor",
        "What is the matter with the database and this set-up, and what to do about it.",
        {},
        lambda _given: Asked("/doctor", operations.doctor),
        needs_database=False,
    ),
)
