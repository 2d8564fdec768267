"""What an event means for a run, decided without a database."""

from __future__ import annotations

import pytest
from support.reference.planned_runs import CANCELLED, COMPLETED, FAILED, SKIPPED, PlannedRun, chain, planned

from queue_workflows.states import NodeState, RunStatus
from queue_workflows.workflow.document.load import load_document
from queue_workflows.workflow.planning.graph import Shape, graph_from, graph_of
from queue_workflows.workflow.planning.plan import advance
from queue_workflows.workflow.planning.progress import (
    Begun,
    Broken,
    CancelNode,
    CancelRun,
    Counters,
    Ended,
    Opened,
    RunCounters,
    SkippedNode,
    opens_no_more,
)

BROKEN = {"kind": "ref", "message": "a.b is not there"}
DIAMOND = (Shape("a"), Shape("b", ("a",)), Shape("c", ("a",)), Shape("d", ("b", "c")))


def diamond(**last: str) -> PlannedRun:
    """a above b and c, both above d; d with what is asked for, and nobody stops the others."""
    shapes = [shape._replace(on_failure="continue") for shape in DIAMOND]
    run = planned(*shapes[:3], shapes[3]._replace(**last))
    run.begin()
    run.do(Opened("a"))
    run.ended("a")
    run.do(Opened("b"), Opened("c"))
    return run


def test_a_run_opens_what_depends_on_nothing() -> None:
    """And counts what is left; a node that nothing touched gets no row."""
    run = planned(Shape("b", ("a",)), Shape("a"), Shape("c"))
    step = run.begin()
    assert (set(step.ready), step.nodes, step.stop, step.over) == ({"a", "c"}, {}, (), None)
    assert step.run == RunCounters(nodes_left=3)


def test_a_run_without_nodes_is_over_when_it_begins() -> None:
    """There is nothing to wait for."""
    assert planned().begin().over is RunStatus.COMPLETED


def test_a_chain_goes_hop_by_hop_and_completes() -> None:
    """Each end makes exactly the next node ready; the last one closes the run."""
    run = planned(*chain("a", "b", "c"))
    assert run.begin().ready == ("a",)
    for node_id, following in (("a", ("b",)), ("b", ("c",)), ("c", ())):
        opened = run.do(Opened(node_id))
        assert (opened.ready, run.row(node_id).state) == ((), NodeState.ACTIVE)
        step = run.ended(node_id)
        assert step.ready == following
        run.check()
    assert (run.over, run.run) == (RunStatus.COMPLETED, RunCounters())
    assert run.row("c") == Counters(
        "c", NodeState.COMPLETED, parents_left=0, parents_completed=1, total=1, left=0, completed=1
    )


@pytest.mark.parametrize("when", ["all_success", "all_done", "any_success"])
def test_a_node_waits_for_the_last_of_its_parents(when: str) -> None:
    """Whatever its `when`, and however the first one ended."""
    for first in (COMPLETED, SKIPPED, FAILED, CANCELLED):
        run = diamond(when=when)
        assert run.ended("b", first).ready == ()
        assert run.row("d").state is NodeState.WAITING
        assert run.over is None


@pytest.mark.parametrize(
    ("when", "ends", "runs"),
    [
        ("all_success", (COMPLETED, COMPLETED), True),
        ("all_success", (COMPLETED, SKIPPED), True),
        ("all_success", (SKIPPED, SKIPPED), True),
        ("all_success", (COMPLETED, FAILED), False),
        ("all_success", (CANCELLED, COMPLETED), False),
        ("all_done", (COMPLETED, SKIPPED), True),
        ("all_done", (FAILED, CANCELLED), True),
        ("any_success", (COMPLETED, FAILED), True),
        ("any_success", (SKIPPED, COMPLETED), True),
        ("any_success", (SKIPPED, SKIPPED), False),
        ("any_success", (FAILED, SKIPPED), False),
        ("any_success", (CANCELLED, FAILED), False),
    ],
)
def test_when_decides_by_how_the_parents_ended(when: str, ends: tuple, runs: bool) -> None:
    """Skipped satisfies `all_success`, and is no success to `any_success`."""
    for order in (("b", "c"), ("c", "b")):
        run = diamond(when=when)
        by_node = dict(zip("bc", ends, strict=True))
        for node_id in order:
            step = run.ended(node_id, by_node[node_id])
        assert step.ready == (("d",) if runs else ())
        assert run.row("d").state is (NodeState.WAITING if runs else NodeState.CANCELLED)
        run.check()


