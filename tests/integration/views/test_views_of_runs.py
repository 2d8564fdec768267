"""Runs as the terminal and the page show them: pages of a node's jobs, its question, and the commands."""

from __future__ import annotations

import shlex
import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from support.connections.kept import own_connection
from support.rows.jobs import CLEAR
from support.rows.runs import dispatcher, run_through, settle, start

from queue_workflows.engine.runs.verbs import submit_input
from queue_workflows.engine.watch.run_reader import RunReader
from queue_workflows.errors import RunRefused, UnknownNode, UnknownRun
from queue_workflows.repositories import WorkerControlRepository
from queue_workflows.repositories.runs.listing import RunFilter
from queue_workflows.views.filters.runs import run_filter
from queue_workflows.views.hooks import records
from queue_workflows.views.runs import elements, graph, listing, show, timeline
from queue_workflows.views.runs.question import json_of, question

DRAW: dict[str, Any] = {
    "name": "film",
    "nodes": [
        {"id": "draw", "module": "m", "for_each": {"$value": list(range(7))}},
        {
            "id": "approve",
            "type": "input",
            "depends_on": ["draw"],
            "prompt": "Is it good?",
            "schema": {"ok": {"type": "boolean"}},
        },
    ],
}


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR)
        yield connection


def drawn(conn: psycopg.Connection) -> uuid.UUID:
    """A run in which one of seven elements has failed, and none of the others."""

    def body(job: Any) -> dict[str, Any]:
        if job.map_index == 4:
            raise ValueError("no ink")
        return {}

    run = start(conn, DRAW)
    run_through(conn, dispatcher(conn), body)
    return run


def indexes(shown: elements.NodePage) -> list[int]:
    return [one.index for one in shown.page.elements]


def test_a_node_is_paged_by_its_elements(conn: psycopg.Connection) -> None:
    """In the order of the list, each once; the last page says that it is the last."""
    run = start(conn, DRAW)
    settle(dispatcher(conn))
    first = elements.node_page(conn, run, "draw", limit=4)
    assert (indexes(first), first.page.next) == ([0, 1, 2, 3], 3)
    assert (first.type, first.state, first.counts["total"]) == ("task", "active", 7)
    last = elements.node_page(conn, run, "draw", limit=4, after=first.page.next)
    assert (indexes(last), last.page.next) == ([4, 5, 6], None)
    assert [one.item for one in last.page.elements] == [4, 5, 6]
    waiting = elements.node_page(conn, run, "approve")
    assert (waiting.state, waiting.counts, waiting.page.elements) == ("waiting", {}, ())


def test_a_node_is_searched_by_state(conn: psycopg.Connection) -> None:
    """What failed, with why."""
    run = drawn(conn)
    (failed,) = elements.node_page(conn, run, "draw", state="failed").page.elements
    assert (failed.index, failed.status) == (4, "failed")
    assert failed.error is not None
    assert failed.error["message"] == "no ink"
    assert elements.node_page(conn, run, "draw", state="running").page.elements == ()


def test_a_run_or_node_that_is_not_there(conn: psycopg.Connection) -> None:
    """Is said to be none, rather than to have no jobs."""
    with pytest.raises(UnknownRun):
        elements.node_page(conn, uuid.uuid4(), "draw")
    with pytest.raises(UnknownNode):
        elements.node_page(conn, start(conn, DRAW), "drow")


def test_what_a_node_asks(conn: psycopg.Connection) -> None:
    """Its words and its schema, whether it still takes an answer, and what came in."""
    run = start(conn, DRAW)
    run_through(conn, dispatcher(conn), lambda _job: {})
    answer = submit_input(run, "approve", {"ok": True}, conn=conn, submitted_by="ann")
    told = json_of(question(conn, run, "approve"))
    (given,) = told.pop("answers")
    assert told == {
        "run": str(run),
        "node": "approve",
        "run_status": "running",
        "state": "active",
        "open": True,
        "prompt": "Is it good?",
        "schema": {"ok": {"type": "boolean"}},
    }
    assert (given["id"], given["payload"], given["submitted_by"], given["status"]) == (
        *(answer, {"ok": True}),
        *("ann", "pending"),
    )
    settle(dispatcher(conn))
    asked = question(conn, run, "approve")
    assert (asked.is_open, asked.run_status, asked.answers[0].status) == (False, "completed", "accepted")
    with pytest.raises(RunRefused, match="takes no answer"):
        question(conn, run, "draw")


def test_commands_say_what_was_asked() -> None:
    """Each page has a command with which it is asked again, whatever the names in it."""
    run = uuid.UUID(int=7)
    wanted = RunFilter(workflow="my film", labels={"n": 7, "to": "a b"}, status=("failed",), poisoned=True)
    words = shlex.split(listing.command_of(wanted, limit=7))
    assert words[:4] == ["qwf", "run", "list", "--where"]
    assert run_filter(words[4]) == wanted
    assert words[5:] == ["--limit", "7"]
    assert elements.command_of(run, "a'b", state="failed", after=7) == (
        f"qwf run nodes {run} 'a'\"'\"'b' --state failed --after 7"
    )
    assert records.command_of(run, plugin="words", warnings=True) == (
        f"qwf hooks records {run} --plugin words --warnings"
    )


