"""The one way of what is claimed for hooks: run it, queue it again if that is broken off, clean up anyway."""

from __future__ import annotations

import pytest

from queue_workflows.hooks.script.lifecycle import bring_to_its_end


class Done(Exception):
    """An end that is raised."""


class Something:
    """Claimed, and writes down what is done with it."""

    def __init__(self, raises: BaseException | None = None) -> None:
        self.raises = raises
        self.done: list[str] = []

    def run(self) -> str:
        self.done.append("run")
        if self.raises is not None:
            raise self.raises
        return "result"

    def update_and_requeue(self) -> None:
        self.done.append("update_and_requeue")

    def cleanup(self) -> None:
        self.done.append("cleanup")


def test_what_comes_to_its_end_is_only_cleaned_up() -> None:
    """With a result, or a verdict that is raised."""
    well, verdict = Something(), Something(Done())
    assert bring_to_its_end(well, verdicts=(Done,)) == "result"
    with pytest.raises(Done):
        bring_to_its_end(verdict, verdicts=(Done,))
    assert well.done == verdict.done == ["run", "cleanup"]


@pytest.mark.parametrize("raised", [Done(), ValueError("broken"), KeyboardInterrupt()])
def test_what_is_broken_off_is_queued_again(raised: BaseException) -> None:
    """Whatever broke it off, and before it is cleaned up."""
    broken = Something(raised)
    with pytest.raises(type(raised)):
        bring_to_its_end(broken)
    assert broken.done == ["run", "update_and_requeue", "cleanup"]