@pytest.mark.parametrize("when", ["all_success", "all_done", "any_success"])
def test_a_node_without_parents_runs_whatever_its_when(when: str) -> None:
    """There is nobody whose success it could need."""
    run = planned(Shape("a", when=when))
    assert run.begin().ready == ("a",)


def test_a_cancelled_node_says_which_parent_it_needed() -> None:
    """And those below it say that it was cancelled, however far down."""
    run = planned(*(shape._replace(on_failure="continue") for shape in chain("a", "b", "c")), Shape("other"))
    run.begin()
    run.do(Opened("a"), Opened("other"))
    run.ended("a", FAILED)
    assert run.row("a").error == {"kind": "exception", "message": "no"}
    assert run.row("b").error == {"kind": "upstream", "message": "a failed", "node": "a"}
    assert run.row("c").error == {"kind": "upstream", "message": "b was cancelled", "node": "b"}
    assert run.over is None
    assert run.ended("other").over is RunStatus.FAILED


def test_a_node_that_runs_in_spite_of_a_failure_carries_no_error() -> None:
    """A bad parent is a reason only for a node that it keeps from running."""
    run = diamond(when="all_done")
    run.ended("b", FAILED)
    run.ended("c")
    run.do(Opened("d"))
    assert run.row("d").error is None


def test_skip_if_skips_and_lets_through() -> None:
    """A node that is skipped had no job, and what follows it runs."""
    run = planned(*chain("a", "b"))
    run.begin()
    step = run.do(SkippedNode("a"))
    assert (run.row("a").state, run.row("a").total, step.ready) == (NodeState.SKIPPED, 0, ("b",))
    run.do(Opened("b"))
    assert run.ended("b", SKIPPED).over is RunStatus.COMPLETED
    assert run.row("b").state is NodeState.SKIPPED


def test_a_node_that_cannot_be_opened_fails_with_the_reason() -> None:
    """And its failure counts as any other."""
    run = planned(*chain("a", "b"))
    run.begin()
    step = run.do(Broken("a", BROKEN))
    assert (run.row("a").state, run.row("a").error, step.over) == (
        NodeState.FAILED,
        BROKEN,
        RunStatus.FAILED,
    )
    assert run.states() == {"a": "failed", "b": "cancelled"}
    assert "b" not in run.rows or run.rows["b"].state is NodeState.CANCELLED


def test_a_list_ends_with_its_last_element() -> None:
    """Ends may come in any portion."""
    run = planned(Shape("each", is_mapped=True), Shape("after", ("each",)))
    run.begin()
    run.do(Opened("each", 10))
    assert run.ended("each", COMPLETED, 7).ready == ()
    run.check()
    assert run.ended("each", SKIPPED, 2).ready == ()
    assert run.ended("each").ready == ("after",)
    assert run.row("each") == Counters("each", NodeState.COMPLETED, total=10, completed=8, skipped=2)


def test_an_empty_list_completes_at_once() -> None:
    """It has a result, the empty list."""
    run = planned(Shape("each", is_mapped=True), Shape("after", ("each",)))
    run.begin()
    assert run.do(Opened("each", 0)).ready == ("after",)
    assert run.row("each") == Counters("each", NodeState.COMPLETED)


def test_a_list_whose_elements_were_all_skipped_completed() -> None:
    """A list of nothing-to-say is a list; `any_success` below it runs."""
    run = planned(Shape("each", is_mapped=True), Shape("after", ("each",), when="any_success"))
    run.begin()
    run.do(Opened("each", 2))
    assert run.ended("each", SKIPPED, 2).ready == ("after",)


