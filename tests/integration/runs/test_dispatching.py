"""What the dispatcher makes of a run's events, with a worker that is a function."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.workers import until
from support.rows.jobs import CLEAR
from support.rows.runs import dispatcher, run_through, settings, settle, start, work

from queue_workflows.engine.execution.redaction import Redactor
from queue_workflows.engine.runs.finished_run_hooks import deliver
from queue_workflows.engine.runs.retry import retry_run
from queue_workflows.repositories import InputSubmissionRepository, NodeJobRepository, RunRepository
from queue_workflows.repositories.runs import runs
from queue_workflows.repositories.runs.outbox import DispatchRepository
from queue_workflows.repositories.runs.parked import ParkedJobRepository
from queue_workflows.repositories.sql.connection import Statements


@pytest.fixture
def connection(qwf_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """Empty tables, and a connection whose every statement is seen at once."""
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR)
        yield connection


def nodes(connection: psycopg.Connection[Any], run_id: Any) -> dict[str, str]:
    """The states of a run's nodes that have a row."""
    rows = connection.execute("SELECT node_id, state FROM workflow_nodes WHERE run_id = %s", [run_id])
    return dict(rows.fetchall())


def test_a_chain_runs_to_its_outputs(connection):
    """Each node starts when the one before has completed, and the outputs are what they refer to."""
    chain = {
        "nodes": [
            {"id": "one", "module": "m"},
            {"id": "two", "module": "m", "inputs": {"n": {"$from": "one.n"}}},
            {"id": "three", "module": "m", "depends_on": ["two"]},
        ],
        "outputs": {"n": {"$from": "three.n"}},
    }
    run_id = start(connection, chain, priority=7)
    order = []

    def body(job):
        order.append(job.node_id)
        assert job.priority == 7
        return {"n": len(order)}

    run_through(connection, dispatcher(connection), body)
    run = RunRepository(connection).fetch(run_id)
    assert order == ["one", "two", "three"]
    assert (run.status, run.outputs, run.nodes_left, run.nodes_active) == ("completed", {"n": 3}, 0, 0)
    assert nodes(connection, run_id) == dict.fromkeys(order, "completed")
    assert connection.execute("SELECT kind FROM workflow_dispatch_events").fetchall() == [("run_finished",)]


@pytest.mark.slow
def test_a_fan_out_and_in(connection):
    """One job per element, in parts; what comes after starts once, when the last has ended."""
    fan = {
        "inputs": {"many": {"type": "integer"}},
        "nodes": [
            {"id": "list", "module": "m"},
            {
                "id": "each",
                "module": "m",
                "for_each": {"$from": "list.all"},
                "inputs": {"x": {"$from": "item"}},
            },
            {"id": "sum", "module": "m", "inputs": {"all": {"$from": "each"}}},
        ],
    }
    run_id = start(connection, fan, inputs={"many": 12_000})
    items = []

    def body(job):
        if job.node_id == "list":
            return {"all": list(range(12_000))}
        if job.node_id == "each":
            items.append(job.map_index)
        return {}

    run_through(connection, dispatcher(connection), body)
    assert sorted(items) == list(range(12_000))
    assert RunRepository(connection).fetch(run_id).status == "completed"


def test_an_answer_resumes_a_parked_node(connection):
    """An answer that does not fit is refused with its error, the next one completes the node."""
    document = {
        "nodes": [
            {"id": "ask", "type": "input", "schema": {"ok": {"type": "boolean"}}},
            {"id": "go", "module": "m", "skip_if": {"$eq": [{"$from": "ask.ok"}, False]}},
        ],
        "outputs": {"ok": {"$from": "ask.ok"}},
    }
    run_id = start(connection, document)
    settling = dispatcher(connection)
    settle(settling)
    assert work(connection, lambda job: None) == 0
    answers = InputSubmissionRepository(connection)
    wrong = answers.insert(run_id, "ask", {"ok": "yes"})
    settle(settling)
    assert (answers.fetch(wrong).status, RunRepository(connection).fetch(run_id).status) == (
        "rejected",
        "running",
    )
    answers.insert(run_id, "ask", {"ok": False})
    settle(settling)
    run = RunRepository(connection).fetch(run_id)
    assert (run.status, run.outputs) == ("completed", {"ok": False})
    assert nodes(connection, run_id) == {"ask": "completed", "go": "skipped"}


