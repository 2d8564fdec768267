"""Acts that go on in pages: what they did is kept, whatever stops them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from queue_workflows.web.acts.act import Done
from queue_workflows.web.acts.under_way import PROGRAM_ENDS, ActsUnderWay


def test_a_program_that_ends_waits_for_one_page() -> None:
    """What that page did stays, and the rest is left to be done again."""
    begun = ActsUnderWay().begin("ada", "job.cancel", "Cancel 1,500 jobs", back="/jobs", foreseen=1_500)
    asked = []

    def pages() -> Iterator[Done]:
        for _ in range(3):
            asked.append(500)
            yield Done(Counter(cancelled=500))

    begun.go(pages, lambda: len(asked) == 2)
    assert asked == [500, 500]
    assert begun.total == 1_000
    assert begun.is_over
    assert begun.stopped is not None
    assert begun.stopped.title == PROGRAM_ENDS


def test_an_act_that_is_not_stopped_does_all_of_it() -> None:
    """Each page is asked for, and nothing is said to have stopped it."""
    begun = ActsUnderWay().begin("ada", "job.cancel", "Cancel 3 jobs", back="/jobs", foreseen=3)
    begun.go(lambda: iter([Done(Counter(cancelled=2)), Done(Counter(cancelled=1))]))
    assert (begun.total, begun.is_over, begun.stopped) == (3, True, None)