def test_a_failed_element_fails_its_list_once_all_have_ended() -> None:
    """Under `continue` the other elements go on."""
    run = planned(
        Shape("each", is_mapped=True, on_failure="continue"), Shape("after", ("each",), when="all_done")
    )
    run.begin()
    run.do(Opened("each", 3))
    step = run.ended("each", FAILED)
    assert (step.stop, step.run.stopping, run.row("each").state) == ((), None, NodeState.ACTIVE)
    assert run.ended("each", COMPLETED, 2).ready == ("after",)
    assert (run.row("each").state, run.row("each").completed) == (NodeState.FAILED, 2)


def test_fail_fast_stops_the_other_elements_at_the_first_failure() -> None:
    """And opens none of those that have no row yet."""
    run = planned(Shape("each", is_mapped=True))
    run.begin()
    run.do(Opened("each", 5))
    assert not opens_no_more(run.graph, run.run, run.row("each"))
    step = run.ended("each", FAILED)
    assert (step.stop, step.run.stopping) == (("each",), "fail_fast")
    assert opens_no_more(run.graph, run.run, run.row("each"))
    run.ended("each")
    assert run.ended("each", CANCELLED, 3).over is RunStatus.FAILED
    assert run.row("each") == Counters(
        "each",
        NodeState.FAILED,
        total=5,
        completed=1,
        failed=1,
        cancelled=3,
        error={"kind": "exception", "message": "no"},
    )


def test_fail_fast_stops_what_is_active_and_gives_up_what_waits() -> None:
    """What has no row stays without one: in a run that stops, that alone says cancelled."""
    run = planned(
        Shape("bad"),
        Shape("busy"),
        Shape("waits", ("busy", "quick")),
        Shape("quick"),
        Shape("later", ("waits",)),
    )
    run.begin()
    run.do(Opened("bad"), Opened("busy"), Opened("quick"))
    run.ended("quick")
    assert run.rows.keys() == {"bad", "busy", "quick", "waits"}
    step = run.ended("bad", FAILED)
    assert step.stop == ("busy",)
    assert run.rows.keys() == {"bad", "busy", "quick", "waits"}
    assert run.row("waits").error == {
        "kind": "stopped",
        "message": "the run stopped: bad failed",
        "node": "bad",
    }
    assert run.states() == {
        "bad": "failed",
        "busy": "active",
        "waits": "cancelled",
        "quick": "completed",
        "later": "cancelled",
    }
    run.check()
    assert run.ended("busy", CANCELLED).over is RunStatus.FAILED


def test_fail_fast_lets_a_stopped_node_end_as_it_does() -> None:
    """It may have been quicker than the stop."""
    run = planned(Shape("bad"), Shape("busy"), Shape("after", ("busy",)))
    run.begin()
    run.do(Opened("bad"), Opened("busy"))
    run.ended("bad", FAILED)
    step = run.ended("busy")
    assert (step.ready, step.over) == ((), RunStatus.FAILED)
    assert run.row("busy").state is NodeState.COMPLETED


def test_a_run_that_stops_still_tidies_up() -> None:
    """An `all_done` node runs when its parents are over, those that never began included."""
    run = planned(
        Shape("bad"),
        Shape("busy"),
        Shape("never", ("busy",)),
        Shape("tidy", ("never",), when="all_done"),
        Shape("tidy busy", ("busy",), when="all_done"),
        Shape("after tidy", ("tidy",)),
        Shape("report", ("tidy", "after tidy", "tidy busy"), when="all_done"),
    )
    run.begin()
    run.do(Opened("bad"), Opened("busy"))
    step = run.ended("bad", FAILED)
    assert (step.ready, step.stop, step.over) == (("tidy",), ("busy",), None)
    run.check()
    assert run.ended("busy", CANCELLED).ready == ("tidy busy",)
    run.do(Opened("tidy"), Opened("tidy busy"))
    assert run.ended("tidy").ready == ()
    assert run.ended("tidy busy").ready == ("report",)
    run.do(Opened("report"))
    assert run.ended("report").over is RunStatus.FAILED
    assert run.states()["after tidy"] == "cancelled"


