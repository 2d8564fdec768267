"""A queue as it was read, in the form in which it is played."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from queue_workflows.engine.forecast.replay import Arriving
from queue_workflows.repositories.forecast.ended import EndedRow
from queue_workflows.repositories.forecast.queue_now import CapInUse, JobFacts, LaneJob, LaterJob, QueueNow
from queue_workflows.repositories.reports.next_jobs import QueuedJob
from queue_workflows.repositories.sql.families import INGEST
from queue_workflows.repositories.workers.jobs_at_work import JobAtWork
from queue_workflows.states import WorkerState
from queue_workflows.views.forecast.changes import Changes, read_changes
from queue_workflows.views.forecast.loads import arrivals, fleet_of, history_of, load_of

AT = datetime(2026, 1, 1, tzinfo=UTC)


def queued(job_id: int, *, key: str | None = None, priority: int = 5, suspect: bool = False) -> QueuedJob:
    return QueuedJob("ingest", job_id, "task", None, priority, job_id, AT, 0, suspect, key, None, None, None)


def worker(name: str, host: str, slots: int = 1, state: WorkerState = WorkerState.BUSY) -> Any:
    return SimpleNamespace(worker_id=name, host_label=host, load={"slots": slots}, state=state, control=None)


def at_work(job_id: int, name: str, key: str | None = None) -> JobAtWork:
    return JobAtWork("ingest", job_id, "task", "fetch", name, 1, AT, AT, key, None, False)


def now(**more: Any) -> QueueNow:
    ids = [job.id for jobs in more.values() for job in jobs if hasattr(job, "id")]
    found: dict[str, Any] = {"line": [], "lane": [], "later": [], "at_work": [], "caps": {}, "workers": []}
    found |= {"queued": 0, "facts": {each: JobFacts("task", 9.0, 2.0) for each in ids}, "ended": []}
    return QueueNow(family=INGEST, queue="fetch", **(found | more))


def test_the_order_of_what_waits() -> None:
    """Jobs out of lanes in between, their keys in turn, none before an older one; suspects last."""
    read = now(
        line=[queued(1), queued(2), queued(9), queued(3, suspect=True)],
        lane=[LaneJob(4, 5, 4, "a", None), LaneJob(5, 5, 5, "a", None), LaneJob(6, 5, 6, "b", None)],
        later=[LaterJob(7, 5, None, "disk", 3.0)],
    )
    load = load_of(read, history_of(read))
    assert [row.name for row in load.waiting] == [f"ingest:{n}" for n in (1, 2, 4, 9, 3, 6, 5, 7)]
    assert [row.priority for row in load.waiting] == [5, 5, 5, 5, -1, 5, 5, 5]
    assert (load.waiting[-1].due_s, load.waiting[-1].keys) == (3.0, ("lock disk",))
    assert load.caps == {"lock disk": 1}


def test_none_of_a_key_passes_what_stands_in_line() -> None:
    """What waits in a lane comes behind what came out of it already."""
    read = now(
        line=[queued(7), queued(8), queued(1, key="a"), queued(9)],
        lane=[LaneJob(2, 5, 2, "a", None), LaneJob(3, 5, 3, "b", None)],
    )
    names = [row.name for row in load_of(read, history_of(read)).waiting]
    assert names == [f"ingest:{n}" for n in (3, 7, 8, 1, 2, 9)]


def test_what_a_fleet_becomes() -> None:
    """More workers are as large as those there are; what is off gives back; what stops ends its job first."""
    read = now(
        workers=[worker("w1", "h1", 4), worker("w2", "h2", 4), worker("w3", "h3", state=WorkerState.PAUSED)],
        at_work=[at_work(1, "w1"), at_work(2, "w2", "k"), at_work(3, "w3")],
        caps={"k": CapInUse(3, 2)},
    )
    assert (fleet_of(read).slots, fleet_of(read).workers) == ({"h1": 4, "h2": 4}, 2)
    assert fleet_of(read, read_changes(workers=["fetch=3"])).slots == {"h1": 8, "h2": 4}
    load = load_of(read, history_of(read), read_changes(off=["fetch@h2"], limits=["k*=9"]))
    assert ([row.name for row in load.waiting], load.slots) == (["ingest:2"], {"h1": 4})
    assert [(row.name, row.host) for row in load.running] == [("ingest:1", "h1"), ("ingest:3", None)]
    # One slot of the key is another queue's.
    assert load.caps == {"k": 8}
    assert Changes(caps={"a*": 1, "ab*": 2, "abc": 3}).cap_of("abd") == 2


def test_what_a_worker_holds_unbegun_comes_first() -> None:
    """It has no more at work than it has slots for."""
    read = now(
        workers=[worker("w1", "h1", 1)], at_work=[at_work(1, "w1"), at_work(2, "w1")], line=[queued(3)]
    )
    load = load_of(read, history_of(read))
    assert [(row.name, row.priority) for row in load.waiting] == [("ingest:2", 10), ("ingest:3", 5)]
    assert [row.name for row in load.running] == ["ingest:1"]


def test_a_burst_is_no_pace() -> None:
    """What comes in all the time is one, also if it began a little ago."""

    def ended(task: str, created_s: float) -> EndedRow:
        return EndedRow(task, None, "w1", 0, False, None, 3, 7, created_s, created_s, 1.0, 0.0)

    flow = [ended("flow", 0.5 * number) for number in range(40)]
    burst = [ended("burst", 4.0) for _ in range(500)]
    assert arrivals(now(ended=[*flow, *burst])) == [Arriving("flow", 7, 2.0)]
