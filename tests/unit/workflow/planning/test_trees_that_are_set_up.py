"""The first run of a tree begins when what sets it up is done, and goes on whatever is lost of that."""

from __future__ import annotations

from typing import Any

import pytest
from support.reference.planned_runs import CANCELLED, COMPLETED, FAILED, PlannedRun, planned

from queue_workflows.errors import DocumentError
from queue_workflows.states import RunStatus
from queue_workflows.workflow.document.load import load_document
from queue_workflows.workflow.planning.graph import Shape
from queue_workflows.workflow.planning.progress import Attempted, CancelRun, Lost, Opened
from queue_workflows.workflow.planning.reopening import reopen

READY = Attempted("browser", has_begun=True)
TREE = {"name": "page", "nodes": [{"id": "a", "module": "m"}]}


def site() -> PlannedRun:
    """A browser and what waits for it, something else, the first run, and the end of all of it."""

    def step(name: str, *parents: str, **said: Any) -> Shape:
        return Shape(name, parents, when="all_done", on_failure="continue", in_step=True, **said)

    def behind(name: str, *parents: str, **said: Any) -> Shape:
        return Shape(name, parents, when="all_done", on_failure="continue", **said)

    begins = Shape(
        "first", ("wait", "other", "browser"), on_failure="continue", begins_tree=True, sessions=("browser",)
    )
    run = planned(
        step("browser", is_background=True),
        step("wait", "browser", sessions=("browser",)),
        step("other", "wait"),
        begins,
        behind("below", "first", "wait", "other", is_seal=True),
        behind("seal", "below", is_seal=True, follows_seal=True),
        step("tidy", "seal", "browser", follows_seal=True),
    )
    run.begin()
    run.do(Opened("browser"))
    return run


def begun() -> PlannedRun:
    """The same, with its first run under way."""
    run = site()
    run.do(READY)
    run.do(Opened("wait"))
    run.ended("wait")
    run.do(Opened("other"))
    assert run.ended("other").ready == ("first",)
    run.do(Opened("first"))
    run.check()
    return run


def rest(run: PlannedRun) -> None:
    """From the end of the first run on."""
    run.do(Opened("below", 0))
    run.do(Opened("seal", 0))
    assert run.ended("browser").ready == ("tidy",)
    run.do(Opened("tidy"))
    run.ended("tidy")


def test_the_first_run_begins_once_the_foreground_has_succeeded_and_the_background_has_begun() -> None:
    """And what is in the background ends when all runs below are over."""
    run = begun()
    run.ended("first")
    rest(run)
    assert run.over is RunStatus.COMPLETED


def test_a_first_attempt_is_not_enough_for_the_first_run() -> None:
    """It is for the step that follows: the hook may still fail, and nothing below is to begin then."""
    run = site()
    run.do(READY)
    run.do(Opened("wait"))
    assert run.do(Attempted("wait")).ready == ("other",)
    run.do(Opened("other"))
    assert run.ended("other").ready == ()
    assert run.ended("wait").ready == ("first",)


def test_a_background_hook_has_to_begin_at_whatever_attempt() -> None:
    """One that is the last of the setup keeps the first run waiting."""
    run = planned(
        Shape("browser", when="all_done", in_step=True, is_background=True),
        Shape("first", ("browser",), begins_tree=True, sessions=("browser",)),
    )
    run.begin()
    run.do(Opened("browser"))
    assert run.do(Attempted("browser")).ready == ()
    assert run.do(READY).ready == ("first",)


@pytest.mark.parametrize("failing", ["wait", "other", "browser"])
def test_nothing_below_begins_if_the_setup_fails(failing: str) -> None:
    """The run has failed then, and says of the first run why it did not begin; its end comes all the same."""
    run = site()
    if failing == "browser":
        run.ended("browser", FAILED)
    else:
        run.do(READY)
    run.do(Opened("wait"))
    run.ended("wait", FAILED if failing == "wait" else COMPLETED)
    run.do(Opened("other"))
    assert run.ended("other", FAILED if failing == "other" else COMPLETED).ready == ("below",)
    first = run.row("first")
    assert (first.state, first.error) == (
        "cancelled",
        {"kind": "upstream", "message": f"{failing} failed", "node": failing},
    )
    run.do(Opened("below", 0))
    step = run.do(Opened("seal", 0))
    if failing != "browser":
        step = run.ended("browser")
    assert step.ready == ("tidy",)
    run.do(Opened("tidy"))
    run.ended("tidy")
    assert run.over is RunStatus.FAILED


def test_what_had_begun_and_failed_for_good_is_no_setup_either() -> None:
    """It failed while the rest of the setup was at work."""
    run = site()
    run.do(READY)
    run.do(Opened("wait"))
    run.ended("wait")
    run.do(Opened("other"))
    run.ended("browser", FAILED)
    assert run.ended("other").ready == ("below",)
    assert run.row("first").error == {"kind": "upstream", "message": "browser failed", "node": "browser"}


