"""Taking a workflow to its end in the test's own process, over its waits and retries, in no time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg

from queue_workflows.engine.runs.verbs import start_run, submit_input
from queue_workflows.engine.watch.run_reader import RunReader
from queue_workflows.errors import ConfigurationError
from queue_workflows.states import JobStatus, RunStatus
from queue_workflows.testing.local_worker import MOST, LocalWorker, own_of
from queue_workflows.testing.outcome import RunOutcome
from queue_workflows.workflow.document.load import Document
from queue_workflows.workflow.providing import complete_document, find_document


def run_workflow(
    workflow: str | Document | Mapping[str, Any] | Path,
    inputs: Mapping[str, Any] | None = None,
    modules: Mapping[str, Any] | None = None,
    *,
    conn: psycopg.Connection[Any],
    answers: Mapping[str, Mapping[str, Any]] | None = None,
    documents: Mapping[str, Mapping[str, Any] | Path] | None = None,
    models: Mapping[str, Any] | None = None,
    moves_clock: bool = True,
    raises: bool = False,
    most: int = MOST,
) -> RunOutcome:
    """Start a run and take it to its end: advanced, claimed, run and ended as by orchestrator and workers.

    `modules` are node modules or functions by name, asked before those of the application, `answers` what
    nodes that wait for input are told, `documents` child workflows by name, `models` what nodes get as their
    `model`, before those of the application. Unless `moves_clock` is False the clock is moved over waits and
    retries. With `raises` the first failure of a node is raised. `conn` is a psycopg connection in
    autocommit; what else is queued there runs too.
    """
    if own_of(conn) is None:
        raise ConfigurationError(
            "run_workflow() takes a psycopg connection in autocommit, and not in a transaction",
            advice="the fixture qwf_jobs has one",
        )
    started = start_run(workflow, inputs, conn=conn)
    for node, answer in (answers or {}).items():
        submit_input(started, node, answer, conn=conn)
    worker = LocalWorker(conn, modules=modules, models=models, find=_find_among(documents or {}))
    jobs = worker.run_all(with_scheduled=moves_clock, raises=raises, most=most)
    run = RunReader(started.id).look(conn)
    return RunOutcome(
        id=run.id,
        status=RunStatus(run.status),
        outputs=run.outputs,
        error=run.error,
        nodes={node.id: str(node.state) for node in run.nodes},
        jobs=tuple(jobs),
        waited=timedelta(seconds=worker.waited_s),
        waits_for=tuple(node.id for node in run.nodes if node.state == JobStatus.AWAITING_INPUT),
    )


def _find_among(documents: Mapping[str, Mapping[str, Any] | Path]) -> Callable[[str], Document]:
    def find(name: str) -> Document:
        return complete_document(documents[name]) if name in documents else find_document(name)

    return find
