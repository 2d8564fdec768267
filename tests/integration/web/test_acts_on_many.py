"""What is picked is looked at together: a preview of five hundred things costs what one of two does."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from support.rows.jobs import Jobs
from support.rows.plans import explain
from support.rows.runs import start
from support.servers.web_page import Answer, OperatorsPage, text_of

from queue_workflows.repositories.audit_log import LAST_OF, AuditRepository
from queue_workflows.repositories.jobs.picked import PICKED_INGEST
from queue_workflows.repositories.runs.listing import PICKED, POISONED_AMONG
from queue_workflows.repositories.runs.nodes import READ_OF
from queue_workflows.repositories.runs.operator_verbs import DOCUMENTS, LOOK_AT_MANY
from queue_workflows.web.acts.act import MOST_TARGETS

DOCUMENT: dict[str, Any] = {"nodes": [{"id": "a", "module": "m"}]}
# As many of each as there may be in one act.
RUNS_LIKE = """
INSERT INTO workflow_runs (id, workflow_name, mode, spec, spec_hash, inputs, pinned_host, status)
SELECT gen_random_uuid(), workflow_name, mode, spec, spec_hash, inputs, 'there', 'running'
FROM workflow_runs, generate_series(1, %s) WHERE id = %s RETURNING id
"""
POISONED = """
INSERT INTO workflow_dispatch_events (run_id, generation, attempt, kind, payload, tries, poisoned_at)
SELECT id, 1, 0, 'cancel', '{}', 9, now() FROM workflow_runs
"""


@contextmanager
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The statements of a look, without those that set its bounds."""
    texts: list[str] = []
    before = psycopg.Cursor.execute

    def counted(cursor: Any, query: Any, *more: Any, **named: Any) -> Any:
        text = query.decode() if isinstance(query, bytes) else str(query)
        # Nor those of a reader that is new: which of the three looks is not ours to say.
        if "set_config" not in text and "pg_has_role" not in text:
            texts.append(text)
        return before(cursor, query, *more, **named)

    with monkeypatch.context() as patched:
        patched.setattr(psycopg.Cursor, "execute", counted)
        yield texts


def preview(page: OperatorsPage, act: str, names: list[str]) -> Answer:
    """What a list's form asks for, which has no bound as an address has."""
    return page.post("/act/preview", [("act", act), *(("target", name) for name in names)])


