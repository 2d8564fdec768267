"""A session that is lost in a run that goes on: what works with it runs again, in order."""

from __future__ import annotations

from typing import Any

import pytest
from support.reference.planned_runs import CANCELLED, COMPLETED, FAILED, SKIPPED, PlannedRun, planned

from queue_workflows.states import JobStatus, NodeState, RunStatus
from queue_workflows.workflow.planning.graph import Shape
from queue_workflows.workflow.planning.progress import (
    Attempted,
    CancelNode,
    CancelRun,
    Ended,
    Lost,
    Opened,
)

READY = Attempted("browser", has_begun=True)


def archive() -> PlannedRun:
    """A browser, and what works with it: open is over, shot at work, late waits. hash and last do without."""

    def shape(name: str, *parents: str, **said: Any) -> Shape:
        return Shape(name, parents, when="all_done", on_failure="continue", in_step=True, **said)

    run = planned(
        shape("browser", is_background=True),
        shape("open", "browser", sessions=("browser",)),
        shape("hash", "browser"),
        shape("shot", "open", "hash", "browser", sessions=("browser",)),
        shape("last", "shot"),
        shape("late", "last", "browser", sessions=("browser",)),
        shape("seal", "late", is_seal=True),
        shape("tidy", "seal", "browser", follows_seal=True),
    )
    run.begin()
    run.do(Opened("browser"))
    run.do(READY)
    run.do(Opened("open"), Opened("hash"))
    run.ended("hash")
    run.ended("open")
    run.do(Opened("shot"))
    run.check()
    return run


def rest(run: PlannedRun) -> None:
    """From `last` on to the end."""
    run.do(Opened("last"))
    assert run.ended("last").ready == ("late",)
    run.do(Opened("late"))
    assert run.ended("late").ready == ("seal",)
    run.do(Opened("seal", 0))
    assert run.ended("browser").ready == ("tidy",)
    run.do(Opened("tidy"))
    run.ended("tidy")
    assert run.over is RunStatus.COMPLETED


def test_what_works_with_a_lost_session_runs_again_in_order_once_it_has_begun() -> None:
    """What was over and what is at work; what does without it is kept."""
    run = archive()
    step = run.do(Lost("browser"))
    assert (step.stop, step.ready) == (("shot",), ())
    run.check()
    assert run.row("open").state is NodeState.WAITING
    assert run.row("hash").state is NodeState.COMPLETED
    assert run.ended("shot", CANCELLED).ready == ()
    assert run.row("shot").state is NodeState.WAITING
    run.check()
    assert run.do(READY).ready == ("open",)
    run.do(Opened("open"))
    assert run.ended("open").ready == ("shot",)
    run.do(Opened("shot"))
    assert run.ended("shot").ready == ("last",)
    run.check()
    rest(run)


def test_what_is_ended_may_end_after_the_session_has_begun_again() -> None:
    """Or have ended well before anybody could end it: it runs again all the same."""
    for status in (CANCELLED, COMPLETED, FAILED, SKIPPED):
        run = archive()
        run.do(Lost("browser"))
        assert run.do(READY).ready == ("open",)
        run.do(Opened("open"))
        run.ended("open")
        assert run.ended("shot", status).ready == ("shot",)
        run.do(Opened("shot"))
        assert run.ended("shot").ready == ("last",)
        run.check()
        rest(run)


def test_a_failure_that_is_tried_again_is_a_loss_only_of_what_had_begun() -> None:
    """After a loss another failure lets nothing begin: the session may still begin again."""
    run = archive()
    assert run.do(Attempted("browser")).stop == ("shot",)
    run.ended("shot", CANCELLED)
    assert run.do(Attempted("browser")).ready == ()
    assert run.do(Lost("browser")).ready == ()
    assert run.do(READY).ready == ("open",)
    first = planned(Shape("browser", is_background=True, in_step=True), *_user())
    first.begin()
    first.do(Opened("browser"))
    assert first.do(Lost("browser")).ready == ()
    assert first.do(Attempted("browser")).ready == ()
    assert first.do(READY).ready == ("user",)


def _user() -> tuple[Shape, ...]:
    return (Shape("user", ("browser",), when="all_done", in_step=True, sessions=("browser",)),)


@pytest.mark.parametrize("status", [FAILED, SKIPPED, COMPLETED])
def test_what_had_a_result_keeps_it_if_the_session_does_not_begin_again(status: JobStatus) -> None:
    """What had none runs, as it does after any background hook that fails, or is switched off by now."""
    run = archive()
    run.do(Lost("browser"))
    run.ended("shot", CANCELLED)
    assert run.ended("browser", status).ready == ("shot",)
    assert run.row("open").state is NodeState.COMPLETED
    run.check()
    run.do(Opened("shot"))
    assert run.ended("shot", FAILED).ready == ("last",)
    run.check()


def test_a_session_that_fails_before_it_has_begun_again_says_why() -> None:
    """And not that it begins again, which is no more to come."""
    run = archive()
    run.do(Lost("browser"))
    run.ended("shot", CANCELLED)
    refused = {"kind": "exception", "message": "no"}
    run.do(Ended("browser", FAILED, error=refused))
    assert run.row("browser").error == refused


def test_what_its_workers_died_of_ends_with_that_whichever_is_heard_first() -> None:
    """It would end the session each time that it ran again."""
    deaths = Ended("shot", FAILED, error={"kind": "worker_lost", "message": "5 workers died while it ran"})
    for told in ((Lost("browser"), deaths), (deaths, Lost("browser"))):
        run = archive()
        run.do(*told)
        assert run.row("shot").error == deaths.error
        assert run.do(READY).ready == ("open",)
        run.do(Opened("open"))
        assert run.ended("open").ready == ("last",)
        assert run.row("shot").state is NodeState.FAILED
        run.check()


