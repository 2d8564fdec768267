"""What a node sees of others is what they had stored when it executes, not when it was made or claimed."""

from __future__ import annotations

import pytest
from support.processes.workers import until
from support.rows.jobs import Jobs
from support.rows.run_rows import RunRows
from support.servers.statement_proxy import Moment, StatementProxy
from support.stages.floor import Floor

from queue_workflows.repositories.runs.references import READ


@pytest.fixture
def run(floor: Floor) -> RunRows:
    """A run of which one node is over."""
    rows = RunRows(floor.connection, inputs={"brief": "a film"})
    rows.completed("plan", {"title": "old", "ok": False})
    return rows


@pytest.fixture
def nodes(floor: Floor) -> Jobs:
    """The node jobs, on the test's own connection."""
    return Jobs("node", floor.connection)


def test_a_claimed_job_still_sees_what_comes(
    floor: Floor, run: RunRows, nodes: Jobs, proxy: StatementProxy
) -> None:
    """It reads after the claim, once, and what upstream stores up to then is what it gets."""
    job = run.job("cut", "echo", {"title": {"$from": "plan.title"}, "brief": [{"$from": "inputs.brief"}]})
    trap = proxy.trap(READ, moment=Moment.UNSENT)
    with floor.worker("--queue", "cpu", "--drain", dsn=proxy.dsn) as worker:
        trap.sprung()
        assert nodes.seen(job, "status", "attempt") == ("running", 1)
        run.now_has("plan", {"title": "new"})
        trap.deliver()
        assert worker.wait(150) == 0
    assert nodes.seen(job, "status", "result") == ("completed", {"title": "new", "brief": ["a film"]})
    assert proxy.passed(READ) == 1


@pytest.mark.slow
def test_each_try_looks_again(floor: Floor, run: RunRows, nodes: Jobs) -> None:
    """What failed for what it saw may succeed with what it sees then; the row keeps the reference."""
    inputs = {"ok": {"$from": "plan.ok"}}
    job = run.job("cut", "picky", inputs, max_attempts=1_000, backoff_s=0)
    with floor.worker("--queue", "cpu", QWF_BACKOFF_JITTER="0"):
        until(lambda: nodes.seen(job, "failures") > (1,))
        run.now_has("plan", {"ok": True})
        until(lambda: nodes.seen(job, "status") == ("completed",))
    assert nodes.seen(job, "result", "inputs") == ({"ok": True}, inputs)


@pytest.mark.slow
def test_an_element_of_a_list_has_its_own(floor: Floor, run: RunRows, nodes: Jobs) -> None:
    """`item` and `index` beside what all elements see; null is an element too."""
    run.now_has("plan", {"title": "T"})
    inputs = {"it": {"$from": "item"}, "at": {"$from": "index"}, "of": {"$from": "plan.title"}}
    jobs = [
        run.job("draw", "echo", inputs, map_index=at, item=item)
        for at, item in enumerate([{"n": 1}, None, {"$from": "plan"}])
    ]
    with floor.worker("--queue", "cpu", "--drain") as worker:
        assert worker.wait(150) == 0
    assert [nodes.row(job)["result"] for job in jobs] == [
        {"it": {"n": 1}, "at": 0, "of": "T"},
        {"it": None, "at": 1, "of": "T"},
        {"it": {"$from": "plan"}, "at": 2, "of": "T"},
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"t": {"$from": "plan.titel"}}, ("cut.inputs.t", "plan.titel", "'ok', 'title'", "did you mean")),
        ({"t": {"$from": "item.n"}}, ("cut.inputs.t", "item", "there is")),
        ({"t": {"$form": "plan"}}, ("cut.inputs.t", "$form", "did you mean '$from'")),
    ],
    ids=["no such key", "no element", "no operator"],
)
def test_a_reference_that_leads_nowhere_fails_for_good(
    floor: Floor, run: RunRows, nodes: Jobs, inputs: dict, said: tuple[str, ...]
) -> None:
    """Another try would find the same: the job fails at once, saying where, what, and what is there."""
    job = run.job("cut", "echo", inputs, max_attempts=3)
    with floor.worker("--queue", "cpu", "--drain") as worker:
        assert worker.wait(150) == 0
    row = nodes.row(job)
    assert (row["status"], row["attempt"], row["failures"], len(row["errors"])) == ("failed", 1, 1, 1)
    assert [word for word in said if word not in row["errors"][0]["message"]] == []
    assert row["errors"][0]["type"].endswith("RefError")
    assert nodes.events(job) == [(1, 1, "failed")]


@pytest.mark.slow
def test_inputs_without_references_cost_nothing(
    floor: Floor, run: RunRows, nodes: Jobs, proxy: StatementProxy
) -> None:
    """No statement is sent for them, nor for an element that only needs itself."""
    jobs = [
        run.job("plain", "echo", {"a": [1, {"b": None}], "price": {"$value": {"$from": "plan"}}}),
        run.job("bare", "echo", {}),
        run.job(
            "draw", "echo", {"n": {"$from": "item.n"}, "at": {"$from": "index"}}, map_index=4, item={"n": 7}
        ),
    ]
    with floor.worker("--queue", "cpu", "--drain", dsn=proxy.dsn) as worker:
        assert worker.wait(150) == 0
    assert [nodes.row(job)["result"] for job in jobs] == [
        {"a": [1, {"b": None}], "price": {"$from": "plan"}},
        {},
        {"n": 7, "at": 4},
    ]
    assert proxy.passed(READ) == 0
