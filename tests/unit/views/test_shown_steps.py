"""Which steps of a durable function have room where not all have."""

from __future__ import annotations

from queue_workflows.models import DurableStep
from queue_workflows.repositories.durable.listing import MOST_STEPS
from queue_workflows.views.jobs.steps import first_of, said_of_more


def steps(*positions: int, waiting: tuple[int, ...] = ()) -> list[DurableStep]:
    """Steps at these places."""
    return [
        DurableStep(name=f"s{at}", call=1, position=at, status="waiting" if at in waiting else "done")
        for at in positions
    ]


def test_what_is_waited_for_has_room_before_all_else() -> None:
    """It says why the function stands, however far behind the others it comes."""
    many = steps(1, 2, 3, 4, 5, waiting=(5,))
    assert [one.position for one in first_of(many, 3)] == [1, 2, 5]
    assert [one.position for one in first_of(many, 9)] == [1, 2, 3, 4, 5]
    assert [one.position for one in first_of(steps(1, 2, 3, waiting=(1, 2, 3)), 2)] == [1, 2]


def test_it_is_said_how_many_have_none() -> None:
    """At least so many, where no more were read."""
    assert said_of_more("ingest:7", steps(1, 2), 2) is None
    assert said_of_more("ingest:7", steps(1, 2, 3), 2) == "… and 1 more: `qwf job show ingest:7`"
    all_read = steps(*range(MOST_STEPS))
    assert said_of_more("ingest:7", all_read, 200) == "… and 800+ more: `qwf job show ingest:7`"