def test_fail_fast_leaves_an_active_tidy_node_alone() -> None:
    """It runs in any case, so nothing is won by ending it half-way; its own failure ends its elements."""
    run = planned(Shape("bad"), Shape("tidy", when="all_done", is_mapped=True))
    run.begin()
    run.do(Opened("bad"), Opened("tidy", 3))
    assert run.ended("bad", FAILED).stop == ()
    assert run.ended("tidy", FAILED).stop == ("tidy",)
    assert run.ended("tidy", CANCELLED, 2).over is RunStatus.FAILED


def test_a_cancelled_run_starts_nothing_any_more() -> None:
    """Not even what tidies up."""
    run = planned(Shape("a"), Shape("b", ("a",)), Shape("tidy", ("b",), when="all_done"))
    run.begin()
    run.do(Opened("a"))
    step = run.do(CancelRun("not wanted"))
    assert (step.stop, step.ready, step.over) == (("a",), (), None)
    step = run.ended("a")
    assert (step.ready, step.over) == ((), RunStatus.CANCELLED)
    assert run.states() == {"a": "completed", "b": "cancelled", "tidy": "cancelled"}


def test_a_cancel_stops_what_a_failure_left_to_tidy_up() -> None:
    """And the run is failed all the same: a node of it did."""
    run = planned(Shape("bad"), Shape("tidy", ("bad",), when="all_done"))
    run.begin()
    run.do(Opened("bad"))
    assert run.ended("bad", FAILED).ready == ("tidy",)
    run.do(Opened("tidy"))
    assert run.do(CancelRun()).stop == ("tidy",)
    assert run.ended("tidy", CANCELLED).over is RunStatus.FAILED


def test_a_cancel_before_anything_opened_ends_the_run_without_a_row() -> None:
    """However many nodes it has."""
    run = planned(*DIAMOND)
    step = run.do(Begun(), CancelRun())
    assert (step.nodes, step.ready, step.stop, step.over) == ({}, (), (), RunStatus.CANCELLED)


def test_a_second_cancel_and_one_that_is_late_change_nothing() -> None:
    """Whoever cancels twice gets what he has."""
    run = planned(Shape("a"), Shape("b"))
    run.begin()
    run.do(Opened("a"), Opened("b"))
    run.do(CancelRun())
    step = run.do(CancelRun())
    assert (step.nodes, step.stop) == ({}, ())
    run.ended("a", CANCELLED)
    run.ended("b", CANCELLED)
    assert run.do(CancelRun()).over is RunStatus.CANCELLED


def test_cancelling_a_node_gives_up_what_needs_it_and_nothing_else() -> None:
    """Nobody failed, so nothing is stopped and the run completes."""
    run = planned(Shape("a"), Shape("b", ("a",)), Shape("c", ("a",)), Shape("d", ("b",)))
    run.begin()
    run.do(Opened("a"))
    run.do(CancelNode("b", "too dear"))
    assert run.row("b").error == {"kind": "cancelled", "message": "too dear"}
    assert run.states() == {"a": "active", "b": "cancelled", "c": "waiting", "d": "cancelled"}
    assert run.ended("a").ready == ("c",)
    run.do(Opened("c"))
    assert run.ended("c").over is RunStatus.COMPLETED


def test_cancelling_an_active_list_stops_its_elements() -> None:
    """Those that have no row yet get none."""
    run = planned(Shape("each", is_mapped=True), Shape("after", ("each",)))
    run.begin()
    run.do(Opened("each", 4))
    step = run.do(CancelNode("each"))
    assert (step.stop, opens_no_more(run.graph, run.run, run.row("each"))) == (("each",), True)
    run.ended("each", CANCELLED, 3)
    assert run.ended("each").over is RunStatus.COMPLETED
    assert run.states() == {"each": "cancelled", "after": "cancelled"}


