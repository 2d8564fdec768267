"""`qwf explain`: why a job or run does not go on, what it is at, or how it ended."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click
import psycopg

from queue_workflows.cli import Invocation
from queue_workflows.cli.shared.names import job_named
from queue_workflows.cli.shared.operator import json_option, operators_connection, print_json, schema_refusal
from queue_workflows.cli.shared.run_names import may_be_run, run_named
from queue_workflows.config import effective_settings
from queue_workflows.db.connections.snapshot_read import at_one_moment
from queue_workflows.drawing.words import on_one_line
from queue_workflows.engine.explain.history import moment
from queue_workflows.engine.explain.job import Explanation, Knowledge
from queue_workflows.engine.explain.run import explain_node, explain_run
from queue_workflows.errors import UnknownNode, UnknownRun
from queue_workflows.repositories.reports.explain_run import RunExplainingRepository
from queue_workflows.repositories.runs.operator_verbs import SteeringRepository
from queue_workflows.views.jobs.explain import explained_job, json_of
from queue_workflows.workflow.document.load import compiled
from queue_workflows.workflow.planning.graph import graph_of


@click.command()
@click.argument("what", metavar="JOB|RUN")
@click.argument("node", required=False)
@json_option
@click.pass_obj
def explain(invocation: Invocation, *, what: str, node: str | None, as_json: bool) -> None:
    """Say why a job or run does not go on, what it is at, or how it ended.

    JOB is ingest:7, node:7, or 7 where only one of them exists; RUN is a run's id, or enough of its
    beginning. With NODE it is about that node of the run. Changes nothing.
    """
    settings = effective_settings()
    with operators_connection(invocation) as connection:
        known = Knowledge(
            settings.stale_heartbeat_s,
            settings.poll_s,
            schema_refusal(invocation),
            0.0 if settings.affinity_max_wait_s == 0 else settings.affinity_yield_s,
        )
        with at_one_moment(connection):
            if may_be_run(what):
                told, name = _of_run(connection, known, what, node)
                answer = name | asdict(told)
            elif node is None:
                family, job_id = job_named(connection, what)
                job = explained_job(connection, family, job_id, known)
                told, answer = job.explanation, json_of(job)
            else:
                raise click.UsageError("a NODE goes with a run: qwf explain RUN NODE")
    if as_json:
        print_json(answer)
        return
    click.echo(on_one_line(told.headline))
    for reason in told.reasons:
        click.echo(f"  - {on_one_line(reason.text)}")
    click.echo("history:")
    for event in told.history:
        click.echo(f"  {moment(event.at)}  {on_one_line(event.text)}")


def _of_run(
    connection: psycopg.Connection[Any], known: Knowledge, run: str, node: str | None
) -> tuple[Explanation, dict[str, Any]]:
    run_id = run_named(connection, run)
    repository = RunExplainingRepository(connection)
    there = repository.circumstances(run_id, node_id=node)
    if there is None:
        raise UnknownRun(run_id)
    name: dict[str, Any] = {"run": str(run_id), "status": there.run.status}
    if node is None:
        return explain_run(there, known), name
    stored = SteeringRepository(connection).stored(run_id, lock=False)
    graph = compiled(stored.spec, stored.spec_hash).derived(graph_of) if stored is not None else None
    if graph is None or node not in graph.nodes:
        raise UnknownNode(run_id, node)
    shape = graph.nodes[node]
    rows = repository.nodes(run_id, [node, *shape.parents])
    return explain_node(there, known, graph, shape, rows), name | {"node": node}
