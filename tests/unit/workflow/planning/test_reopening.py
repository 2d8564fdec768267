"""What a retry of a run that is over runs again, and what it keeps."""

from __future__ import annotations

from typing import Any

from support.reference.planned_runs import CANCELLED, COMPLETED, FAILED, SKIPPED, PlannedRun, chain, planned

from queue_workflows.states import NodeState, RunStatus
from queue_workflows.workflow.planning.graph import Shape
from queue_workflows.workflow.planning.progress import (
    Attempted,
    Begun,
    CancelRun,
    Counters,
    Ended,
    Opened,
    Reopened,
    RunCounters,
    SkippedNode,
)
from queue_workflows.workflow.planning.reopening import Reopening, reopen


def reopened(run: PlannedRun, from_node: str | None = None) -> Reopening:
    """Retry the run as the verb and the dispatcher do it together."""
    reopening = reopen(run.graph, run.rows, from_nodes=[] if from_node is None else [from_node])
    for node_id in reopening.dropped:
        del run.rows[node_id]
    run.rows.update(reopening.nodes)
    run.run = reopening.run
    run.check()
    assert set(run.do(Reopened(reopening.ready)).ready) == set(reopening.ready)
    return reopening


def film() -> PlannedRun:
    """plan and draw completed, cut failed, so publish never began and tidy tidied up."""
    run = planned(*chain("plan", "draw", "cut", "publish"), Shape("tidy", ("publish",), when="all_done"))
    run.begin()
    for node_id, status in (("plan", COMPLETED), ("draw", COMPLETED), ("cut", FAILED), ("tidy", COMPLETED)):
        run.do(Opened(node_id))
        run.ended(node_id, status)
    assert run.over is RunStatus.FAILED
    return run


def test_a_retry_runs_what_failed_and_all_below_it() -> None:
    """Also what completed below it, as the node that tidied up did."""
    run = film()
    reopening = reopened(run)
    assert reopening == Reopening(
        run=RunCounters(nodes_left=3),
        nodes={"cut": Counters("cut", parents_completed=1)},
        dropped=("tidy",),
        ready=("cut",),
        again=("cut", "publish", "tidy"),
        kept=("plan", "draw"),
        elements_kept=(),
    )
    for node_id in ("cut", "publish", "tidy"):
        run.do(Opened(node_id))
        run.ended(node_id)
    assert run.over is RunStatus.COMPLETED


def test_a_retry_from_a_node_runs_it_and_all_below_it() -> None:
    """Whatever became of it, beside what failed."""
    reopening = reopened(film(), "draw")
    assert (reopening.ready, reopening.kept) == (("draw",), ("plan",))
    assert reopened(film(), "tidy").again == ("cut", "publish", "tidy")


def archive() -> PlannedRun:
    """a browser, what works with it, what does not, what tidies up; the last two of the browser's failed."""

    def shape(name: str, *parents: str, **said: Any) -> Shape:
        return Shape(name, parents, when="all_done", on_failure="continue", in_step=True, **said)

    run = planned(
        shape("browser", is_background=True),
        shape("fetch"),
        shape("open", "fetch", "browser", sessions=("browser",)),
        shape("count", "open"),
        shape("shot", "count", "browser", sessions=("browser",)),
        shape("hash", "shot"),
        shape("seal", "fetch", "open", "count", "shot", "hash", is_seal=True),
        shape("tidy", "seal", "browser", follows_seal=True),
    )
    run.begin()
    run.do(Opened("browser"), Opened("fetch"), Attempted("browser", has_begun=True))
    return run


def ended(run: PlannedRun, failing: str) -> PlannedRun:
    run.ended("fetch", FAILED if failing == "fetch" else COMPLETED)
    for node_id in ("open", "count", "shot", "hash"):
        run.do(Opened(node_id))
        run.ended(node_id, FAILED if failing == node_id else COMPLETED)
    run.do(Opened("seal", 0))
    run.ended("browser", FAILED if failing == "browser" else COMPLETED)
    run.do(Opened("tidy"))
    run.ended("tidy")
    assert run.over is RunStatus.FAILED
    return run


def test_a_retry_of_steps_runs_what_failed_alone() -> None:
    """What succeeded is kept, also after it in order; the run is sealed again after that."""
    for failing in ("fetch", "count", "hash"):
        run = ended(archive(), failing)
        assert reopened(run).again == (failing, "seal")
        run.do(Opened(failing))
        assert run.ended(failing).ready == ("seal",)
        run.do(Opened("seal", 0))
        assert run.over is RunStatus.COMPLETED


