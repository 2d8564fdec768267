"""Operators' commands under least privilege: a reader may look, an operator may act, others may not."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import psycopg
import pytest
from support.processes.commands import qwf_here
from support.processes.supervised import Supervised
from support.rows.roles import Roles, least_privilege

from queue_workflows import IngestJobRepository, db, start_run
from queue_workflows.workflow.document.load import load_document

RUN = "0190b5d4-0000-7000-8000-000000000007"
DOCUMENT = load_document({"name": "film", "nodes": [{"id": "approve", "type": "input"}]})
LOOKS = (
    ("workers", "list"),
    ("workers", "pause", "*", "fetch", "--dry-run"),
    ("limits", "show", "host:a"),
    ("limits", "set", "host:a", "1", "--dry-run"),
    ("overview",),
    ("models",),
    ("hw",),
    ("schedule", "list"),
    ("queue", "stats"),
    ("job", "list"),
    ("job", "show", "ingest:1"),
    ("job", "failures"),
    ("explain", "ingest:1"),
    ("run", "list", "--poisoned"),
    ("run", "show", RUN),
    ("run", "show", RUN[:13]),
    ("run", "nodes", RUN, "approve"),
    ("run", "timeline", RUN),
    ("run", "grid", "film"),
    ("run", "workflows"),
    ("audit",),
)
ACTS = (
    ("workers", "pause", "*", "fetch"),
    ("workers", "on", "*", "fetch"),
    ("job", "cancel", "ingest:1"),
    ("job", "retry", "ingest:1"),
    ("job", "cancel", "--queue", "fetch", "--yes"),
    ("job", "retry", "--status", "cancelled", "--yes"),
    ("queue", "retry-failed", "--all", "--yes"),
)
RUN_ACTS = (
    ("run", "submit-input", RUN, "approve", "{}"),
    ("run", "unpoison", RUN),
    ("run", "cancel", RUN),
    ("run", "cancel", "--label", "customer=ann", "--yes"),
)


@pytest.fixture(scope="module")
def roles(qwf_server, qwf_role_suffix) -> Iterator[Roles]:
    """The six roles after a deployment, and a job."""
    with qwf_server.database(False) as dsn, least_privilege(dsn, qwf_role_suffix) as roles:
        db.bootstrap(roles.dsn("migrator"))
        roles.grant()
        with psycopg.connect(roles.dsn("producer")) as producer:
            assert IngestJobRepository(producer).enqueue("note", queue="fetch").id == 1
            run = start_run(DOCUMENT, conn=producer, labels={"customer": "ann"})
        with psycopg.connect(roles.admin_dsn) as administrator:
            administrator.execute("UPDATE workflow_runs SET id = %s WHERE id = %s", [RUN, run.id])
            administrator.execute(
                "INSERT INTO workflow_dispatch_events (run_id, generation, attempt, kind, poisoned_at)"
                " VALUES (%s, 1, 0, 'nonsense', now())",
                [RUN],
            )
        yield roles


@pytest.mark.slow
def test_a_reader_looks_and_an_operator_acts(roles):
    """The operator's group is that of the orchestrators."""
    for command in LOOKS:
        qwf_here("--db", roles.dsn("reader"), *command)
    for command in (*LOOKS, *ACTS, *RUN_ACTS):
        qwf_here("--db", roles.dsn("orchestrator"), *command)


def test_a_producer_fills_queues(roles, tmp_path):
    """With one job, many, and a file of them that is imported twice."""
    file = tmp_path / "jobs.jsonl"
    file.write_text(
        '{"task_name": "page", "dedupe_key": "a"}\n{"task_name": "page", "limit_key": "host:a"}\n'
    )
    producer = ("--db", roles.dsn("producer"), "queue")
    for _ in range(2):
        qwf_here(*producer, "import", str(file), "--queue", "load")
        qwf_here(*producer, "enqueue", "page", "--queue", "load", "--dedupe-key", "b")
    qwf_here(*producer, "enqueue", "page", "--queue", "load", "--count", "3", "--limit-key", "host:a")
    with psycopg.connect(roles.admin_dsn) as administrator:
        counted = "SELECT count(*) FROM ingest_jobs WHERE queue = 'load'"
        assert administrator.execute(counted).fetchone() == (7,)
    said = qwf_here("--db", roles.dsn("reader"), "queue", "import", str(file), "--queue", "load", status=78)
    assert (said.stdout, said.stderr.count("\n")) == ("", 1)
    assert "grants" in said.stderr


@pytest.mark.slow
def test_a_worker_works_a_queue_off(roles):
    """And says what became of it."""
    with psycopg.connect(roles.dsn("producer")) as producer:
        IngestJobRepository(producer).enqueue("note", queue="fetch")
    command = [sys.executable, "-m", "queue_workflows", "queue", "run", "fetch", "--drain"]
    with Supervised(command, roles.dsn("worker"), env={"QWF_APP": "support.tasks.worker_tasks"}) as process:
        assert process.status(300) == 0
    assert any(line.startswith("completed ") for line in process.said), process.said


@pytest.mark.parametrize("command", RUN_ACTS, ids=" ".join)
def test_a_reader_may_not_steer_runs(roles, command):
    """78, one line."""
    said = qwf_here("--db", roles.dsn("reader"), *command, status=78)
    assert (said.stdout.count("\n") <= 2, said.stderr.count("\n")) == (True, 1)
    assert "grants" in said.stderr


@pytest.mark.parametrize("role", ["reader", "worker", "producer"])
@pytest.mark.parametrize("command", ACTS[:4], ids=" ".join)
def test_who_may_not_act_is_told_so(roles, role, command):
    """78, one line, and nothing is changed."""
    with psycopg.connect(roles.admin_dsn, autocommit=True) as administrator:
        seen = "SELECT count(*), max(generation), min(status) FROM ingest_jobs, audit_log"
        before = administrator.execute(seen).fetchone()
        said = qwf_here("--db", roles.dsn(role), *command, status=78)
        assert (said.stdout, said.stderr.count("\n")) == ("", 1)
        assert "grants" in said.stderr
        assert administrator.execute(seen).fetchone() == before