def test_a_node_whose_cancel_came_too_late_ended_well() -> None:
    """It has a result and says nothing of the cancel."""
    run = planned(Shape("a"), Shape("b", ("a",)))
    run.begin()
    run.do(Opened("a"))
    assert run.do(CancelNode("a")).stop == ("a",)
    assert run.ended("a").ready == ("b",)
    assert (run.row("a").state, run.row("a").error) == (NodeState.COMPLETED, None)


def test_an_answer_may_cancel_its_neighbour() -> None:
    """A ready node whose neighbour cannot be opened stays closed, whichever is answered first."""
    for events in (
        (Broken("b", BROKEN), Opened("c")),
        (Opened("c"), Broken("b", BROKEN)),
    ):
        run = planned(*DIAMOND)
        run.begin()
        run.do(Opened("a"))
        first = advance(run.graph, run.run, [Ended("a", COMPLETED)], run.look)
        assert first.ready == ("b", "c")
        step = run.write(advance(run.graph, first.run, events, run.look, first))
        assert step.ready == ()
        opened = run.row("c").state is NodeState.ACTIVE
        assert opened is (events[0] == Opened("c"))
        assert step.stop == (("c",) if opened else ())
        assert step.over is (None if opened else RunStatus.FAILED)
        assert step.nodes.keys() >= {"a", "b", "c"}
        run.check()


def test_what_does_not_fit_is_dropped() -> None:
    """An end that is told twice, of a node that is over or was never opened, changes nothing."""
    run = planned(*chain("a", "b"))
    run.begin()
    for event in (
        Ended("a", COMPLETED),
        Ended("b", FAILED),
        Opened("b"),
        SkippedNode("b"),
        Broken("b", BROKEN),
    ):
        assert run.do(event).nodes == {}
    run.do(Opened("a"))
    assert run.do(Opened("a"), Opened("a", 5), SkippedNode("a")).nodes == {}
    assert run.do(Ended("a", COMPLETED, 0)).nodes == {}
    run.do(Ended("a", COMPLETED, 2))
    assert (run.row("a").completed, run.row("a").left) == (1, 0)
    assert run.do(Ended("a", FAILED), CancelNode("a")).nodes == {}
    run.check()


def test_an_event_about_an_unknown_node_is_refused() -> None:
    """Nothing is decided, so nothing can be written."""
    run = planned(Shape("draw"))
    with pytest.raises(ValueError, match="no node 'drow'"):
        run.do(CancelNode("drow"))


def test_a_graph_lists_parents_before_children_and_refuses_a_circle() -> None:
    """In whatever order the nodes are given; naming a parent twice is naming it once."""
    graph = graph_from([Shape("c", ("b", "b")), Shape("b", ("a",)), Shape("a")])
    assert list(graph.nodes) == ["a", "b", "c"]
    assert (graph.roots, graph.nodes["c"].parents, graph.nodes["b"].children) == (("a",), ("b",), ("c",))
    with pytest.raises(ValueError, match="circle"):
        graph_from([Shape("a", ("b",)), Shape("b", ("a",))])


def test_a_documents_graph_has_its_edges_and_its_ways_to_fail() -> None:
    """A reference is an edge as `depends_on` is, and a node's own `on_failure` beats the document's."""
    document = load_document(
        {
            "name": "film",
            "on_failure": "continue",
            "nodes": [
                {"id": "plan", "module": "m", "on_failure": "fail_fast"},
                {"id": "draw", "module": "m", "for_each": {"$from": "plan.scenes"}},
                {"id": "tidy", "module": "m", "depends_on": ["draw"], "when": "all_done"},
            ],
        }
    )
    graph = document.derived(graph_of)
    assert graph is document.derived(graph_of)
    assert graph == graph_from(
        [
            Shape("plan"),
            Shape("draw", ("plan",), on_failure="continue", is_mapped=True),
            Shape("tidy", ("draw",), when="all_done", on_failure="continue"),
        ]
    )