def kinds(bar: timeline.Bar) -> list[str]:
    return [one.kind for one in bar.segments]


def test_a_timeline_has_a_bar_for_each_job(conn: psycopg.Connection) -> None:
    """What waited for others, for a worker, or for an answer, and what was at work."""
    run = drawn(conn)
    found = timeline.run_timeline(conn, run)
    assert sorted(bar.label for bar in found.bars) == [f"draw[{index}]" for index in range(7)]
    assert {tuple(kinds(bar)[-3:]) for bar in found.bars} == {("queued", "running", "ended")}
    assert {bar.state for bar in found.bars} == {"completed", "failed"}
    assert all(found.begin <= bar.segments[0].start for bar in found.bars)
    asking = start(conn, DRAW)
    run_through(conn, dispatcher(conn), lambda _job: {})
    *_, approve = timeline.run_timeline(conn, asking).bars
    assert (approve.node, approve.index, kinds(approve)) == ("approve", None, ["parents", "parked"])


def test_the_runs_below_a_run_are_listed(conn: psycopg.Connection) -> None:
    """Those that it started, the newest first, by the index of children."""
    parent, other = start(conn, DRAW), start(conn, DRAW)
    below = [start(conn, DRAW) for _ in range(3)]
    conn.execute("UPDATE workflow_runs SET parent_run_id = %s WHERE id = ANY (%s)", [parent, below])
    wanted = run_filter(f"parent:{parent}")
    found = listing.run_page(conn, wanted, limit=2)
    assert [one.id for one in found.lines] == [below[2], below[1]]
    assert {one.parent_run_id for one in found.lines} == {parent}
    rest = listing.run_page(conn, wanted, limit=2, before=found.cursor)
    assert ([one.id for one in rest.lines], rest.cursor) == ([below[0]], None)
    assert listing.run_page(conn, run_filter(f"parent:{other}")).lines == []
    assert listing.command_of(wanted) == f"qwf run list --where parent:{parent}"


def test_a_timeline_has_the_pauses_of_its_queues(conn: psycopg.Connection) -> None:
    """Those that held during the run, of its queues, as far as they did; on one host or on all."""
    wishes = WorkerControlRepository(conn)
    conn.execute("TRUNCATE worker_control, audit_log")
    wishes.set("*", "cpu", "pause", actor="ada", reason="a deploy")
    wishes.set("*", "gpu", "off", actor="ada")
    conn.execute("UPDATE audit_log SET at = at - interval '1 day'")
    run = start(conn, DRAW)
    settle(dispatcher(conn))
    wishes.clear("*", "cpu", actor="ann")
    wishes.set("h1", "*", "off", actor="ann")
    run_through(conn, dispatcher(conn), lambda _job: {})
    found = timeline.run_timeline(conn, run)
    said = [(one.queue, one.host_label, one.asked, one.actor, one.reason) for one in found.pauses]
    assert said == [("cpu", "*", "pause", "ada", "a deploy"), ("*", "h1", "off", "ann", None)]
    assert timeline.said_of_pause(found.pauses[0]).startswith("queue cpu: the queue was paused by ada for ")
    assert timeline.said_of_pause(found.pauses[1]).startswith("all queues: its workers on h1 were switched ")
    over, begun = conn.execute("SELECT at FROM audit_log WHERE actor = 'ann' ORDER BY id").fetchall()
    first, second = found.pauses
    assert (first.start, first.end) == (found.begin, over[0])
    assert (second.start, second.end) == (begun[0], found.end)
    conn.execute("TRUNCATE worker_control, audit_log")


@pytest.mark.parametrize("elements", [250, 2_500])
def test_a_timeline_of_many_jobs_has_a_bar_for_those_alike(conn: psycopg.Connection, elements: int) -> None:
    """At work while one of them is; of thousands only the node's own times are read."""
    draw = {"id": "draw", "module": "m", "for_each": {"$value": list(range(elements))}}
    run = start(conn, {"name": "film", "nodes": [draw]})
    run_through(conn, dispatcher(conn), lambda _job: {})
    (bar,) = timeline.run_timeline(conn, run).bars
    assert (bar.label, bar.state, bar.members, bar.job) == ("draw", "completed", 1, None)
    assert kinds(bar)[-1] == "running"
    assert timeline.json_of(timeline.run_timeline(conn, run))["bars"][0]["segments"]


def test_what_was_seen_of_a_run_is_not_read_again(conn: psycopg.Connection) -> None:
    """Its picture is made of what its page has read; of a large run the page has only counts, so it is."""
    run = drawn(conn)
    shown = show.shown_run(conn, run).run
    gone = uuid.uuid4()
    assert graph.run_graph(conn, gone, seen=shown) == graph.graph_of(shown)
    assert graph.run_graph(conn, run).edges == (("draw", "approve"),)
    assert timeline.run_timeline(conn, run, seen=shown).bars == timeline.run_timeline(conn, run).bars
    counted = RunReader(run, most_nodes=1).look(conn)
    assert counted.counts
    assert [box.id for box in graph.run_graph(conn, run, seen=counted).boxes] == ["draw", "approve"]