def test_a_session_that_is_lost_while_the_tree_goes_on_stops_no_run_below() -> None:
    """It begins anew, with what waits for it in the setup; the first run ends when it ends."""
    run = begun()
    step = run.do(Lost("browser"))
    assert (step.stop, step.ready) == ((), ())
    assert (run.row("first").state, run.row("wait").state) == ("active", "waiting")
    assert run.do(READY).ready == ("wait",)
    run.do(Opened("wait"))
    run.ended("wait")
    run.ended("first")
    rest(run)
    assert run.over is RunStatus.COMPLETED


def test_a_first_run_that_ends_while_the_session_begins_anew_is_over_with_the_setup() -> None:
    """So the browser is not told to end while something of the setup is still to look for it."""
    run = begun()
    run.do(Lost("browser"))
    assert run.ended("first").ready == ()
    run.do(READY)
    run.do(Opened("wait"))
    assert run.ended("wait").ready == ("below",)
    assert run.row("first").state == "completed"
    rest(run)
    assert run.over is RunStatus.COMPLETED


def test_a_session_that_is_lost_before_the_first_run_is_waited_for() -> None:
    """Until it has begun again."""
    run = site()
    run.do(READY)
    run.do(Opened("wait"))
    run.ended("wait")
    run.do(Opened("other"))
    run.do(Lost("browser"))
    assert run.ended("other").ready == ()
    assert run.do(READY).ready == ("wait",)
    run.do(Opened("wait"))
    assert run.ended("wait").ready == ("first",)


def test_a_cancel_ends_what_is_in_the_background_at_once() -> None:
    """With the first run."""
    run = begun()
    assert run.do(CancelRun("enough")).stop == ("browser", "first")
    run.ended("browser", CANCELLED)
    run.ended("first", CANCELLED)
    assert run.over is RunStatus.CANCELLED


def ended(how: Any) -> PlannedRun:
    run = begun()
    run.ended("first", how)
    rest(run)
    return run


def test_a_retry_of_a_tree_sets_it_up_again_for_a_first_run_that_failed() -> None:
    """With what works with the session; what does without it is kept."""
    run = ended(FAILED)
    found = reopen(run.graph, run.rows)
    assert (found.ready, found.kept) == (("browser",), ("other",))
    assert found.again == ("browser", "wait", "first", "below", "seal", "tidy")


def test_a_first_run_that_completed_is_kept_by_a_retry() -> None:
    """Also if the session that it worked with is repeated, unless somebody names it."""
    run = begun()
    run.ended("first")
    run.do(Opened("below", 0))
    run.do(Opened("seal", 0))
    run.ended("browser", FAILED)
    run.do(Opened("tidy"))
    run.ended("tidy")
    assert run.over is RunStatus.FAILED
    assert "first" in reopen(run.graph, run.rows).kept
    assert "first" in reopen(run.graph, run.rows, from_nodes=["other"]).again


@pytest.mark.parametrize(
    ("node", "said"),
    [
        ({"tree": {**TREE, "name": "other"}}, "tree.name: is 'other', and the node says 'page'"),
        ({"tree": {"name": "page"}}, "tree.nodes: must have at least one node"),
        ({"tree": {"name": "page", "nodes": [{"id": "a"}]}}, "tree.nodes[0].module: is missing"),
        ({"tree": {**TREE, "colour": 1}}, "tree.colour: there is no such field"),
        ({"tree": TREE, "inputs": {"a": 1}}, "tree: is for one run with the inputs of this one"),
        ({"tree": TREE, "for_each": [1]}, "tree: is for one run with the inputs of this one"),
        (
            {"tree": {**TREE, "nodes": [{"id": "b", "type": "workflow", "workflow": "page", "tree": TREE}]}},
            "tree: must be a document without a `tree`",
        ),
        ({"tree": "page"}, "tree: must be a mapping, not 'page'"),
    ],
)
def test_a_document_within_a_node_is_checked_as_any_other(node: dict[str, Any], said: str) -> None:
    """With the place where it is wrong."""
    with pytest.raises(DocumentError) as refused:
        load_document({"name": "set", "nodes": [{"id": "x", "type": "workflow", "workflow": "page", **node}]})
    assert said in str(refused.value)


def test_a_document_knows_the_one_that_it_sets_up() -> None:
    """As a run of it stores it."""
    node = {"id": "x", "type": "workflow", "workflow": "page", "tree": TREE}
    document = load_document({"name": "set", "nodes": [node]})
    assert load_document(document.snapshot()).tree == load_document(TREE)
    assert load_document(TREE).tree is None
