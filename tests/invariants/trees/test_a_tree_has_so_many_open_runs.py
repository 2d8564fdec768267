"""A tree may have a cap on the runs that are open at once: the others wait for their turn, and say so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from uuid import UUID

import pytest
from support.connections.kept import own_connection
from support.rows.jobs import CLEAR
from support.rows.run_trees import Tree, page
from support.rows.runs import dispatcher

from queue_workflows.engine.explain.job import Knowledge
from queue_workflows.engine.explain.run import explain_run
from queue_workflows.engine.runs.retry import retry_run
from queue_workflows.engine.runs.verbs import cancel_run, start_run
from queue_workflows.repositories import RunRepository
from queue_workflows.repositories.explain.explain_run import RunExplainingRepository
from queue_workflows.repositories.runs.tree import RunTreeRepository
from queue_workflows.states import JobStatus
from queue_workflows.workflow.document.load import load_document


class CappedTree(Tree):
    """A tree that begins with a run that has a cap, and what hooks find below its runs."""

    def begin(self, most: int) -> UUID:
        root = start_run({"name": "page", **page()}, conn=self.connection, max_open_runs=most).id
        self.settle()
        return root

    def find(self, below: UUID, *names: str) -> list[UUID]:
        """As the records of a hook do, in the transaction in which they are stored."""
        document, tree = load_document({"name": "page", **page()}), RunTreeRepository(self.connection)
        with self.connection.transaction():
            cap = tree.cap_of(below)
            RunRepository(self.connection).insert_found(
                "page",
                spec=document.snapshot(),
                spec_hash=document.hash,
                priority=5,
                labels={},
                parcel_id=None,
                traceparent=None,
                parent_run_id=below,
                depth=1,
                inputs=dict.fromkeys(names, "{}"),
                capped_by=cap,
            )
            if cap is not None:
                tree.ask_to_admit(cap)
        self.settle()
        sql = "SELECT id FROM workflow_runs WHERE dedupe_key = ANY (%s) ORDER BY id"
        return [run_id for (run_id,) in self.connection.execute(sql, [list(names)])]

    def open(self, runs: Sequence[UUID]) -> list[bool]:
        """Which of them have begun and have a hook at work."""
        return [bool(self.begun(run_id)) for run_id in runs]


@pytest.fixture
def tree(qwf_dsn: str) -> Iterator[CappedTree]:
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR)
        yield CappedTree(connection)


def test_runs_begin_in_order_as_others_end(tree: CappedTree) -> None:
    """The root counts while its hooks are at work, and not while it waits for those below."""
    root = tree.begin(2)
    runs = tree.find(root, "a", "b", "c", "d")
    assert tree.open(runs) == [True, False, False, False]
    tree.end(root, "save")
    assert tree.open(runs) == [True, True, False, False]
    tree.end_all(runs[1])
    assert tree.open(runs) == [True, False, True, False]
    tree.end(runs[0], "save", JobStatus.FAILED, counts=True)
    assert tree.open(runs) == [True, False, True, False]
    tree.end(runs[0], "tidy")
    assert tree.open(runs) == [False, False, True, True]
    tree.end_all(runs[2])
    tree.end_all(runs[3])
    tree.end(root, "tidy")
    assert {tree.status(run_id) for run_id in (root, *runs[1:])} == {"completed"}


def test_runs_that_wait_for_those_below_them_never_fill_a_tree(tree: CappedTree) -> None:
    """Else a chain as long as the cap would wait for ever."""
    above = tree.begin(1)
    for name in "abc":
        (below,) = tree.find(above, name)
        assert tree.open([below]) == [False]
        tree.end(above, "save")
        assert tree.open([below]) == [True]
        above = below
    tree.end_all(above)
    assert tree.status(above) == "completed"


def test_a_run_on_hold_says_why(tree: CappedTree) -> None:
    """Which run has the cap, how many are open, and how many may be."""
    root = tree.begin(1)
    (run_id,) = tree.find(root, "a")
    there = RunExplainingRepository(tree.connection).circumstances(run_id)
    assert there is not None
    reasons = {one.code: one.data for one in explain_run(there, Knowledge(30.0, 1.0)).reasons}
    assert reasons["open_runs"] == {"capped_by": root, "open": 1, "most": 1}
    assert "not_begun" not in reasons


def test_a_cancel_takes_what_is_on_hold_too(tree: CappedTree) -> None:
    """It ends without having begun, and what is asked of it otherwise begins nothing."""
    root = tree.begin(1)
    runs = tree.find(root, "a", "b")
    sql = (
        "INSERT INTO workflow_dispatch_events (run_id, generation, attempt, kind) VALUES (%s, 1, 0, 'begin')"
    )
    tree.connection.execute(sql, [runs[0]])
    tree.settle()
    assert (tree.status(runs[0]), tree.open(runs)) == ("queued", [False, False])
    cancel_run(root, conn=tree.connection)
    tree.settle()
    assert [tree.status(run_id) for run_id in runs] == ["cancelled", "cancelled"]
    held = "SELECT count(*) FROM workflow_runs WHERE hold_reason IS NOT NULL"
    assert tree.connection.execute(held).fetchone() == (0,)


def test_room_that_is_made_beside_a_retry_of_the_root_is_given(tree: CappedTree) -> None:
    """What it is told while it is over is not forgotten when it goes on."""
    root = tree.begin(1)
    tree.end(root, "save", JobStatus.FAILED, counts=True)
    tree.end(root, "tidy")
    first, second = tree.find(root, "a", "b")
    assert tree.open([first, second]) == [True, False]
    tree.end_unseen(first)
    assert dispatcher(tree.connection).dispatch(first)
    retry_run(root, conn=tree.connection)
    tree.settle()
    assert tree.open([root, second]) == [True, False]
    tree.end(root, "save")
    assert tree.open([second]) == [True]
