"""Steps of a pipeline in the planner: the end of a first attempt opens the next one."""

from __future__ import annotations

from support.reference.planned_runs import COMPLETED, FAILED, PlannedRun, planned

from queue_workflows.states import NodeState, RunStatus
from queue_workflows.workflow.planning.graph import Shape
from queue_workflows.workflow.planning.progress import Attempted, CancelNode, CancelRun, Opened


def shape(name: str, *parents: str, when: str = "all_done", in_step: bool = True, **said: bool) -> Shape:
    return Shape(name, parents, when=when, on_failure="continue", in_step=in_step, **said)


def two_steps() -> PlannedRun:
    """a and b above c, which is above d; `last` needs a to be over, as it is in no step."""
    run = planned(
        shape("a"),
        shape("b"),
        shape("c", "a", "b"),
        shape("d", "c"),
        shape("last", "a", in_step=False),
        shape("happy", "a", when="all_success"),
    )
    run.begin()
    run.do(Opened("a"), Opened("b"))
    return run


def test_a_first_attempt_lets_the_next_step_pass() -> None:
    """A step opens when each hook of the one before has ended or is to be tried again."""
    run = two_steps()
    assert run.do(Attempted("a")).ready == ()
    assert run.ended("b").ready == ("c",)
    run.check()
    assert (run.row("a").state, run.row("c").parents_left) == (NodeState.ACTIVE, 0)


def test_only_what_is_in_a_step_passes() -> None:
    """Others below wait for the end itself, and so does whoever needs success."""
    run = two_steps()
    run.do(Attempted("a"))
    assert (run.row("last").parents_left, run.row("happy").parents_left) == (1, 1)
    assert run.ended("a").ready == ("last", "happy")
    assert run.ended("b").ready == ("c",)
    run.check()


def listening() -> PlannedRun:
    """A listener, what waits for its beginning, the seal, and what tidies up after both."""
    run = planned(
        shape("listener", is_background=True),
        shape("c", "listener"),
        shape("seal", "c"),
        shape("tidy", "seal", "listener", follows_seal=True),
    )
    run.begin()
    run.do(Opened("listener"))
    return run


def test_what_follows_a_listener_waits_until_that_has_begun() -> None:
    """A failed attempt lets nothing pass, the beginning of one does, and what tidies up waits for its end."""
    run = listening()
    assert run.row("c").parents_left == 1
    assert run.do(Attempted("listener")).ready == ()
    assert run.do(Attempted("listener", has_begun=True)).ready == ("c",)
    run.do(Opened("c"))
    assert run.ended("c").ready == ("seal",)
    run.do(Opened("seal", 0))
    assert run.row("tidy").parents_left == 1
    assert run.ended("listener").ready == ("tidy",)
    run.check()


def test_what_follows_a_listener_that_never_begins_goes_on_at_its_end() -> None:
    """As one that is switched off."""
    run = listening()
    assert run.ended("listener", FAILED).ready == ("c",)
    run.check()


def test_an_attempt_is_counted_once() -> None:
    """A replayed event and a second retry change nothing, nor one that comes after the end."""
    run = two_steps()
    run.do(Attempted("a"), Attempted("a"))
    assert run.row("c").parents_left == 1
    assert run.do(Attempted("a")).nodes == {}
    run.ended("b")
    run.do(Opened("c"))
    assert run.ended("a", FAILED).nodes.keys() == {"a", "last", "happy"}
    assert run.do(Attempted("a")).nodes == {}
    run.check()


def test_the_run_is_over_with_the_last_retry() -> None:
    """A hook that is tried again holds up no step, and the run's outcome waits for it."""
    for last, status in ((COMPLETED, RunStatus.COMPLETED), (FAILED, RunStatus.FAILED)):
        run = planned(shape("a"), shape("b", "a"))
        run.begin()
        run.do(Opened("a"))
        assert run.do(Attempted("a")).ready == ("b",)
        run.do(Opened("b"))
        assert run.ended("b").over is None
        assert run.ended("a", last).over is status
        run.check()


def test_a_cancel_ends_what_has_passed_too() -> None:
    """Counted anew after a stop, a step that was passed stays passed."""
    run = two_steps()
    run.do(Attempted("a"))
    run.do(CancelNode("b"))
    assert run.ended("b").over is None
    assert run.do(CancelRun("enough")).stop == ("a",)
    run.ended("a", FAILED)
    run.check()
    assert run.over is RunStatus.FAILED