def test_after_the_seal_nothing_runs_again() -> None:
    """There is nothing left that the session could be for."""
    run = archive()
    run.ended("shot")
    for node_id in ("last", "late"):
        run.do(Opened(node_id))
        run.ended(node_id)
    run.do(Opened("seal", 0))
    before = run.states()
    step = run.do(Lost("browser"), Attempted("browser"))
    assert (step.stop, step.ready, run.states()) == ((), (), before)


def test_a_session_that_works_with_a_lost_one_begins_anew_too() -> None:
    """With all that works with it alone; what is told of its former beginning lets nothing begin."""

    def shape(name: str, *parents: str, **said: Any) -> Shape:
        return Shape(name, parents, when="all_done", on_failure="continue", in_step=True, **said)

    run = planned(
        shape("browser", is_background=True),
        shape("tab", "browser", is_background=True, sessions=("browser",)),
        shape("shot", "browser", "tab", sessions=("tab",)),
    )
    run.begin()
    run.do(Opened("browser"))
    run.do(READY)
    run.do(Opened("tab"))
    run.do(Attempted("tab", has_begun=True))
    run.do(Opened("shot"))
    run.ended("shot")
    assert run.do(Lost("browser")).stop == ("tab",)
    assert run.do(READY, Attempted("tab", has_begun=True)).ready == ()
    assert run.ended("tab", CANCELLED).ready == ("tab",)
    run.do(Opened("tab"))
    assert run.do(Attempted("tab", has_begun=True)).ready == ("shot",)
    run.check()
    alone = run.do(Opened("shot")) and run.do(Lost("tab"))
    assert (alone.stop, run.row("browser").attempted) == (("shot",), 2)


def test_what_somebody_cancels_stays_cancelled() -> None:
    """The node of a lost session, or the whole run."""
    run = archive()
    run.do(CancelNode("shot"))
    run.do(Lost("browser"))
    run.ended("shot", CANCELLED)
    assert run.do(READY).ready == ("open",)
    run.do(Opened("open"))
    assert run.ended("open").ready == ("last",)
    assert run.row("shot").state is NodeState.CANCELLED
    run = archive()
    run.do(Lost("browser"))
    run.do(CancelRun())
    assert run.row("open").state is run.row("hash").state is NodeState.COMPLETED
    run.ended("shot", CANCELLED)
    run.ended("browser", CANCELLED)
    assert run.over is RunStatus.CANCELLED
    run.check()


def longer(*, tried_again: bool = False) -> PlannedRun:
    """A browser, two that work with it, a third after something that does without: of that one an attempt."""

    def shape(name: str, *parents: str, **said: Any) -> Shape:
        return Shape(name, parents, when="all_done", on_failure="continue", in_step=True, **said)

    run = planned(
        shape("browser", is_background=True),
        shape("open", "browser", sessions=("browser",)),
        shape("title", "open", sessions=("browser",)),
        shape("fetch", "title"),
        shape("shot", "fetch", sessions=("browser",)),
    )
    run.begin()
    run.do(Opened("browser"))
    run.do(READY)
    for node_id in ("open", "title"):
        run.do(Opened(node_id))
        run.ended(node_id)
    run.do(Opened("fetch"))
    if tried_again:
        run.do(Attempted("fetch"))
    return run


def test_what_comes_after_a_member_waits_for_it_also_behind_what_is_at_work() -> None:
    """That runs on, and its end, or its first attempt, lets nothing begin before the members before it."""
    for tried_again in (False, True):
        for early in (False, True):
            run = longer(tried_again=tried_again)
            run.do(Lost("browser"))
            assert run.do(Attempted("fetch")).ready == ()
            if early:
                assert run.ended("fetch", FAILED).ready == ()
                run.check()
            assert run.do(READY).ready == ("open",)
            run.do(Opened("open"))
            assert run.ended("open").ready == ("title",)
            run.do(Opened("title"))
            assert run.ended("title").ready == ("shot",)
            run.do(Opened("shot"))
            run.check()
            run.ended("fetch", FAILED)
            assert run.row("fetch").state is NodeState.FAILED
            assert run.row("fetch").error == {"kind": "exception", "message": "no"}
            run.ended("shot")
            run.ended("browser")
            assert run.over is RunStatus.FAILED
            run.check()


def test_what_is_over_without_the_session_is_over_again_when_it_is_its_turn() -> None:
    """So what comes after it waits for the members before it, and it runs no second time."""
    run = longer()
    run.ended("fetch")
    run.do(Lost("browser"))
    assert run.row("fetch").state is NodeState.WAITING
    assert run.do(READY).ready == ("open",)
    run.do(Opened("open"))
    run.ended("open")
    run.do(Opened("title"))
    assert run.ended("title").ready == ("shot",)
    assert run.row("fetch").state is NodeState.COMPLETED
    run.check()


def test_a_session_that_is_lost_over_and_over_loses_nothing() -> None:
    """Also before what works with it has run again."""
    run = archive()
    for _ in range(3):
        run.do(Lost("browser"))
        run.ended("shot", CANCELLED)
        run.check()
        assert run.do(READY).ready == ("open",)
    run.do(Opened("open"))
    run.do(Lost("browser"))
    assert run.do(READY).ready == ()
    assert run.ended("open", CANCELLED).ready == ("open",)
    run.do(Opened("open"))
    assert run.ended("open").ready == ("shot",)
    run.do(Opened("shot"))
    assert run.ended("shot").ready == ("last",)
    rest(run)