def looks(page: OperatorsPage, act: str, names: list[str], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many statements the previews of two things and of all have."""
    counts = []
    # A reader's first look sets its connection up.
    preview(page, act, names[:2])
    for some in (names[:2], names):
        with asked(monkeypatch) as texts:
            answer = preview(page, act, some)
        assert answer.status_code == 200, text_of(answer)
        counts.append(len(texts))
    return counts


@pytest.fixture
def runs(conn: psycopg.Connection) -> list[str]:
    """As many runs as one act may be about, on a host that is gone, each with an event that was given up."""
    first = start(conn, DOCUMENT)
    ids = [str(row[0]) for row in conn.execute(RUNS_LIKE, [MOST_TARGETS, first]).fetchall()]
    conn.execute(POISONED)
    return ids


@pytest.mark.parametrize("act", ["run.cancel", "run.unpin", "run.unpoison"])
def test_of_runs(page: OperatorsPage, runs: list[str], act: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are picked, and all of them are in it."""
    few, many = looks(page, act, runs, monkeypatch)
    assert few == many <= 8
    assert f"{MOST_TARGETS:,} runs" in text_of(preview(page, act, runs))


def test_of_runs_that_run_again(
    page: OperatorsPage,
    conn: psycopg.Connection,
    runs: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What each of them would run again is read of all at once; half of them have nothing to run again."""
    conn.execute("UPDATE workflow_runs SET status = 'failed', finished_at = now()")
    conn.execute(
        "INSERT INTO workflow_nodes (run_id, node_id, state) SELECT id, 'a', CASE WHEN n %% 2 = 0"
        " THEN 'failed' ELSE 'completed' END FROM unnest(%s::uuid[]) WITH ORDINALITY AS of (id, n)",
        [runs],
    )
    few, many = looks(page, "run.retry", runs, monkeypatch)
    assert few == many <= 8
    assert f"{MOST_TARGETS // 2:,} runs" in text_of(preview(page, "run.retry", runs))


@pytest.mark.parametrize("act", ["job.cancel", "job.retry"])
def test_of_jobs(
    page: OperatorsPage, conn: psycopg.Connection, act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many are picked of both families, also where half of them would be left alone."""
    names = []
    for family in ("node", "ingest"):
        jobs = Jobs(family, conn)
        ids = jobs.enqueue(MOST_TARGETS // 2)
        conn.execute(
            f"UPDATE {jobs.repository.family.table} SET status = 'cancelled', finished_at = now()"
            " WHERE id %% 2 = 0 AND id = ANY(%s)",
            [ids],
        )
        names += [f"{family}:{job}" for job in ids]
    # The first two are one of each family.
    names = list(dict.fromkeys(names[:: MOST_TARGETS // 2] + names))
    few, many = looks(page, act, names, monkeypatch)
    assert few <= many <= 8
    assert "would be left alone" in text_of(preview(page, act, names))


def test_what_was_done_last_is_asked_for_all_at_once(conn: psycopg.Connection) -> None:
    """Of each its own last, and nothing of what nobody has touched."""
    conn.execute(
        "INSERT INTO audit_log (actor, action, subject_kind, subject_id) VALUES"
        " ('ann', 'run.cancel', 'run', 'a'), ('bob', 'run.retry', 'run', 'a'),"
        " ('cyd', 'job.cancel', 'job', 'a')"
    )
    asked_of = [("run", "a"), ("job", "a"), ("run", str(uuid.UUID(int=7)))]
    last = AuditRepository(conn).last_of(asked_of)
    assert {subject: (one.actor, one.action) for subject, one in last.items()} == {
        ("run", "a"): ("bob", "run.retry"),
        ("job", "a"): ("cyd", "job.cancel"),
    }


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
def test_each_is_read_by_an_index(conn: psycopg.Connection, mode: str) -> None:
    """Whatever else there is: what is picked is found, and nothing is read through."""
    first = start(conn, DOCUMENT)
    ids = [str(row[0]) for row in conn.execute(RUNS_LIKE, [20_000, first]).fetchall()]
    conn.execute(POISONED.replace("now()", "CASE WHEN random() < 0.01 THEN now() END"))
    conn.execute(
        "INSERT INTO audit_log (actor, action, subject_kind, subject_id)"
        " SELECT 'ann', 'run.cancel', 'run', id::text FROM workflow_runs"
    )
    conn.execute(
        "INSERT INTO workflow_nodes (run_id, node_id, state)"
        " SELECT id, 'n' || n, 'completed' FROM workflow_runs, generate_series(1, 3) AS n"
    )
    (job,) = Jobs("ingest", conn).enqueue()
    conn.execute(
        "INSERT INTO ingest_jobs (task_name, queue, status, finished_at)"
        " SELECT 'load', 'fetch', 'completed', now() FROM generate_series(1, 20000)"
    )
    conn.execute("ANALYZE workflow_runs, workflow_nodes, workflow_dispatch_events, audit_log, ingest_jobs")
    runs = {"ids": "{" + ",".join(ids[:20]) + "}"}
    subjects = {"kinds": "{" + ",".join(["run"] * 20) + "}", "ids": runs["ids"]}
    for sql, params in (
        (PICKED, runs),
        (POISONED_AMONG, runs),
        (LOOK_AT_MANY, runs),
        (DOCUMENTS, runs),
        (READ_OF, {"run_ids": runs["ids"]}),
        (LAST_OF, subjects),
        (PICKED_INGEST, {"ids": f"{{{job}}}"}),
    ):
        plan = explain(conn, mode, sql, params)
        assert "Seq Scan" not in {node["Node Type"] for node in plan}, plan