def outbox(connection: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
    """What is left in the outbox, but for the ends of runs."""
    return connection.execute(
        "SELECT kind, tries, last_error, poisoned_at IS NOT NULL FROM workflow_dispatch_events"
        " WHERE kind <> 'run_finished' ORDER BY id"
    ).fetchall()


def cancel(connection: psycopg.Connection[Any], run_id: Any, **payload: Any) -> None:
    """What the verb of the public face writes."""
    DispatchRepository(connection).add_event(run_id, "cancel", payload)


CHILD = {
    "name": "child",
    "inputs": {"n": {"type": "integer"}},
    "nodes": [{"id": "work", "module": "m", "inputs": {"n": {"$from": "inputs.n"}}}],
    "outputs": {"twice": {"$from": "work.twice"}},
}
PARENT = {
    "nodes": [
        {"id": "list", "module": "m"},
        {"id": "kids", "type": "workflow", "workflow": "child", "for_each": {"$from": "list.all"},
         "inputs": {"n": {"$from": "item"}}},
    ],
    "outputs": {"all": {"$from": "kids"}},
}  # fmt: skip


def test_children_run_as_nodes_of_their_parent(connection):
    """A child run for each element, whose outputs are the node's results in order."""
    run_id = start(connection, PARENT, priority=8)

    def body(job):
        assert job.priority == 8
        if job.node_id == "list":
            return {"all": [3, 1, 2]}
        run = RunRepository(connection).fetch(job.run_id)
        assert (run.parent_run_id, run.depth) == (run_id, 1)
        return {"twice": 2 * run.inputs["n"]}

    run_through(connection, dispatcher(connection, CHILD), body)
    run = RunRepository(connection).fetch(run_id)
    assert (run.status, run.outputs) == ("completed", {"all": [{"twice": 6}, {"twice": 2}, {"twice": 4}]})


def test_the_end_of_a_child_is_one_event_for_its_parent(connection):
    """That of the job that waits for it, which also says that a run below is over."""
    run_id = start(connection, PARENT)
    settling = dispatcher(connection, CHILD)
    settle(settling)
    work(connection, lambda job: {"all": [1, 2, 3, 4, 5]})
    settle(settling)
    assert work(connection, lambda job: {"twice": 0}) == 5
    for child in RunRepository(connection).list(parent_run_id=run_id):
        assert settling.dispatch(child.id)
    told = "SELECT kind, count(*) FROM workflow_dispatch_events WHERE run_id = %s GROUP BY kind"
    assert connection.execute(told, [run_id]).fetchall() == [("completed", 5)]
    settle(settling)
    assert RunRepository(connection).fetch(run_id).status == "completed"


@pytest.mark.parametrize("rows", [2, 4], ids=["two statements", "one statement"])
def test_the_children_of_a_list_start_together(connection, monkeypatch, rows):
    """By a statement for many of them, each with its own inputs; one whose inputs are wrong fails alone."""
    monkeypatch.setattr(runs, "CHUNK_ROWS", rows)
    asked = []
    kept = Statements.rows
    monkeypatch.setattr(Statements, "rows", lambda *given: asked.append(given[1]) or kept(*given))
    run_id = start(connection, {**PARENT, "on_failure": "continue"})
    settling = dispatcher(connection, CHILD)
    settle(settling)
    work(connection, lambda job: {"all": [1, 2, "no number", 3, 4]})
    settle(settling)
    children = RunRepository(connection).list(parent_run_id=run_id)
    children.sort(key=lambda child: child.parent_node_job_id)
    assert [(child.inputs, child.depth, child.priority) for child in children] == [
        ({"n": number}, 1, 5) for number in (1, 2, 3, 4)
    ]
    jobs = (
        "SELECT id FROM workflow_node_jobs WHERE node_id = 'kids' AND status = 'awaiting_input' ORDER BY id"
    )
    assert [child.parent_node_job_id for child in children] == [row[0] for row in connection.execute(jobs)]
    assert asked.count(runs.INSERT_CHILDREN) == 4 // rows
    failed = "SELECT map_index, errors #>> '{0,message}' FROM workflow_node_jobs WHERE status = 'failed'"
    assert [(place, "inputs.n" in said) for place, said in connection.execute(failed)] == [(2, True)]


def test_a_workflow_that_starts_itself_comes_to_an_end(connection):
    """Sixteen deep, and then its node fails, and with it all above."""
    again = {"name": "again", "nodes": [{"id": "me", "type": "workflow", "workflow": "again"}]}
    run_id = start(connection, again)
    settle(dispatcher(connection, again))
    runs = RunRepository(connection).list()
    assert (len(runs), {run.status for run in runs}) == (17, {"failed"})
    assert "nested 16 deep" in RunRepository(connection).fetch(run_id).error["message"]


def test_the_end_of_an_older_generation_means_nothing(connection):
    """A job that was retried before anybody acted on its failure has not failed."""
    run_id = start(connection, {"nodes": [{"id": "one", "module": "m"}]})
    settling = dispatcher(connection)
    settle(settling)

    def fail(_job):
        raise ValueError("no")

    work(connection, fail)
    jobs = NodeJobRepository(connection)
    (job,) = jobs.list(run_id=run_id)
    assert jobs.retry_many([job.id], actor="ann", reason=None)
    settle(settling)
    assert RunRepository(connection).fetch(run_id).status == "running"
    run_through(connection, settling, lambda _job: {})
    assert RunRepository(connection).fetch(run_id).status == "completed"


def test_a_childs_failure_is_its_nodes(connection):
    """The parent fails with it, its other children are cancelled, and one that cannot start fails too."""
    run_id = start(connection, PARENT)

    def body(job):
        if job.node_id == "list":
            return {"all": [1, 2]}
        raise ValueError("no")

    settling = dispatcher(connection, CHILD)
    settle(settling)
    work(connection, body)
    settle(settling)
    work(connection, body, limit=1)
    settle(settling)
    statuses = [run.status for run in RunRepository(connection).list(parent_run_id=run_id)]
    run = RunRepository(connection).fetch(run_id)
    assert sorted(statuses) == ["cancelled", "failed"]
    assert (run.status, run.error["node"]) == ("failed", "kids")
    assert "ValueError: no" in run.error["message"] or "no" in run.error["message"]

    lonely = start(connection, PARENT)
    run_through(connection, dispatcher(connection), lambda job: {"all": [1]})
    run = RunRepository(connection).fetch(lonely)
    assert run.status == "failed"
    assert "there is no workflow 'child'" in run.error["message"]


def test_a_cancel_reaches_children_and_parked_nodes(connection):
    """Everything that waits ends at once, in the children too, and nothing starts any more."""
    document = {
        "nodes": [
            {"id": "kid", "type": "workflow", "workflow": "child", "inputs": {"n": 1}},
            {"id": "ask", "type": "input"},
            {"id": "tidy", "module": "m", "depends_on": ["kid", "ask"], "when": "all_done"},
        ]
    }
    run_id = start(connection, document)
    settling = dispatcher(connection, CHILD)
    settle(settling)
    cancel(connection, run_id, reason="enough")
    settle(settling)
    runs = RunRepository(connection)
    run, (child,) = runs.fetch(run_id), runs.list(parent_run_id=run_id)
    assert (run.status, run.cancel_reason, child.status) == ("cancelled", "enough", "cancelled")
    assert run.cancel_requested_at is not None
    assert connection.execute("SELECT DISTINCT status FROM workflow_node_jobs").fetchall() == [("cancelled",)]
    assert outbox(connection) == []


def test_a_run_that_is_cancelled_before_it_began_starts_nothing(connection):
    """It has no node and no job."""
    run_id = start(connection, CHILD, inputs={"n": 1})
    cancel(connection, run_id)
    settle(dispatcher(connection))
    assert RunRepository(connection).fetch(run_id).status == "cancelled"
    assert connection.execute("SELECT count(*) FROM workflow_node_jobs").fetchone() == (0,)


def test_what_is_parked_expires(connection):
    """A wait is completed and a question has failed, and both say so to their run."""
    document = {
        "on_failure": "continue",
        "nodes": [
            {"id": "nap", "type": "wait", "seconds": 0},
            {"id": "at", "type": "wait", "until": "2020-01-31T09:00:00Z"},
            {"id": "ask", "type": "input", "expires_s": 0.001},
            {"id": "long", "type": "wait", "seconds": 3600},
        ],
    }
    run_id = start(connection, document)
    settling = dispatcher(connection)
    settle(settling)
    parked = ParkedJobRepository(connection)

    def is_next() -> bool:
        due = parked.expire().next_in_s
        settle(settling)
        return due is not None and due > 60

    until(is_next)
    states = {"nap": "completed", "at": "completed", "ask": "failed", "long": "active"}
    assert nodes(connection, run_id) == states
    error = connection.execute(
        "SELECT error ->> 'message' FROM workflow_nodes WHERE node_id = 'ask'"
    ).fetchone()
    assert error == ("nobody answered in time",)


def test_a_node_that_cannot_be_opened_is_broken_and_says_why(connection):
    """A list that is none, a list that is too long, and a moment that is none."""
    document = {
        "on_failure": "continue",
        "nodes": [
            {"id": "list", "module": "m"},
            {"id": "none", "module": "m", "for_each": {"$from": "list.text"}},
            {"id": "long", "module": "m", "for_each": {"$from": "list.long"}},
            {"id": "when", "type": "wait", "until": {"$from": "list.text"}},
            {"id": "gone", "module": "m", "skip_if": {"$eq": [{"$from": "list.nothing"}, 1]}},
        ],
    }
    run_id = start(connection, document)
    run_through(connection, dispatcher(connection), lambda job: {"text": "x", "long": [0] * 100_001})
    rows = connection.execute(
        "SELECT node_id, error ->> 'message' FROM workflow_nodes WHERE state = 'failed'"
    )
    said = dict(rows.fetchall())
    assert "must be a list" in said["none"] or "list" in said["none"]
    assert "100,000" in said["long"]
    assert "no moment" in said["when"]
    assert "nothing" in said["gone"]
    assert RunRepository(connection).fetch(run_id).status == "failed"


def test_what_the_host_app_cannot_say_fails_the_node(connection):
    """With what it raised, at once, in whatever the dispatcher asks it for; nothing is put aside for it."""

    def host(path, run):
        raise TimeoutError("vault is sealed")

    asked = {"$from": "host.x"}
    documents = [
        {"nodes": [{"id": "a", "module": "m", "skip_if": asked}]},
        {"nodes": [{"id": "a", "module": "m", "for_each": asked}]},
        {"nodes": [{"id": "a", "type": "workflow", "workflow": "child", "inputs": {"n": asked}}]},
        {"nodes": [{"id": "a", "module": "m"}], "outputs": {"x": asked}},
    ]
    runs = [start(connection, document) for document in documents]
    run_through(connection, dispatcher(connection, CHILD, host=host), lambda job: None)
    for run_id in runs:
        run = RunRepository(connection).fetch(run_id)
        assert (run.status, "host.x" in run.error["message"]) == ("failed", True)
        assert "the host app cannot say: TimeoutError: vault is sealed" in run.error["message"]
    assert outbox(connection) == []


def test_an_element_is_skipped_by_itself(connection):
    """Its condition looks at it; the others run, and what comes after sees null in its place."""
    document = {
        "nodes": [
            {"id": "list", "module": "m"},
            {"id": "each", "module": "m", "for_each": {"$from": "list.all"},
             "skip_if": {"$eq": [{"$from": "item"}, 2]}},
        ],
        "outputs": {"all": {"$from": "each"}},
    }  # fmt: skip
    run_id = start(connection, document)
    run_through(
        connection,
        dispatcher(connection),
        lambda job: {"all": [1, 2, 3]} if job.node_id == "list" else {"at": job.map_index},
    )
    run = RunRepository(connection).fetch(run_id)
    assert (run.status, run.outputs) == ("completed", {"all": [{"at": 0}, None, {"at": 2}]})


def test_an_answer_may_come_before_its_question(connection):
    """It waits for its node; one for a node that takes none, and one for a run that is over, are refused."""
    document = {
        "nodes": [
            {"id": "first", "module": "m"},
            {"id": "ask", "type": "input", "depends_on": ["first"]},
        ]
    }
    run_id = start(connection, document)
    answers = InputSubmissionRepository(connection)
    early = answers.insert(run_id, "ask", {"ok": 1})
    odd = answers.insert(run_id, "first", {"ok": 1})
    settling = dispatcher(connection)
    settle(settling)
    assert answers.fetch(early).status == "pending"
    assert "takes no answer" in answers.fetch(odd).error
    run_through(connection, settling, lambda job: None)
    assert (answers.fetch(early).status, RunRepository(connection).fetch(run_id).status) == (
        "accepted",
        "completed",
    )
    late = answers.insert(run_id, "ask", {"ok": 2})
    settle(settling)
    assert "the run is over" in answers.fetch(late).error


def test_a_failing_event_is_put_off_and_at_last_aside(connection):
    """It keeps its error, and holds up neither its own run's other events nor another run."""
    document = {"nodes": [{"id": "one", "module": "m"}, {"id": "two", "module": "m", "depends_on": ["one"]}]}
    run_id, other = start(connection, document), start(connection, document)
    settling = dispatcher(connection, dispatch_max_tries=2)
    DispatchRepository(connection).add_event(run_id, "riddle")
    # While the run goes on: of one that is over nothing is acted on any more.
    until(lambda: settle(settling) or outbox(connection)[0][3])
    run_through(connection, settling, lambda job: None)
    ((kind, tries, error, is_poisoned),) = outbox(connection)
    assert (kind, tries, is_poisoned) == ("riddle", 2, True)
    assert "knows no dispatch event of kind 'riddle'" in error
    runs = RunRepository(connection)
    assert [runs.fetch(each).status for each in (run_id, other)] == ["completed", "completed"]


def test_a_run_that_cannot_begin_is_put_aside(connection):
    """Its document is none; it stays queued, with an event that says why."""
    runs = RunRepository(connection)
    run_id = runs.insert("odd", spec={"nodes": 7}, spec_hash="h").id
    other = start(connection, {"nodes": [{"id": "one", "module": "m"}]})
    settling = dispatcher(connection, dispatch_max_tries=1)
    run_through(connection, settling, lambda job: None)
    ((kind, tries, error, is_poisoned),) = outbox(connection)
    assert (kind, tries, is_poisoned) == ("begin", 1, True)
    assert "nodes" in error
    assert [runs.fetch(each).status for each in (run_id, other)] == ["queued", "completed"]


def test_a_run_that_nobody_can_read_can_be_cancelled(connection):
    """Its document need not make sense for that."""
    runs = RunRepository(connection)
    run_id = runs.insert("odd", spec={"nodes": 7}, spec_hash="h").id
    settling = dispatcher(connection, dispatch_max_tries=1)
    settle(settling)
    cancel(connection, run_id, reason="of no use")
    settle(settling)
    run = runs.fetch(run_id)
    assert (run.status, run.cancel_reason) == ("cancelled", "of no use")


def test_hooks_hear_of_each_end_at_least_once(connection, caplog):
    """One that raises is called again, with its neighbours, and is shown; without hooks nothing is kept."""
    run_id = start(connection, {"nodes": [{"id": "one", "module": "m"}]})
    run_through(connection, dispatcher(connection), lambda job: None)
    heard = []

    def fails_once(run):
        heard.append(run.id)
        if len(heard) == 1:
            raise ValueError("not now")

    tell = partial(deliver, connection, [fails_once], settings(), Redactor([]))
    assert tell() == 1
    left = connection.execute("SELECT tries, last_error FROM workflow_dispatch_events").fetchone()
    assert left[0] == 1
    assert "ValueError: not now" in left[1]
    (record,) = [one for one in caplog.records if "fails_once raised ValueError" in one.getMessage()]
    assert 'raise ValueError("not now")' in record.exc_text
    assert "finished_run_hooks.py" not in record.exc_text
    until(tell)
    assert heard == [run_id, run_id]
    assert connection.execute("SELECT count(*) FROM workflow_dispatch_events").fetchone() == (0,)
    start(connection, {"nodes": [{"id": "one", "module": "m"}]})
    run_through(connection, dispatcher(connection), lambda job: None)
    assert deliver(connection, [], settings(), Redactor([])) == 1
    assert connection.execute("SELECT count(*) FROM workflow_dispatch_events").fetchone() == (0,)


def test_hooks_hear_of_an_end_that_was_undone(connection):
    """It is told as it was, and then the next one as that is."""

    def fail(_job):
        raise ValueError("no")

    run_id = start(
        connection, {"nodes": [{"id": "one", "module": "m"}], "outputs": {"n": {"$from": "one.n"}}}
    )
    settling = dispatcher(connection)
    run_through(connection, settling, fail)
    first = RunRepository(connection).finished(run_id)
    retry_run(run_id, conn=connection)
    heard = []
    tell = partial(deliver, connection, [heard.append], settings(), Redactor([]))
    settle(settling)
    work(connection, lambda _job: {"n": 7})
    assert tell() == 1
    assert heard == [first]
    settle(settling)
    assert tell() == 1
    assert heard[1:] == [RunRepository(connection).finished(run_id)]
    assert [(end.status, end.outputs, end.error is None) for end in heard] == [
        ("failed", None, False),
        ("completed", {"n": 7}, True),
    ]
    retry_run(run_id, from_node="one", conn=connection)
    run_through(connection, settling, fail)
    retry_run(run_id, conn=connection)
    run_through(connection, settling, lambda _job: {"n": 8})
    assert tell() == 2
    assert sorted(end.status for end in heard[2:]) == ["completed", "failed"]
