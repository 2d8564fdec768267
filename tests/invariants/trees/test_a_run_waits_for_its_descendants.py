"""A run of hooks waits for all runs below it before its End hooks, and holds no worker meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any
from uuid import UUID

import psycopg
import pytest
from support.connections.kept import own_connection
from support.rows.jobs import CLEAR
from support.rows.run_trees import Tree, page
from support.rows.runs import dispatcher, start

from queue_workflows.engine.runs.retry import retry_run
from queue_workflows.engine.runs.verbs import cancel_run
from queue_workflows.repositories import NodeJobRepository
from queue_workflows.repositories.claims.end import Ending
from queue_workflows.repositories.runs.runs import ParentNode
from queue_workflows.states import JobStatus


@pytest.fixture
def tree(qwf_dsn: str) -> Iterator[Tree]:
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR)
        yield Tree(connection)


def test_a_run_that_has_named_no_other_does_not_wait(tree: Tree) -> None:
    """Its End hooks run as if there were no such node."""
    root = tree.start()
    tree.end(root, "save")
    assert tree.begun(root) == {"tidy"}
    tree.end(root, "tidy")
    assert tree.status(root) == "completed"


def test_the_end_hooks_run_after_the_last_run_below(tree: Tree) -> None:
    """However these ended; what they came to is not the parent's outcome."""
    root = tree.start()
    first, second, third = (tree.start(root) for _ in range(3))
    tree.end(root, "save")
    assert tree.begun(root) == set()
    tree.end_all(first)
    tree.end(second, "save", JobStatus.FAILED, counts=True)
    tree.end(second, "tidy")
    assert (tree.status(second), tree.begun(root)) == ("failed", set())
    cancel_run(third, conn=tree.connection)
    tree.settle()
    tree.end(third, "save", JobStatus.CANCELLED)
    assert (tree.status(third), tree.begun(root)) == ("cancelled", {"tidy"})
    tree.end(root, "tidy")
    assert tree.status(root) == "completed"


def test_runs_further_below_are_waited_for_beneath_one_that_left_them(tree: Tree) -> None:
    """What is over before those below it does not hide them from what waits above it."""
    root = tree.start()
    middle = tree.start(root, waits=False)
    leaf = tree.start(middle)
    tree.end(root, "save")
    tree.end_all(middle)
    assert (tree.status(middle), tree.begun(root)) == ("completed", set())
    tree.end_all(leaf)
    assert tree.begun(root) == {"tidy"}


def test_each_run_of_a_chain_waits_for_the_one_below_it(tree: Tree) -> None:
    """So the root ends last of all."""
    root = tree.start()
    middle = tree.start(root)
    leaf = tree.start(middle)
    tree.end(root, "save")
    tree.end(middle, "save")
    assert tree.held.keys() == {(leaf, "save")}
    tree.end_all(leaf)
    assert (tree.begun(root), tree.begun(middle)) == (set(), {"tidy"})
    tree.end(middle, "tidy")
    assert tree.begun(root) == {"tidy"}


def test_runs_that_are_gone_hold_up_nothing(tree: Tree) -> None:
    """Retention may have deleted what was over long before its parent's hooks were."""
    root = tree.start()
    child = tree.start(root)
    tree.end_all(child)
    tree.connection.execute("DELETE FROM workflow_runs WHERE id = %s", [child])
    tree.end(root, "save")
    assert tree.begun(root) == {"tidy"}


def test_a_retry_below_is_waited_for_too(tree: Tree) -> None:
    """Also below a run that is over itself."""
    root = tree.start()
    middle = tree.start(root, waits=False)
    leaf, other = tree.start(middle), tree.start(root)
    tree.end(leaf, "save", JobStatus.FAILED, counts=True)
    tree.end(leaf, "tidy")
    tree.end_all(middle)
    tree.end(root, "save")
    retry_run(leaf, conn=tree.connection)
    tree.settle()
    tree.end_all(other)
    assert tree.begun(root) == set()
    tree.end(leaf, "save")
    assert tree.begun(root) == {"tidy"}


