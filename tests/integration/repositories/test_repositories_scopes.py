"""`load_scope`: what references can see of a run, read in one statement from what upstream has stored."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from support.connections.kept import own_connection
from support.rows.jobs import CLEAR
from support.rows.plans import explain
from support.rows.run_rows import RunRows

from queue_workflows.engine.node_inputs.references import load_scope
from queue_workflows.errors import RefError, UnknownRun
from queue_workflows.repositories import RunRepository
from queue_workflows.repositories.runs import references
from queue_workflows.repositories.runs.references import Want
from queue_workflows.workflow.references.paths import Path
from queue_workflows.workflow.references.references import ABSENT, paths_in, resolve

INPUTS = {"brief": "a film", "size": {"w": 3, "h": 4}, "tags": ["a", "b"]}


class Rows(RunRows):
    """A run with nodes as the dispatcher leaves them, and its scope."""

    def scope(self, *paths: str, **element: Any) -> dict[str, Any]:
        wanted = [Path.parse(path) for path in paths]
        return dict(load_scope(self.connection, self.run_id, wanted, **element))

    def resolved(self, value: Any, **element: Any) -> Any:
        scope = load_scope(self.connection, self.run_id, paths_in(value), **element)
        return resolve(value, scope, where="cut.inputs")


@pytest.fixture
def rows(qwf_dsn: str) -> Iterator[Rows]:
    """A run whose nodes ended in every way."""
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR)
        rows = Rows(connection, inputs=INPUTS, labels={"team": "red"}, parcel_id="p7")
        rows.node("plan", "completed")
        rows.ended("plan", {"title": "T", "scenes": [{"n": 0}, {"n": 1}], "deep": {"a": {"b": None}}})
        rows.node("failed", "failed")
        rows.ended("failed", None, status="failed")
        rows.node("nothing", "completed")
        rows.ended("nothing", None)
        rows.node("draw", "failed", total=4, failed=2)
        rows.ended("draw", {"url": 2}, place=2)
        rows.ended("draw", {"url": 0}, place=0)
        rows.ended("draw", None, place=1, status="failed")
        rows.node("none", "completed", total=0)
        yield rows


def test_what_paths_lead_to(rows: Rows) -> None:
    """Of a result only the part that is referred to, of a list as of an object."""
    assert rows.scope("plan.title") == {"plan": {"title": "T"}}
    assert rows.scope("plan.title", "plan.deep.a.b") == {"plan": {"title": "T", "deep": {"a": {"b": None}}}}
    assert rows.scope("plan.scenes[1].n") == {"plan": {"scenes": {1: {"n": 1}}}}
    assert rows.scope("plan.scenes.1.n", "plan.scenes[-1]", "plan.deep", "plan.deep.a") == {
        "plan": {"scenes": {"1": {"n": 1}, -1: {"n": 1}}, "deep": {"a": {"b": None}}}
    }
    assert list(rows.scope("plan", "plan.title")["plan"]) == ["deep", "title", "scenes"]
    assert rows.scope("inputs.size.w", "inputs.tags[0]") == {"inputs": {"size": {"w": 3}, "tags": {0: "a"}}}


def test_the_facts_of_the_run(rows: Rows) -> None:
    """As JSON values; the host app's references need them too."""
    for path in ("run.labels.team", "host.tenant"):
        run = rows.scope(path)["run"]
        assert run.pop("created_at").startswith("20")
        assert run == {
            "id": str(rows.run_id),
            "workflow": "film",
            "labels": {"team": "red"},
            "parcel_id": "p7",
        }


def test_results_in_the_order_of_the_list(rows: Rows) -> None:
    """Whatever order they were stored in; null for those without one."""
    assert rows.resolved({"$from": "draw"}) == [{"url": 0}, None, {"url": 2}, None]
    assert rows.resolved({"$from": "draw[2].url"}) == 2
    assert rows.resolved({"$from": "draw[1].url"}) is None
    assert rows.resolved({"$from": "none"}) == []


def test_an_element_of_a_list_comes_alone(rows: Rows) -> None:
    """By its number from either end, beside others of its list and other parts of the same element."""
    assert rows.scope("draw[2].url", "draw[0]", "draw.1.url", "draw[-1]") == {
        "draw": {2: {"url": 2}, 0: {"url": 0}, "1": ABSENT, -1: ABSENT}
    }
    found = rows.resolved([{"$from": f"draw{at}"} for at in ("[2].url", "[-2]", ".0.url", "[1].url", "[3]")])
    assert found == [2, {"url": 2}, 0, None, None]
    assert rows.resolved([{"$from": "draw[0]"}, {"$from": "draw"}]) == [
        {"url": 0},
        [{"url": 0}, None, {"url": 2}, None],
    ]
    assert rows.resolved([{"$from": f"plan.scenes{at}"} for at in ("[1].n", ".0.n", "[-1]")]) == [
        1,
        0,
        {"n": 1},
    ]


