"""kill -9 of an orchestrator at any moment: nothing is lost, nothing happens twice, and another one goes on.

It speaks to the database through a proxy that holds one statement up. There it is killed, and a dispatcher in
the test takes over, as any other orchestrator would.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg
import pytest
from support.processes.workers import patiently, running_orchestrator
from support.rows.runs import dispatcher, settle, start, work
from support.servers.statement_proxy import Moment, StatementProxy

from queue_workflows.engine.runs import parked_inputs
from queue_workflows.engine.runs.advance import NODES_AT_ONCE
from queue_workflows.repositories import InputSubmissionRepository, RunRepository
from queue_workflows.repositories.runs import nodes as workflow_nodes
from queue_workflows.repositories.runs import outbox
from queue_workflows.repositories.runs.finished import DELIVERED

CHAIN = {
    "nodes": [
        {"id": "one", "module": "m"},
        {"id": "many", "module": "m", "for_each": {"$from": "one.all"}},
        {"id": "ask", "type": "input", "depends_on": ["many"]},
        {"id": "last", "module": "m", "depends_on": ["ask"]},
    ],
    "outputs": {"all": {"$from": "many"}, "ok": {"$from": "ask.ok"}},
}


@dataclass(frozen=True)
class Kill:
    """Where an orchestrator is killed, and whether what it was about has happened."""

    point: str
    statement: str
    moment: Moment
    has_happened: bool = False

    def __str__(self) -> str:
        return self.point


KILLS = [
    Kill("after taking the events", outbox.TAKE, Moment.UNREAD),
    Kill("before the commit", outbox.COMMIT, Moment.UNSENT),
    Kill("before it read that it is committed", outbox.COMMIT, Moment.UNREAD, has_happened=True),
]
# So that each statement of an advance is one at which it is killed.
SLOW_KILLS = [
    Kill("between two runs", outbox.FIND_RUNS, Moment.UNREAD),
    Kill("with the lock", outbox.LOCK, Moment.UNREAD),
    Kill("before its last word", outbox.SAVE, Moment.UNSENT),
]
MORE_KILLS = [Kill("before the lock", outbox.LOCK, Moment.UNSENT)]


def body(job: Any) -> dict[str, Any]:
    return {"all": [1, 2, 3]} if job.node_id == "one" else {"at": job.map_index}


def jobs_of(connection: psycopg.Connection[Any], node_id: str) -> int:
    rows = "SELECT count(*) FROM workflow_node_jobs WHERE node_id = %s"
    return connection.execute(rows, [node_id]).fetchone()[0]  # type: ignore[index]


def is_whole(connection: psycopg.Connection[Any], run_id: UUID, jobs: int, *, told: bool = False) -> None:
    """Each job once, ended once by its first attempt, and nothing left but to tell the hooks, if that."""
    rows = "SELECT count(*), count(DISTINCT (node_id, map_index)), max(attempt), max(generation)"
    found = connection.execute(f"{rows} FROM workflow_node_jobs WHERE run_id = %s", [run_id]).fetchone()
    assert found == (jobs, jobs, 1, 1)
    events = connection.execute("SELECT kind FROM workflow_dispatch_events").fetchall()
    assert events == [(outbox.RUN_FINISHED,)] or (told and events == [])
    counted = connection.execute(
        "SELECT sum(jobs_total), sum(jobs_completed), sum(jobs_left), count(*) FROM workflow_nodes"
    ).fetchone()
    assert counted == (jobs, jobs, 0, len(CHAIN["nodes"]))


def finish(connection: psycopg.Connection[Any], run_id: UUID) -> None:
    """Another one goes on, as soon as the server has noticed that the first is gone."""
    runs, other = RunRepository(connection), dispatcher(connection)
    answers = InputSubmissionRepository(connection)

    def is_over() -> bool:
        settle(other)
        work(connection, body)
        parked = "SELECT 1 FROM workflow_node_jobs WHERE kind = 'input' AND status = 'awaiting_input'"
        if connection.execute(parked).fetchone() and not answers.counts(run_id):
            answers.insert(run_id, "ask", {"ok": True})
        return runs.fetch(run_id).finished_at is not None  # type: ignore[union-attr]

    patiently(is_over)
    run = runs.fetch(run_id)
    assert run is not None
    assert (run.status, run.error) == ("completed", None)
    assert run.outputs == {"all": [{"at": 0}, {"at": 1}, {"at": 2}], "ok": True}


@pytest.mark.parametrize(
    "kill",
    [
        *KILLS,
        *(pytest.param(each, marks=pytest.mark.slow) for each in SLOW_KILLS),
        *(pytest.param(each, marks=pytest.mark.nightly) for each in MORE_KILLS),
    ],
    ids=str,
)
def test_killed_while_it_acts_on_an_end(floor, proxy: StatementProxy, kill: Kill) -> None:
    """The node after the one that ended gets its jobs once, by the dead one or by the next."""
    connection = floor.connection
    run_id = start(connection, CHAIN)
    with running_orchestrator(proxy.dsn) as victim:
        patiently(lambda: jobs_of(connection, "one"))
        # It has read that this is committed, and looks again.
        looks = proxy.passed(outbox.FIND_RUNS)
        patiently(lambda: proxy.passed(outbox.FIND_RUNS) > looks)
        trap = proxy.trap(kill.statement, moment=kill.moment)
        work(connection, body)
        trap.sprung(300)
        victim.kill()
        victim.wait()
    trap.drop()
    assert jobs_of(connection, "many") == (3 if kill.has_happened else 0)
    finish(connection, run_id)
    is_whole(connection, run_id, 6)


@pytest.mark.parametrize(
    ("statement", "moment"),
    [
        pytest.param(workflow_nodes.READ, Moment.UNREAD, id="in the middle"),
        pytest.param(outbox.COMMIT, Moment.UNSENT, id="before the commit", marks=pytest.mark.slow),
        pytest.param(outbox.TAKE, Moment.UNREAD, id="with the lock", marks=pytest.mark.slow),
    ],
)
def test_stopped_while_it_acts_on_an_end(
    floor, proxy: StatementProxy, statement: str, moment: Moment
) -> None:
    """The server takes the run from one that neither goes on nor dies; woken, it does nothing twice."""
    connection = floor.connection
    run_id = start(connection, CHAIN)
    impatient = {"QWF_IDLE_IN_TRANSACTION_SESSION_TIMEOUT_S": "1"}
    with running_orchestrator(proxy.dsn, **impatient):
        patiently(lambda: jobs_of(connection, "one"))
        trap = proxy.trap(statement, moment=moment)
        work(connection, body)
        trap.sprung(300)
        finish(connection, run_id)
        trap.deliver()
        later = start(connection, {"nodes": [{"id": "nap", "type": "wait", "seconds": 0}]})
        over = "SELECT 1 FROM workflow_runs WHERE id = %s AND status = 'completed'"
        patiently(lambda: connection.execute(over, [later]).fetchone())
    connection.execute("DELETE FROM workflow_runs WHERE id = %s", [later])
    is_whole(connection, run_id, 6, told=True)


def test_killed_while_it_begins_a_run(floor, proxy: StatementProxy) -> None:
    """The run is begun once."""
    trap = proxy.trap(workflow_nodes.WRITE, moment=Moment.UNSENT)
    run_id = start(floor.connection, CHAIN)
    with running_orchestrator(proxy.dsn) as victim:
        trap.sprung(300)
        victim.kill()
        victim.wait()
    trap.drop()
    assert RunRepository(floor.connection).fetch(run_id).status == "queued"  # type: ignore[union-attr]
    finish(floor.connection, run_id)
    is_whole(floor.connection, run_id, 6)


@pytest.mark.slow
def test_killed_while_it_begins_a_large_run_in_parts(floor, proxy: StatementProxy) -> None:
    """The part that was committed stays, and the others are opened once by the next one."""
    connection = floor.connection
    nodes = NODES_AT_ONCE + 10
    traps = [proxy.trap(workflow_nodes.WRITE, moment=Moment.UNSENT) for _ in range(2)]
    run_id = start(connection, {"nodes": [{"id": f"n{number}", "module": "m"} for number in range(nodes)]})
    with running_orchestrator(proxy.dsn) as victim:
        traps[0].sprung(300)
        traps[0].deliver()
        traps[1].sprung(300)
        victim.kill()
        victim.wait()
    traps[1].drop()
    rows = "SELECT count(*), count(DISTINCT node_id) FROM workflow_node_jobs"
    assert connection.execute(rows).fetchone() == (NODES_AT_ONCE, NODES_AT_ONCE)
    other = dispatcher(connection)
    patiently(lambda: settle(other) or connection.execute(rows).fetchone() == (nodes, nodes))
    while work(connection, lambda _: {}):
        settle(other)
    assert RunRepository(connection).fetch(run_id).status == "completed"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "moment",
    [Moment.UNREAD, pytest.param(Moment.UNSENT, marks=pytest.mark.slow)],
    ids=lambda moment: moment.value,
)
def test_killed_with_an_answer_in_its_hands(floor, proxy: StatementProxy, moment: Moment) -> None:
    """Another one takes the answer up, and the node is completed by it once."""
    connection = floor.connection
    run_id = start(connection, CHAIN)
    with running_orchestrator(proxy.dsn) as victim:
        patiently(lambda: jobs_of(connection, "ask") or (work(connection, body) and False))
        trap = proxy.trap(parked_inputs.PROCESS, moment=moment)
        answer = InputSubmissionRepository(connection).insert(run_id, "ask", {"ok": True})
        trap.sprung(300)
        victim.kill()
        victim.wait()
    trap.drop()
    assert InputSubmissionRepository(connection).fetch(answer).status == "pending"  # type: ignore[union-attr]
    finish(connection, run_id)
    is_whole(connection, run_id, 6)
    assert InputSubmissionRepository(connection).counts(run_id) == {"ask": {"accepted": 1}}


@pytest.mark.parametrize("part", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_killed_while_it_opens_a_long_list_in_parts(floor, proxy: StatementProxy, part: int) -> None:
    """Each element gets its job once, whichever part the dead one was at."""
    connection = floor.connection
    long = {"nodes": CHAIN["nodes"][:2]}
    run_id = start(connection, long)
    elements = 10_001

    def listed(job: Any) -> dict[str, Any]:
        return {"all": [0] * elements} if job.node_id == "one" else {}

    with running_orchestrator(proxy.dsn) as victim:
        patiently(lambda: jobs_of(connection, "one"))
        traps = [proxy.trap(outbox.ADD_EVENT, moment=Moment.UNSENT) for _ in range(part)]
        work(connection, listed)
        for trap in traps[:-1]:
            trap.sprung(300)
            trap.deliver()
        traps[-1].sprung(300)
        victim.kill()
        victim.wait()
    traps[-1].drop()
    assert jobs_of(connection, "many") == 5_000 * (part - 1)
    other = dispatcher(connection)
    patiently(lambda: settle(other) or jobs_of(connection, "many") == elements)
    rows = "SELECT count(DISTINCT map_index), min(map_index), max(map_index) FROM workflow_node_jobs"
    found = connection.execute(f"{rows} WHERE run_id = %s AND node_id = 'many'", [run_id]).fetchone()
    assert found == (elements, 0, elements - 1)


@pytest.mark.slow
def test_killed_after_a_hook_was_called(floor, proxy: StatementProxy, tmp_path) -> None:
    """The hook is called again by another one, once the lease of the dead one is over."""
    connection, heard = floor.connection, tmp_path / "heard"
    wired = {"QWF_APP": "support.apps.hooked", "HEARD": str(heard)}
    trap = proxy.trap(DELIVERED, moment=Moment.UNSENT)
    with running_orchestrator(proxy.dsn, **wired) as victim:
        run_id = start(connection, {"nodes": [{"id": "one", "module": "m"}]})
        patiently(lambda: jobs_of(connection, "one"))
        work(connection, body)
        trap.sprung(300)
        victim.kill()
        victim.wait()
    trap.drop()
    assert heard.read_text().split() == [str(run_id)]
    connection.execute("UPDATE workflow_dispatch_events SET next_try_at = now()")
    with running_orchestrator(floor.dsn, "--once", **wired) as other:
        assert other.wait(300) == 0
    assert heard.read_text().split() == [str(run_id)] * 2
    assert connection.execute("SELECT count(*) FROM workflow_dispatch_events").fetchone() == (0,)
