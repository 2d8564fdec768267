"""Which workers a run needs next, by what is seen of it."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import UTC, datetime

from queue_workflows.engine.watch.missing_roles import waited_for
from queue_workflows.engine.watch.run_view import Activity, Elements, NodeOverview, RunOverview

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def run(status: str, *nodes: NodeOverview) -> RunOverview:
    return RunOverview(uuid.UUID(int=1), "film", status, NOW, NOW, nodes=nodes)


def test_a_run_that_nobody_has_begun_needs_workers_of_its_first_nodes() -> None:
    """Those that wait for others have time; what asks a person needs none."""
    first = NodeOverview("a", queue="cpu")
    assert waited_for(run("queued", first, NodeOverview("b", parents=("a",), queue="gpu"))) == ("cpu",)
    assert waited_for(run("queued", NodeOverview("ask", type="input"))) == ()


def test_a_run_under_way_needs_workers_of_what_is_queued() -> None:
    """Not of what is at work, on hold or over."""
    states = {"queued": "cpu", "running": "gpu", "scheduled": "hooks", "completed": "gpu"}
    nodes = [NodeOverview(state, state=state, queue=queue) for state, queue in states.items()]
    assert waited_for(run("running", *nodes)) == ("cpu",)


def test_of_a_list_of_jobs_one_that_is_at_work_is_enough() -> None:
    """Its others wait for that worker."""
    idle = NodeOverview("a", state="active", queue="gpu", elements=Elements(total=3, completed=1))
    assert waited_for(run("running", idle)) == ("gpu",)
    at_work = replace(idle, activities=(Activity(1, "here:gpu:1", 1, NOW),))
    assert waited_for(run("running", at_work)) == ()
    over = NodeOverview("a", state="active", queue="gpu", elements=Elements(total=3, completed=3))
    assert waited_for(run("running", over)) == ()
