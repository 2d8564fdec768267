"""The one table of legal moves, walked from end to end."""

from __future__ import annotations

from itertools import pairwise, product

import pytest

from queue_workflows.errors import IllegalTransition
from queue_workflows.states import (
    BINARY_FINAL,
    INGEST_STATUSES,
    JOB_TERMINAL,
    MOVES,
    NODE_OVER,
    NODE_STATUSES,
    RUN_TERMINAL,
    BinaryStatus,
    JobStatus,
    NodeState,
    RunStatus,
    check_move,
)

STATUSES = {
    "run": tuple(RunStatus),
    "node": tuple(NodeState),
    "node job": NODE_STATUSES,
    "ingest job": INGEST_STATUSES,
    "binary": tuple(BinaryStatus),
}
TERMINAL = {
    "run": RUN_TERMINAL,
    "node": NODE_OVER,
    "node job": JOB_TERMINAL,
    "ingest job": JOB_TERMINAL,
    "binary": BINARY_FINAL,
}
FIRST = {"run": "queued", "node": "waiting", "node job": "queued", "ingest job": "queued", "binary": "queued"}
# What a node's job opens as is up to the dispatcher, which finds out when the node is ready again.
REOPENED = {
    "run": {"running"},
    "node": {"waiting"},
    "node job": {"queued", "scheduled", "awaiting_input", "skipped"},
    "ingest job": {"queued"},
}
FAMILIES = list(MOVES)


def test_every_family_of_rows_has_its_table() -> None:
    """Runs, nodes, node jobs, ingest jobs and programs; nothing else has a status that moves."""
    assert set(MOVES) == set(STATUSES)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_status_has_an_entry_and_no_other(family: str) -> None:
    """No status is forgotten, none leads out of its family, none becomes itself."""
    statuses = set(STATUSES[family])
    assert set(MOVES[family]) == statuses
    for old, news in MOVES[family].items():
        assert news <= statuses
        assert old not in news


@pytest.mark.parametrize("family", sorted(REOPENED))
def test_terminal_is_what_only_an_operator_reopens(family: str) -> None:
    """From a terminal status exactly the retry leads on; every other status can still end by itself."""
    for old, news in MOVES[family].items():
        if old in TERMINAL[family]:
            assert news == REOPENED[family] - {old}
        else:
            assert "cancelled" in news or old == "running"


@pytest.mark.parametrize("family", FAMILIES)
def test_every_status_is_reachable_and_every_row_can_end(family: str) -> None:
    """From the first status each other one can be reached, and from each one a terminal status."""
    everything = set(STATUSES[family])
    assert reachable(family, FIRST[family]) == everything
    for status in everything:
        assert reachable(family, status) & TERMINAL[family]


@pytest.mark.parametrize("family", ["run", "node job", "binary"])
def test_what_hooks_are_made_of_has_one_shape(family: str) -> None:
    """Queued, running, a final state; what is broken off is queued or running again, never lost."""
    check_move(family, "queued", "running")
    for final in TERMINAL[family]:
        check_move(family, "running", final)
        assert reachable(family, final) & {"running"}
    if family != "run":
        # A run is advanced by whoever is there, and goes on as it is.
        check_move(family, "running", "queued")


def test_the_main_roads_are_open_and_the_short_cuts_closed() -> None:
    """What the design names by hand, so that a slip in the table itself shows."""
    for road in (
        ["scheduled", "queued", "running", "completed", "queued"],
        ["queued", "running", "scheduled", "queued", "running", "failed"],
        ["queued", "running", "queued", "running", "skipped"],
        ["queued", "scheduled", "cancelled"],
        ["running", "scheduled", "running"],
    ):
        for old, new in pairwise(road):
            check_move("ingest job", old, new)
            check_move("node job", old, new)
    for old, new in [("queued", "completed"), ("scheduled", "completed"), ("completed", "running")]:
        for family in ("ingest job", "node job"):
            with pytest.raises(IllegalTransition):
                check_move(family, old, new)


def test_only_a_node_job_waits_for_input() -> None:
    """An ingest job has nobody to ask."""
    check_move("node job", "running", "awaiting_input")
    check_move("node job", "awaiting_input", "completed")
    with pytest.raises(IllegalTransition):
        check_move("ingest job", "running", "awaiting_input")


@pytest.mark.parametrize("family", FAMILIES)
def test_check_move_allows_the_table_and_refuses_everything_else(family: str) -> None:
    """Every pair of every status, those of other families and nonsense included."""
    words = {*map(str, JobStatus), *map(str, RunStatus), *map(str, NodeState), *map(str, BinaryStatus)}
    words |= {"", "QUEUED", "done"}
    for old, new in product(words, words):
        if new in MOVES[family].get(old, ()):
            check_move(family, old, new)
            continue
        with pytest.raises(IllegalTransition) as refused:
            check_move(family, old, new)
        assert (refused.value.family, refused.value.old, refused.value.new) == (family, old, new)


def reachable(family: str, start: str) -> set[str]:
    seen: set[str] = {start}
    fresh = [start]
    while fresh:
        for new in MOVES[family][fresh.pop()] - seen:
            seen.add(new)
            fresh.append(new)
    return seen
