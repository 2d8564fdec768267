"""How a hook's attempt ended, from its exit and what it said."""

from __future__ import annotations

import json
from typing import Any

import pytest

from queue_workflows.engine.outcomes import Discard, Skip
from queue_workflows.errors import HookFailed
from queue_workflows.hooks.attempt.result import SEALED, result_of
from queue_workflows.hooks.output.read import HookLine, HookOutput
from queue_workflows.hooks.script.process import HookExit

LATE = "it took longer than it may, and was ended after 1.5 s"


def ended(**how: Any) -> HookExit:
    usual: dict[str, Any] = {
        "code": 0,
        "signal": None,
        "timed_out": False,
        "stopped": None,
        "seconds": 1.5,
        "stdout_bytes": 0,
        "stdout_truncated": False,
        "stderr_bytes": 0,
        "stderr_truncated": False,
    }
    return HookExit(**usual | how)


def saying(*statuses: str, text: str = "") -> HookOutput:
    payloads = [{"type": "Result", "status": status, "output_str": text} for status in statuses]
    return HookOutput(tuple(HookLine(at, "Result", json.dumps(said)) for at, said in enumerate(payloads, 1)))


def outcome(how: HookExit, said: HookOutput, *, ends_at_timeout: bool = False) -> Any:
    return result_of("title/on_Page__10_a.sh", how, said, ends_at_timeout=ends_at_timeout)


def test_an_exit_of_zero_is_what_the_last_result_says() -> None:
    """A result, or nothing at all, is a success; a failure or a skip is final."""
    assert outcome(ended(), saying("failed", "succeeded", text="fine"))["output_str"] == "fine"
    assert outcome(ended(), HookOutput())["status"] is None
    with pytest.raises(Discard, match=r"title/on_Page__10_a\.sh says that it failed: no title"):
        outcome(ended(), saying("succeeded", "failed", text="no title"))
    with pytest.raises(Skip, match="no need"):
        outcome(ended(), saying("skipped", text="no need"))
    with pytest.raises(Skip, match="nothing to do"):
        outcome(ended(), saying("skipped"))


def test_no_results_are_a_completion() -> None:
    """A script that did its work and found nothing has done its work."""
    assert outcome(ended(), saying("noresults", text="no media"))["status"] == "noresults"


def test_an_exit_of_ten_is_a_skip() -> None:
    """Whatever its records say; unless it was cut short, when it may have meant to do more."""
    with pytest.raises(Skip, match="switched off"):
        outcome(ended(code=10), saying("failed", text="switched off"))
    with pytest.raises(Skip, match="nothing to do, by its exit status"):
        outcome(ended(code=10), HookOutput())
    with pytest.raises(HookFailed):
        outcome(ended(code=10, timed_out=True), HookOutput())


def test_what_a_failed_hook_has_said_goes_with_its_failure() -> None:
    """By its own word or its exit status: its records and files are part of the job's result."""
    for how, said, raised in (
        (ended(code=3), saying("succeeded", text="half"), HookFailed),
        (ended(), saying("failed", text="half"), Discard),
        (ended(output_error="disk full"), saying("succeeded", text="half"), HookFailed),
    ):
        with pytest.raises(raised) as caught:
            outcome(how, said)
        assert json.loads(caught.value.result_json)["output_str"] == "half"


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"code": 3, "stderr_tail": "one\n  the cause \n\n"}, "exit status 3: the cause"),
        ({"code": None, "signal": 9}, "it was ended by SIGKILL"),
        ({"code": None, "signal": 9, "killed_by": "by the kernel"}, "it was ended by SIGKILL by the kernel"),
        ({"code": 137, "killed_by": "by the kernel"}, "exit status 137: killed by the kernel"),
        ({"code": None, "signal": 250}, "it was ended by signal 250"),
        (
            {"code": None, "signal": 15, "timed_out": True},
            LATE,
        ),
        ({"code": 0, "timed_out": True}, LATE),
        ({"code": None, "signal": 15, "stopped": "cancelled"}, "it was told to stop: cancelled"),
        ({"code": 0, "stopped": "its worker stops"}, "it was told to stop: its worker stops"),
        ({"output_error": "disk full"}, "what it printed could not be kept: disk full"),
    ],
)
def test_another_end_is_tried_again_whatever_was_said(how: dict[str, Any], words: str) -> None:
    """By the plugin's policy; the error says how it ended, and the last thing that it printed."""
    for said in (saying("succeeded"), saying("failed"), HookOutput()):
        with pytest.raises(HookFailed) as failed:
            outcome(ended(**how), said)
        assert str(failed.value) == f"title/on_Page__10_a.sh: {words}"


@pytest.mark.parametrize(
    ("how", "ends_at_timeout"),
    [
        ({"code": None, "signal": 9, "stopped": SEALED}, False),
        ({"code": 143, "stopped": SEALED}, False),
        ({"code": None, "signal": 15, "timed_out": True}, True),
        ({"code": 0, "timed_out": True}, True),
    ],
)
def test_a_background_hook_that_had_its_time_is_what_it_said(
    how: dict[str, Any], ends_at_timeout: bool
) -> None:
    """Its run's seal is how it is meant to end, and its own timeout where its plugin says so."""
    assert outcome(ended(**how), HookOutput(), ends_at_timeout=ends_at_timeout)["status"] is None
    with pytest.raises(Discard):
        outcome(ended(**how), saying("failed"), ends_at_timeout=ends_at_timeout)