def test_a_list_that_was_stopped_has_what_was_done_of_it(rows: Rows) -> None:
    """So that a node that tidies up sees it; one that never began is null, with what an earlier life left."""
    rows.node("stopped", "cancelled", total=3, cancelled=2)
    rows.ended("stopped", {"url": 1}, place=1)
    rows.ended("stopped", None, place=0, status="cancelled")
    assert rows.resolved({"$from": "stopped"}) == [None, {"url": 1}, None]
    for node, state in (("broken", "failed"), ("kept", "cancelled")):
        rows.node(node, state, total=1)
        rows.ended(node, {"stale": True}, place=0)
        assert rows.resolved({"$from": node}) is None


def test_nodes_without_a_result_are_null_however_deep(rows: Rows) -> None:
    """Failed, skipped, cancelled, or never reached in a run that stopped; and stale rows do not count."""
    rows.node("skipped", "skipped")
    rows.node("again", "cancelled")
    rows.ended("again", {"stale": True})
    rows.node("mapped_again", "cancelled", total=1)
    rows.ended("mapped_again", {"stale": True}, place=0)
    for node in ("failed", "skipped", "again", "mapped_again", "never"):
        assert rows.scope(node) == {node: ABSENT}
        assert rows.resolved({"$from": f"{node}.a[0].b"}) is None
    assert rows.resolved({"$from": "nothing"}) == {}


def test_what_is_not_there_is_an_error_that_says_what_is(rows: Rows) -> None:
    """Though only a part was asked for at first."""
    cases = {
        "plan.titel": "an object with 'deep', 'title', 'scenes'",
        "plan.deep.a.c": "an object with 'b'",
        "inputs.breif": "an object with 'size', 'tags', 'brief'",
        "nothing.a": "an empty object",
        "draw.url": "a list of 4",
        "plan.title.x": "a text",
        "draw[4]": "a list of 4",
        "draw[-5].url": "a list of 4",
        "draw[2].size": "an object with 'url'",
        "plan.scenes[2]": "a list of 2",
        "plan.scenes.-1": "a list of 2",
        "plan.deep[0]": "an object with 'a'",
        "plan[0]": "an object with 'deep', 'title', 'scenes'",
        "inputs.size[0]": "an object with 'h', 'w'",
    }
    for path, there in cases.items():
        with pytest.raises(RefError) as caught:
            rows.resolved([{"$from": "plan.deep.a"}, {"$from": "draw[2].url"}, {"$from": path}])
        assert there in str(caught.value), str(caught.value)
        assert path in str(caught.value)


def test_the_element_needs_no_statement(rows: Rows) -> None:
    """`item` and `index` came with the claim; without an element there are none."""
    value = {"scene": {"$from": "item.n"}, "at": {"$from": "index"}}
    rows.connection.close()
    assert rows.resolved(value, item={"n": 7}, index=3) == {"scene": 7, "at": 3}
    with pytest.raises(RefError, match="there is no 'item'"):
        rows.resolved(value)


def test_a_run_of_the_host_apps_own(rows: Rows) -> None:
    """Its nodes have no rows of the engine's, and what a job stored is its node's result."""
    rows.ended("own", {"a": 1})
    assert rows.resolved([{"$from": "own.a"}, {"$from": "own"}]) == [1, {"a": 1}]


def test_a_run_that_is_gone(rows: Rows) -> None:
    """Pruned meanwhile: said so, as nothing can be resolved."""
    with pytest.raises(UnknownRun):
        load_scope(rows.connection, uuid.uuid4(), [Path("inputs", ("brief",))])


MANY = """
INSERT INTO workflow_node_jobs (run_id, node_id, map_index, queue, status, finished_at, context_delta)
SELECT run.id, 'other', n, 'cpu', 'completed', now(), '{}'
FROM workflow_runs AS run, generate_series(1, 300) AS n
"""


WANTED = [Want("plan"), Want("draw", ("url",)), Want("other", (7, "a"))]


@pytest.mark.parametrize("analyzed", [True, False], ids=["analyzed", "never analyzed"])
@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
def test_results_are_looked_up_by_their_key(rows: Rows, mode: str, analyzed: bool) -> None:
    """However many jobs there are, of this run and of others."""
    runs = RunRepository(rows.connection)
    for _ in range(100):
        runs.insert("film", spec={}, spec_hash="h")
    rows.connection.execute("ALTER TABLE workflow_node_jobs SET (autovacuum_enabled = off)")
    rows.connection.execute(MANY)
    rows.node("other", "completed", total=301)
    if analyzed:
        rows.connection.execute("ANALYZE workflow_node_jobs")
    wanted = [each.asked(number) for number, each in enumerate(WANTED)]
    plan = explain(
        rows.connection, mode, references.READ, {"run_id": rows.run_id, "wanted": json.dumps(wanted)}
    )
    assert plan[0]["Actual Rows"] == 4
    found = [(node["Node Type"], node.get("Relation Name"), node.get("Index Name")) for node in plan]
    assert ("Seq Scan", "workflow_node_jobs") not in [(kind, table) for kind, table, _ in found]
    assert "uq_workflow_node_jobs_node" in [index for _, _, index in found]
    read = [node for node in plan if node.get("Relation Name") == "workflow_node_jobs"]
    # Up to PostgreSQL 17 a node tells its rows of each loop as a whole number.
    told = sum(node["Actual Rows"] * node["Actual Loops"] for node in read)
    assert told == pytest.approx(4, abs=len(WANTED) / 2)
