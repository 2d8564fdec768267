"""Runs of workflows: found by a filter, one as a graph, a timeline, its nodes or its records."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any, Final

from queue_workflows.engine.explain.hosts import NOT_SHARED
from queue_workflows.engine.watch.run_reader import RunReader
from queue_workflows.engine.watch.run_view import RunOverview
from queue_workflows.errors import PayloadError, UnknownRun
from queue_workflows.repositories.runs.listing import RunFilter
from queue_workflows.repositories.runs.overview import OverviewRepository
from queue_workflows.states import RUN_TERMINAL, JobStatus
from queue_workflows.views.filters.runs import KEYS, STATUSES, run_filter, text_of
from queue_workflows.views.hooks import records
from queue_workflows.views.runs import elements, explain, graph, listing, question, show, timeline
from queue_workflows.web.page import ROWS, Look, Shown, href, part
from queue_workflows.web.pages.jobs import named_run
from queue_workflows.web.pages.links import Explained, linked
from queue_workflows.web.pages.redacted import redacted_explanation, redacted_run, redacted_timeline
from queue_workflows.web.pages.search import found_data
from queue_workflows.web.rendering.pictures import graph_picture, timeline_picture

_OF_ITS_HOST: Final = ("host_gone", NOT_SHARED)
VIEWS = ("graph", "timeline", "nodes", "records")
# Of a run with more nodes the view of them has pages.
NODE_ROWS: Final = 500


def runs(look: Look) -> Shown:
    """The newest runs that match."""
    return _listed(look, run_filter(look.word("q")), title="Runs")


def children(look: Look) -> Shown:
    """The runs that one run has started, the newest first."""
    run_id = named_run(look.parts["run"])
    if OverviewRepository(look.conn).run(run_id) is None:
        raise UnknownRun(run_id)
    return _listed(look, RunFilter(parent=run_id), title=f"Below {str(run_id)[:8]}")


def _listed(look: Look, wanted: RunFilter, *, title: str) -> Shown:
    limit, before = look.number("limit", ROWS), look.word("before") or None
    found = listing.run_page(look.conn, wanted, limit=limit, before=before)
    text = text_of(wanted)
    return Shown(
        title=title,
        template="runs.html",
        command=listing.command_of(wanted, limit=limit, before=before),
        data=found_data(look, "/runs", found, text=text, keys=KEYS, statuses=STATUSES),
        json=listing.json_of(found),
        is_live=before is None,
        cursor=found.cursor,
    )


def one_run(look: Look) -> Shown:
    """One run, in one of four views."""
    return _one_run(look)[0]


def _one_run(look: Look) -> tuple[Shown, explain.ExplainedRun]:
    """The page, and the explanation that stands on it."""
    run_id, node_id = named_run(look.parts["run"]), look.word("node") or None
    view = look.word("view", "graph")
    if view not in VIEWS:
        raise PayloadError(f"view takes one of {', '.join(VIEWS)}", path="view")
    told = _explained(look, run_id, node_id)
    shown = show.shown_run(look.conn, run_id, acts=told.acts)
    run = redacted_run(shown.run, look.redaction)
    shown = replace(shown, run=replace(shown.run, poisoned=run.poisoned))
    after = look.number("after", 0, least=0, most=2**62) or None if view == "records" else None
    data = {
        "run": run,
        "view": view,
        "views": [
            (one.capitalize(), href(f"{look.prefix}/runs/{run_id}", view=one), one == view) for one in VIEWS
        ],
        "audit": shown.audit,
        "explanation": told.told,
        "reasons": linked(told.told.reasons, Explained(str(run_id), node_id), prefix=look.prefix),
        "asks": [n.id for n in run.nodes if n.type == "input" and n.state == JobStatus.AWAITING_INPUT],
        "outputs": None if run.outputs is None else look.redaction.shown("result", run.outputs),
        "error": None if not run.error else look.redaction.shown("error", run.error),
        "is_over": run.status in RUN_TERMINAL,
        # To a host that keeps it waiting.
        "is_pinned": any(reason.code in _OF_ITS_HOST for reason in told.told.reasons),
    }
    page = Shown(
        title=f"{run.workflow} {str(run_id)[:8]}",
        template="run.html",
        command=_command(run_id, view, after),
        data=data | ({} if look.as_json else _part(look, run, view, shown.reader, after)),
        # Of thousands of nodes it takes longer than the page.
        json=None if look.as_json is False else _json(look, shown, view, after),
        is_live=run.status not in RUN_TERMINAL,
    )
    return page, told


def _command(run_id: uuid.UUID, view: str, after: int | None) -> str:
    """The command that shows the same of a run: the graph and the nodes have one together."""
    if view == "timeline":
        return timeline.command_of(run_id)
    return records.command_of(run_id, after=after) if view == "records" else show.command_of(run_id)


def _json(look: Look, shown: show.ShownRun, view: str, after: int | None) -> Any:
    """What that command prints for programs."""
    run = shown.run
    if view == "timeline":
        return timeline.json_of(timeline.run_timeline(look.conn, run.id, seen=run, reader=shown.reader))
    if view == "records":
        return records.json_of(records.records(look.conn, run.id, after=after))
    return show.json_of(shown)


def _explained(
    look: Look, run_id: uuid.UUID, node_id: str | None, *, brief: bool = False
) -> explain.ExplainedRun:
    told = explain.explained_run(look.conn, run_id, look.knowledge(), node=node_id, brief=brief)
    return replace(told, told=redacted_explanation(told.told, look.redaction))


def _part(look: Look, run: RunOverview, view: str, reader: RunReader, after: int | None) -> dict[str, object]:
    """What only one of the views needs."""
    if view == "graph":
        seen = graph.all_nodes(look.conn, run.id, run, reader=reader)
        seen = seen if seen is run else redacted_run(seen, look.redaction)
        return {"picture": graph_picture(graph.graph_of(seen), look.prefix)}
    if view == "timeline":
        drawn = timeline.run_timeline(look.conn, run.id, seen=run, reader=reader)
        kinds = {segment.kind for bar in drawn.bars for segment in bar.segments}
        picture = timeline_picture(redacted_timeline(drawn, look.redaction), look.prefix)
        return {"picture": picture, "kinds": kinds}
    if view == "records":
        found, shown = records.records(look.conn, run.id, after=after), look.redaction.shown
        told = [
            # A warning quotes the line that is no record.
            one
            | {"payload": shown("payload", one["payload"])}
            | ({"warning": shown("payload", one["warning"])} if one["warning"] else {})
            for one in records.json_of(found)
        ]
        return {"records": told, "next": told[-1]["record"] if len(told) == records.USUAL else None}
    first = look.number("from", 0, least=0, most=len(run.nodes))
    there = first + NODE_ROWS < len(run.nodes)
    return {"nodes": run.nodes[first : first + NODE_ROWS], "next": first + NODE_ROWS if there else None}


def explained(look: Look) -> Shown:
    """The explanation alone is the answer for programs; for eyes it stands on the run's page."""
    page, told = _one_run(look)
    command = explain.command_of(told.run_id, node=told.node)
    return replace(page, command=command, json=explain.json_of(told))