def test_a_run_that_is_retried_waits_again(tree: Tree) -> None:
    """For what its hooks name this time."""
    root = tree.start()
    tree.end(root, "save", JobStatus.FAILED, counts=True)
    tree.end(root, "tidy")
    retry_run(root, conn=tree.connection)
    tree.settle()
    child = tree.start(root)
    tree.end(root, "save")
    assert tree.status(root) == "running"
    tree.end_all(child)
    assert tree.status(root) == "completed"


def test_a_cancelled_run_waits_for_nothing_any_more(tree: Tree) -> None:
    """Neither does it run its End hooks."""
    root = tree.start()
    tree.start(root)
    tree.end(root, "save")
    cancel_run(root, conn=tree.connection)
    tree.settle()
    assert (tree.status(root), tree.begun(root)) == ("cancelled", set())


def test_a_hook_that_is_tried_again_is_waited_for_as_it_may_name_others(tree: Tree) -> None:
    """Where the run has named any, or is to wait in any case."""
    some, always, none = tree.start(), tree.start(always=True), tree.start()
    child = tree.start(some)
    for run_id in (some, always, none):
        tree.end(run_id, "save", JobStatus.SCHEDULED, counts=True, delay_s=0.0)
    tree.end_all(child)
    assert [tree.begun(run_id) for run_id in (some, always, none)] == [set(), set(), {"tidy"}]
    tree.jobs.promote()
    tree.settle()
    tree.start(some)
    for run_id in (some, always):
        tree.end(run_id, "save")
    assert [tree.begun(run_id) for run_id in (some, always)] == [set(), {"tidy"}]


def test_a_run_named_while_the_last_other_one_ends_is_not_overlooked(tree: Tree, qwf_dsn: str) -> None:
    """The hook that names it is at work until its row is there, and what is at work is waited for."""
    root = tree.start()
    last = tree.start(root)
    tree.end(root, "save", JobStatus.SCHEDULED, counts=True, delay_s=0.0)
    tree.jobs.promote()
    tree.settle()
    with psycopg.connect(qwf_dsn) as hooks:
        late = start(hooks, page(), parent=ParentNode(root, None, 1))
        NodeJobRepository(hooks).end(Ending(tree.held.pop((root, "save")).fence, JobStatus.COMPLETED))
        tree.end_all(last)
        assert tree.begun(root) == set()
        hooks.commit()
    tree.settle()
    assert tree.begun(root) == set()
    tree.end_all(late)
    assert tree.begun(root) == {"tidy"}


# A run's end is at its commit, and held up there, with all its statements behind it.
HELD_UP = """
CREATE OR REPLACE FUNCTION held_up() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM pg_advisory_xact_lock(hashtextextended(NEW.id::text, 0)); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER held_up AFTER UPDATE ON workflow_runs DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW WHEN (NEW.finished_at IS NOT NULL) EXECUTE FUNCTION held_up()
"""


@pytest.fixture
def commits_wait(tree: Tree) -> Iterator[None]:
    tree.connection.execute(HELD_UP)
    yield
    tree.connection.execute("DROP FUNCTION held_up CASCADE")


@contextmanager
def ending(run_id: UUID, dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """While a dispatcher, on this connection, ends the run and waits in its commit, until the block ends."""
    with psycopg.connect(dsn) as lock, psycopg.connect(dsn, autocommit=True) as other:
        lock.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [str(run_id)])
        at_work = Thread(target=lambda: dispatcher(other).dispatch(run_id))
        at_work.start()
        try:
            until_one_waits_for(lock, goes_on=at_work.is_alive)
            yield other
        finally:
            lock.rollback()
            at_work.join()


def until_one_waits_for(holder: psycopg.Connection[Any], *, goes_on: Callable[[], bool]) -> None:
    pid = holder.info.backend_pid
    blocked = "SELECT count(*) FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
    with psycopg.connect(holder.info.dsn, password=holder.info.password, autocommit=True) as look:
        until(lambda: look.execute(blocked, [pid]).fetchone() == (1,), goes_on=goes_on)


