"""Where the cause of a reason can be looked at: the thing that it names, or the row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from queue_workflows.config import HOOKS_QUEUE
from queue_workflows.engine.explain.history import Reason
from queue_workflows.states import JobStatus
from queue_workflows.web.page import href, part


@dataclass(frozen=True, slots=True)
class Explained:
    """What an explanation is of; a reason that names nothing else has its cause there."""

    run: str | None = None
    node: str | None = None
    job: str | None = None
    queue: str | None = None
    worker: str | None = None
    host: str | None = None
    schedule: str | None = None
    # The sections of a job's page that not every job has.
    sections: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Linked:
    """A reason, and where its cause is; `look` is the shape of a state that says of which sort it is."""

    code: str
    text: str
    href: str
    look: str

    @property
    def is_obstacle(self) -> bool:
        """Whether it has to go before anything goes on."""
        return self.look in (HELD, "awaiting_input")


Facts: TypeAlias = "Mapping[str, Any]"
Way: TypeAlias = "Callable[[Facts, Explained], str | None]"


def linked(reasons: Iterable[Reason], of: Explained, *, prefix: str) -> list[Linked]:
    """The reasons of an explanation with their causes, in its order."""
    found = []
    for reason in reasons:
        of = _goes_on_with(reason, of)
        found.append(
            Linked(
                reason.code, reason.text, prefix + place(reason.code, reason.data, of), look_of(reason.code)
            )
        )
    return found


def place(code: str, data: Facts, of: Explained) -> str:
    """Where the cause of a reason is, by its kind and facts; at worst what it is of itself."""
    way = WAYS.get(code)
    return (way(data, of) if way is not None else None) or _itself(of)


def look_of(code: str) -> str:
    """The state by which a reason is marked: what is no obstacle does not look like one."""
    return _LOOKS.get(code, HELD)


def _goes_on_with(reason: Reason, of: Explained) -> Explained:
    """What the reasons from here on are of: a run's are of one group of its jobs after the other."""
    data = reason.data
    if reason.code.startswith("jobs_"):
        return Explained(of.run, data["node"], data["first"], data["queue"], sections=of.sections)
    return replace(of, worker=data["worker_id"]) if reason.code == "running" else of


def _itself(of: Explained) -> str:
    if of.job is not None:
        return f"/jobs/{part(of.job)}#row"
    if of.run is not None:
        return f"/runs/{of.run}#history"
    return "/" if of.queue is None else f"/queues/{part(of.queue)}"


# Ways to a thing of the database.


def _queue(_data: Facts, of: Explained) -> str | None:
    return None if of.queue is None else f"/queues/{part(of.queue)}"


def _workers(_data: Facts, of: Explained) -> str | None:
    return href("/workers", queue=of.queue)


def _knowing(data: Facts, of: Explained) -> str | None:
    return "/hooks" if of.queue == HOOKS_QUEUE else _workers(data, of)


def _worker(data: Facts, of: Explained) -> str | None:
    name = data.get("worker_id") or of.worker
    return None if name is None else f"/workers/{part(name)}"


def _host(data: Facts, of: Explained) -> str | None:
    label = data.get("host_label") or data.get("host") or of.host
    return _worker(data, of) if label is None else f"/hosts/{part(label)}"


def _busy(data: Facts, of: Explained) -> str | None:
    name = _first(data.get("jobs"))
    return _queue(data, of) if name is None else f"/jobs/{part(name)}"


def _wish(data: Facts, _of: Explained) -> str | None:
    if data["host_label"] != "*":
        return f"/hosts/{part(data['host_label'])}"
    return "/workers" if data["queue"] == "*" else f"/queues/{part(data['queue'])}"


def _limit(data: Facts, _of: Explained) -> str | None:
    key = data.get("limit_key") or data.get("hold_key") or _first(data.get("keys"))
    return "/limits" if key is None else f"/limits/{part(key)}"


def _lock(data: Facts, of: Explained) -> str | None:
    holder = _first(data.get("holders"))
    if holder is not None:
        return f"/jobs/{part(holder['job'])}"
    return "/hosts" if of.host is None else f"/hosts/{part(of.host)}"


def _was_held(data: Facts, of: Explained) -> str | None:
    is_lane = data.get("hold_reason") == "limit_full" and data.get("hold_key")
    return _limit(data, of) if is_lane else _section("history")(data, of)


def _taken(data: Facts, _of: Explained) -> str | None:
    """Of a job that another one of its directory keeps waiting."""
    return f"/jobs/{part(data['hold_key'])}" if data.get("hold_key") else None


def _failures(_data: Facts, of: Explained) -> str | None:
    return href("/failures", queue=of.queue)


def _later(data: Facts, of: Explained) -> str | None:
    return _section("row")(data, of) if of.schedule is None else f"/schedules/{part(of.schedule)}"


# Ways within a run.


def _run(data: Facts, of: Explained) -> str | None:
    run = data.get("run_id") or of.run
    return None if run is None else f"/runs/{run}"


def _view(view: str) -> Way:
    return lambda _data, of: None if of.run is None else f"/runs/{of.run}?view={view}"


def _node(data: Facts, of: Explained) -> str | None:
    name = data.get("node") or of.node
    return None if of.run is None or name is None else f"/runs/{of.run}/nodes/{part(name)}"


def _failed_node(data: Facts, of: Explained) -> str | None:
    error = data.get("error")
    name = error.get("node") if isinstance(error, Mapping) else None
    return _node({"node": name}, of) if name else _view("nodes")(data, of) or _run(data, of)


def _node_error(data: Facts, of: Explained) -> str | None:
    there = _node(data, of)
    return None if there is None else href(there, state=JobStatus.FAILED.value)


