"""What changed in a run between two looks: a line each, and none for what nobody wants to read."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from queue_workflows.drawing.changes import changes
from queue_workflows.engine.watch.run_view import Activity, Elements, NodeOverview, RunOverview

START = datetime(2026, 1, 2, 14, tzinfo=UTC)
LATER = START + timedelta(seconds=9)


def run(*nodes: NodeOverview, status: str = "running", **more: object) -> RunOverview:
    known = {"at": LATER, "created_at": START, "started_at": START, **more}
    return RunOverview(uuid.UUID(int=7), "film", status, nodes=nodes, **known)  # type: ignore[arg-type]


def told(before: RunOverview | None, now: RunOverview) -> list[tuple[str | None, str, str]]:
    return [(change.node, change.state, change.note) for change in changes(before, now)]


def running(fraction: float | None = None, message: str | None = None) -> NodeOverview:
    activity = Activity(-1, "h:cpu:1", 1, START, fraction, message)
    return NodeOverview("a", state="running", attempt=1, started_at=START, activities=(activity,))


def listed(completed: int, failed: int = 0) -> NodeOverview:
    elements = Elements(100, completed=completed, failed=failed)
    return NodeOverview("m", state="running", started_at=START, elements=elements)


def test_the_first_look_tells_what_has_begun():
    """What waits is as it was before anybody looked; then the run itself."""
    nodes = (NodeOverview("a", state="completed", finished_at=LATER), NodeOverview("b"))
    assert told(None, run(*nodes)) == [("a", "completed", ""), (None, "running", "")]
    assert told(run(*nodes), run(*nodes)) == []


def test_a_node_in_another_state():
    """With who has it, and which attempt."""
    before, now = run(NodeOverview("a", state="queued")), run(running())
    assert told(before, now) == [("a", "running", "on h:cpu:1")]
    again = replace(now.nodes[0], attempt=2)
    assert told(now, run(again)) == [("a", "running", "on h:cpu:1 · attempt 2")]


def test_time_that_passes_is_no_change():
    """Nor is the clock."""
    now = run(running(0.5), at=LATER + timedelta(hours=1))
    assert told(run(running(0.5)), now) == []


def test_progress_in_tenths_and_messages():
    """A line for each would be too many."""
    assert told(run(running(0.31)), run(running(0.39))) == []
    assert told(run(running(0.39)), run(running(0.41))) != []
    assert told(run(running(None, "one")), run(running(None, "two"))) != []
    assert [one.fraction for one in changes(run(running(0.1)), run(running(0.25)))] == [0.25]


def test_elements_in_tenths_and_each_that_fails_first():
    """Ten lines for a hundred thousand of them, and what goes wrong at once."""
    assert told(run(listed(11)), run(listed(12))) == []
    assert told(run(listed(19)), run(listed(20))) == [("m", "running", "▕██░░░░░░░░░░▏ 20/100")]
    assert told(run(listed(11)), run(listed(11, failed=1)))[0][2].endswith("11/100, 1 failed")


def test_what_happens_to_the_run():
    """Its end with its error, a cancel with its reason, events that were given up."""
    assert told(run(), run(status="failed", error="node a failed")) == [(None, "failed", "node a failed")]
    asked = run(cancel_requested_at=LATER, cancel_reason="wrong")
    assert told(run(), asked) == [(None, "running", "cancel asked for: wrong")]
    over = run(status="cancelled", cancel_requested_at=LATER, cancel_reason="wrong")
    assert told(asked, over) == [(None, "cancelled", "wrong")]
    assert told(run(), run(poisoned=("event 7",))) == [(None, "poisoned", "event 7")]
    done = [one.outputs for one in changes(run(), run(status="completed", outputs={"url": "x"}))]
    assert done == [{"url": "x"}]


def test_a_very_large_run_in_hundredths():
    """A line for each node would be too many; what fails is told at once."""
    before = run(counts={"over": 1000, "failed": 0, "waiting": 99_000})
    assert told(before, run(counts={"over": 1500, "failed": 0, "waiting": 98_500})) == []
    now = run(counts={"over": 2000, "failed": 0, "waiting": 98_000})
    assert told(before, now) == [(None, "running", "2,000 over, 0 failed, 98,000 waiting")]
    assert told(before, run(counts={"over": 1000, "failed": 1, "waiting": 98_999})) != []