def test_a_retry_begins_a_session_anew_with_all_that_works_with_it() -> None:
    """Its seal too, which waits for them all, and what tidies up then; what worked without it is kept."""
    run = ended(archive(), "shot")
    reopening = reopened(run)
    anew = {"browser", "open", "shot", "seal", "tidy"}
    assert set(reopening.again) == anew
    assert reopening.ready == ("browser",)
    run.do(Opened("browser"))
    assert run.do(Attempted("browser", has_begun=True)).ready == ("open", "shot")
    run.do(Opened("open"), Opened("shot"))
    run.ended("open")
    assert run.ended("shot").ready == ("seal",)
    run.do(Opened("seal", 0))
    assert run.ended("browser").ready == ("tidy",)
    run.do(Opened("tidy"))
    run.ended("tidy")
    assert run.over is RunStatus.COMPLETED
    assert set(reopened(ended(archive(), "browser")).again) == anew


def test_from_a_step_all_that_comes_after_it_runs_again() -> None:
    """As from any node, whatever waits for it there."""
    assert reopened(ended(archive(), "hash"), "count").kept == ("fetch",)
    assert set(reopened(ended(archive(), "hash"), "count").again) >= {"count", "shot", "hash", "seal", "tidy"}


def test_a_retry_of_a_run_that_completed_has_nothing_to_do() -> None:
    """Unless a node is named."""
    run = planned(*chain("a", "b"))
    run.begin()
    run.do(SkippedNode("a"))
    run.do(Opened("b"))
    run.ended("b")
    assert reopen(run.graph, run.rows).again == ()
    assert reopened(run, "b").again == ("b",)


def test_a_retry_of_a_cancelled_run_goes_on_where_it_was() -> None:
    """Nodes that had no row have none again."""
    run = planned(*chain("a", "b", "c"))
    run.begin()
    run.do(Opened("a"))
    run.do(CancelRun())
    run.ended("a")
    assert run.over is RunStatus.CANCELLED
    reopening = reopened(run)
    assert (reopening.ready, reopening.kept, set(reopening.nodes)) == (("b",), ("a",), {"b"})


def test_a_list_keeps_the_elements_that_need_not_run_again() -> None:
    """Those that failed, were cancelled or never began make up the rest of it."""
    run = planned(Shape("each", is_mapped=True), Shape("after", ("each",)))
    run.begin()
    run.do(Opened("each", 10))
    run.do(Ended("each", COMPLETED, 4), Ended("each", SKIPPED), Ended("each", FAILED))
    run.ended("each", CANCELLED, 4)
    reopening = reopened(run)
    assert reopening.elements_kept == ("each",)
    assert run.row("each") == Counters("each", total=5, completed=4, skipped=1)
    run.do(Opened("each", 5))
    assert (run.row("each").total, run.row("each").left) == (10, 5)
    assert run.ended("each", COMPLETED, 5).ready == ("after",)


def test_a_list_that_is_whole_again_without_a_job_completes() -> None:
    """As where it is shorter now."""
    run = planned(Shape("each", is_mapped=True))
    run.begin()
    run.do(Opened("each", 2))
    run.do(Ended("each", COMPLETED), Ended("each", FAILED))
    reopened(run)
    assert run.do(Opened("each", 0)).over is RunStatus.COMPLETED
    assert run.row("each") == Counters("each", NodeState.COMPLETED, total=1, completed=1)


def test_a_list_that_may_be_another_one_runs_from_the_start() -> None:
    """Below a node that runs again, and where it is itself the node that was named."""
    shapes = (Shape("plan"), Shape("each", ("plan",), is_mapped=True))
    for named in ("plan", "each"):
        run = planned(*shapes)
        run.begin()
        run.do(Opened("plan"))
        run.ended("plan")
        run.do(Opened("each", 2))
        run.do(Ended("each", COMPLETED), Ended("each", FAILED))
        reopening = reopened(run, named)
        assert reopening.elements_kept == ()
        assert (run.row("each").total, run.row("each").completed) == (0, 0)
        assert reopening.ready == (named,)


def test_what_would_be_cancelled_again_is_left() -> None:
    """Nothing above it completes now either; a node without a row gets one, or it would be waiting."""
    run = planned(
        Shape("skipped"),
        Shape("needs one", ("skipped",), when="any_success"),
        Shape("below", ("needs one",)),
        Shape("other"),
    )
    run.begin()
    run.do(SkippedNode("skipped"), Opened("other"))
    run.ended("other", FAILED)
    assert run.states() == {
        "skipped": "skipped",
        "needs one": "cancelled",
        "below": "cancelled",
        "other": "failed",
    }
    # As a run has it that stopped before anything touched them.
    run.rows = {node_id: row for node_id, row in run.rows.items() if node_id not in ("needs one", "below")}
    reopening = reopened(run)
    assert reopening.again == ("other",)
    assert set(run.rows) == {"skipped", "needs one", "below", "other"} - set(reopening.dropped)
    assert run.states() == {
        "skipped": "skipped",
        "needs one": "cancelled",
        "below": "cancelled",
        "other": "waiting",
    }
    run.do(Opened("other"))
    assert run.ended("other").over is RunStatus.COMPLETED


def test_a_retry_of_a_run_that_never_began_runs_all_of_it() -> None:
    """It was cancelled while it was queued."""
    run = planned(*chain("a", "b"))
    run.do(Begun(), CancelRun())
    assert reopened(run).again == ("a", "b")