def node(look: Look) -> Shown:
    """The jobs of one node, a page at a time."""
    run_id, node_id = named_run(look.parts["run"]), look.parts["node"]
    state = look.word("state") or None
    if state is not None and state not in {status.value for status in JobStatus}:
        raise PayloadError(
            f"state takes one of {', '.join(status.value for status in JobStatus)}", path="state"
        )
    # The one job of a node without elements has the index -1, and is the last page.
    after = look.number("after", 0, least=0, most=2**31 - 1) if look.word("after") else None
    limit = look.number("limit", ROWS)
    seen = elements.node_page(look.conn, run_id, node_id, state=state, after=after, limit=limit)
    told = _explained(look, run_id, node_id, brief=True)
    here = f"{look.prefix}/runs/{run_id}/nodes/{part(node_id)}"
    return Shown(
        title=f"{node_id} of {str(run_id)[:8]}",
        template="node.html",
        command=elements.command_of(run_id, node_id, state=state, after=after, limit=limit),
        data={
            "seen": seen,
            "state": state,
            "states": [
                (
                    one.value.replace("_", " "),
                    href(here, state=None if one == state else one.value),
                    one == state,
                )
                for one in JobStatus
            ],
            "reasons": linked(told.told.reasons, Explained(str(run_id), node_id), prefix=look.prefix),
            "further": href(here, state=state, after=seen.page.next) if seen.page.next is not None else None,
        },
        # Of fifty jobs it takes as long as all their rows on the page.
        json=None if look.as_json is False else elements.json_of(seen),
    )


def answer(look: Look) -> Shown:
    """What a node asks; the form itself is the preview of the act."""
    run_id, node_id = named_run(look.parts["run"]), look.parts["node"]
    asked = question.question(look.conn, run_id, node_id)
    return Shown(
        title=f"Answer {node_id}",
        template="answer.html",
        command=question.command_of(run_id, node_id),
        data={
            "asked": asked,
            "answers": [
                (
                    one,
                    look.redaction.shown("payload", one.payload),
                    one.error and look.redaction.shown("error", one.error),
                )
                for one in asked.answers
            ],
        },
        json=question.json_of(asked),
        is_live=False,
    )