def _answer(data: Facts, of: Explained) -> str | None:
    name = data.get("node") or of.node
    return None if of.run is None or name is None else f"/runs/{of.run}/answer/{part(name)}"


def _parent(data: Facts, of: Explained) -> str | None:
    return _node({"node": _first(data.get("waits_for"))}, of)


def _child(data: Facts, of: Explained) -> str | None:
    if data.get("run_id") is not None:
        return f"/runs/{data['run_id']}"
    return None if of.run is None else f"/runs/{of.run}/children"


def _capped(data: Facts, _of: Explained) -> str | None:
    return None if data.get("capped_by") is None else f"/runs/{data['capped_by']}"


def _event(data: Facts, of: Explained) -> str | None:
    """Of the node that it is about; where it stands for those of many runs, the runs."""
    return _node(data, of) if data.get("node") else _section("history")(data, of)


def _given_up(data: Facts, of: Explained) -> str | None:
    return _event(data, of) if "event" in data else "/runs?q=poisoned:yes"


def _to(address: str) -> Way:
    return lambda _data, _of: address


def _section(name: str) -> Way:
    """A part of the page of what is explained: each job's has its history and its row."""

    def way(_data: Facts, of: Explained) -> str | None:
        if of.job is not None:
            there = name in ("history", "row") or name in of.sections
            return f"/jobs/{part(of.job)}#{name if there else 'row'}"
        return None if of.run is None else f"/runs/{of.run}#history"

    return way


def _took(data: Facts, of: Explained) -> str | None:
    return _view("timeline")(data, of) if of.job is None else _section("time")(data, of)


def _jobs_of(status: str) -> Way:
    def way(data: Facts, of: Explained) -> str | None:
        there = _node(data, of)
        return href("/jobs", q=f"status:{status}") if there is None else href(there, state=status)

    return way


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, Sequence) and not isinstance(value, str) and value else None


# What keeps a run from going on is no row of its own: the first page says how far orchestrators are.
_OUTBOX: Final = _to("/#outbox")

WAYS: Final[Mapping[str, Way]] = {
    # A job that waits.
    "schema_refused": _to("/doctor"),
    "wrong_queue": _queue,
    "queue_pause": _wish,
    "queue_off": _wish,
    "device_quarantined": _host,
    "no_worker": _queue,
    "no_free_worker": _workers,
    "all_busy": _busy,
    "host_gone": _run,
    "unknown_task": _knowing,
    "unknown_module": _knowing,
    "suspect": _section("attempts"),
    "model_cold": _to("/models"),
    "model_warm": _to("/models"),
    "left_to_peer": _worker,
    "behind": _queue,
    "next": _queue,
    "due": _queue,
    "scheduled": _later,
    "retry": _section("attempts"),
    "retry_after": _section("attempts"),
    # A job on hold.
    "limit_full": _limit,
    "host_lock": _lock,
    "not_shared": _host,
    "binary_missing": _to("/binaries"),
    "model_unknown": _to("/models"),
    "step_taken": _taken,
    # A durable function that waits.
    "asleep": _section("steps"),
    "event": _section("steps"),
    "children": _section("steps"),
    # A job that runs, or is over.
    "running": _worker,
    "progress": _section("values"),
    "lease_lapsed": _worker,
    "worker_silent": _worker,
    "waits_for_rate": _to("/rates"),
    "waits_for_limit": _limit,
    "waits_for_host_lock": _host,
    "ended": _section("history"),
    "last_error": _failures,
    "was_held": _was_held,
    "was_paused": _queue,
    "waited": _section("time"),
    "took": _took,
    # A node, or a job of one.
    "run_cancelled": _run,
    "parents": _parent,
    "ready": _OUTBOX,
    "node_error": _node_error,
    "session_lost": _node_error,
    "wait": _node,
    "descendants": _child,
    "child_run": _child,
    "expired": _answer,
    "awaiting_input": _answer,
    # A run.
    "run_over": _failed_node,
    "cancelling": _section("history"),
    "stopping": _view("nodes"),
    "nodes_waiting": _view("nodes"),
    "foreign_mode": _section("history"),
    "not_begun": _OUTBOX,
    "events_due": _OUTBOX,
    "no_orchestrator": _OUTBOX,
    "open_runs": _capped,
    "set_up": _run,
    "setup_over": _run,
    "poisoned": _given_up,
    "event_failing": _event,
    **{f"jobs_{status}": _jobs_of(status.value) for status in JobStatus},
}
HELD: Final = "held"
_LOOKS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("running", "jobs_running", "progress"), "running"),
    **dict.fromkeys(("awaiting_input", "jobs_awaiting_input"), "awaiting_input"),
    **dict.fromkeys(("scheduled", "retry", "retry_after", "wait", "due", "jobs_scheduled"), "scheduled"),
    **dict.fromkeys(("waits_for_rate", "waits_for_limit", "waits_for_host_lock"), "scheduled"),
    **dict.fromkeys(("asleep", "event", "children"), "scheduled"),
    **dict.fromkeys(
        (
            *("behind", "next", "all_busy", "suspect", "model_cold", "model_warm", "left_to_peer", "waited"),
            *("was_held", "was_paused", "took", "ended", "last_error", "lease_lapsed", "jobs_queued"),
            *("jobs_completed", "jobs_skipped", "jobs_failed", "jobs_cancelled", "parents", "ready"),
            *("child_run", "descendants", "nodes_waiting", "not_begun", "events_due", "set_up", "cancelling"),
            *("run_over", "foreign_mode"),
        ),
        "info",
    ),
}
