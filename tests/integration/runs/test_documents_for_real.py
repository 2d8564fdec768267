"""Everything that a document can say of data, through the shipped processes."""

from __future__ import annotations

import psycopg
import pytest
from support.apps import studio
from support.processes.workers import running_orchestrator, running_worker, until

from queue_workflows import start_run
from queue_workflows.config import reset_config
from queue_workflows.repositories import RunRepository

APPS = {
    "of host": "support.apps.studio_app",
    "of every reference": "support.apps.studio_asked_for_all",
}


@pytest.fixture(autouse=True)
def _wiring():
    """This process is one of the host app's too: it starts the run."""
    studio.wire()
    yield
    reset_config()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("resolver", APPS)
def test_every_operator_and_root(qwf_dsn: str, conn: psycopg.Connection, resolver: str):
    """Found by name, completed by its pipeline, resolved late by orchestrator and worker alike.

    A resolver that is asked for every reference is told of which run, and may leave each as it is.
    """
    app = {"QWF_APP": APPS[resolver]}
    runs = RunRepository(conn)
    run = start_run("studio", {"brief": "canals"}, labels={"team": "blue"}, conn=conn)
    with running_orchestrator(qwf_dsn, **app), running_worker(qwf_dsn, "--queue", "cpu", **app):
        ended = until(lambda: (found := runs.fetch(run.id)).finished_at and found, within_s=150)
    first = {"n": 1, "at": 0, "of": "studio", "to": "s3://studio/blue"}
    assert (ended.status, ended.error) == ("completed", None)
    assert ended.outputs == {
        "show": {
            "all": [first, None],
            "first": 1,
            "skipped": None,
            "deep": 2,
            "nothing": None,
            "literal": {"$from": "inputs.brief"},
            "fair": True,
        },
        "kept": [first],
    }