def until(holds: Callable[[], bool], *, goes_on: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 150
    while not holds():
        assert goes_on()
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.usefixtures("commits_wait")
def test_an_end_and_a_wait_that_begins_beside_it_see_each_other(tree: Tree, qwf_dsn: str) -> None:
    """The wait does not see the end yet, and hears of it."""
    root = tree.start()
    child = tree.start(root)
    tree.end_unseen(child)
    with ending(child, qwf_dsn):
        tree.end(root, "save")
        assert tree.begun(root) == set()
    tree.settle()
    assert tree.begun(root) == {"tidy"}


@pytest.mark.usefixtures("commits_wait")
def test_of_two_last_ends_at_once_the_later_one_is_heard_of(tree: Tree, qwf_dsn: str) -> None:
    """Neither sees that the other is over."""
    root = tree.start()
    first, second = tree.start(root), tree.start(root)
    tree.end(root, "save")
    tree.end_unseen(first, second)
    with ending(first, qwf_dsn):
        with ending(second, qwf_dsn):
            pass
        tree.settle()
        assert tree.begun(root) == set()
    tree.settle()
    assert tree.begun(root) == {"tidy"}


@pytest.mark.usefixtures("commits_wait")
def test_an_end_below_a_run_that_ends_beside_it_reaches_the_one_above(tree: Tree, qwf_dsn: str) -> None:
    """The run between them leaves it, and passes on what it is told."""
    root = tree.start()
    middle = tree.start(root, waits=False)
    leaf = tree.start(middle)
    tree.end(root, "save")
    tree.end_unseen(middle, leaf)
    with ending(leaf, qwf_dsn):
        tree.settle()
        assert (tree.status(middle), tree.begun(root)) == ("completed", set())
    tree.settle()
    assert tree.begun(root) == {"tidy"}


@pytest.mark.usefixtures("commits_wait")
@pytest.mark.parametrize("between", ["none between them", "one between them that is over"])
def test_a_retry_waits_for_the_end_of_a_run_above_it_and_is_seen_from_further_up(
    tree: Tree, qwf_dsn: str, between: str
) -> None:
    """Neither would see the other, and the run that waits would find nothing open below it."""
    root = tree.start()
    middle = above = tree.start(root, waits=False)
    if between != "none between them":
        above = tree.start(middle, waits=False)
    leaf = tree.start(above)
    tree.end(root, "save")
    tree.end(leaf, "save", JobStatus.FAILED, counts=True)
    tree.end(leaf, "tidy")
    if above != middle:
        tree.end_all(above)
    tree.end_unseen(middle)
    with psycopg.connect(qwf_dsn, autocommit=True) as operator:
        again = Thread(target=lambda: retry_run(leaf, conn=operator))
        with ending(middle, qwf_dsn) as dispatching:
            again.start()
            until_one_waits_for(dispatching, goes_on=again.is_alive)
        again.join()
    tree.settle()
    assert (tree.status(middle), tree.begun(root)) == ("completed", set())
    tree.end(leaf, "save")
    assert tree.begun(root) == {"tidy"}


def test_a_run_does_not_end_while_one_below_it_is_retried(tree: Tree, qwf_dsn: str) -> None:
    """The dispatcher comes back to it when the retry is committed."""
    root = tree.start()
    middle = tree.start(root, waits=False)
    leaf = tree.start(middle)
    tree.end(root, "save")
    tree.end(leaf, "save", JobStatus.FAILED, counts=True)
    tree.end(leaf, "tidy")
    tree.end_unseen(middle)
    with psycopg.connect(qwf_dsn) as operator:
        retry_run(leaf, conn=operator)
        tree.settle()
        assert (tree.status(middle), tree.begun(root)) == ("running", set())
    tree.settle()
    assert (tree.status(middle), tree.begun(root)) == ("completed", set())
    tree.end(leaf, "save")
    assert tree.begun(root) == {"tidy"}
