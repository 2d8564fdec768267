"""Each statement of each page, as the page asks it, beside a long history: none reads that as a whole."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from support.rows.every_state import EveryState, put_every_state
from support.rows.plans import explain, rows_read
from support.servers.web_page import OperatorsPage, served_page, text_of

from queue_workflows.testing.servers import QwfServer
from queue_workflows.web.pages.all import ADDRESSES

ENDED = 40_000
# What grows as long as nobody prunes it.
HISTORY = (
    *("ingest_jobs", "workflow_node_jobs", "workflow_runs", "workflow_nodes"),
    *("audit_log", "hook_records"),
)
PAST = """
INSERT INTO ingest_jobs (task_name, queue, status, claimed_by, attempt, created_at, started_at, finished_at)
SELECT 'task', 'q' || n % 7, CASE WHEN n % 50 = 0 THEN 'failed' ELSE 'completed' END, 'w', 1, at, at, at
FROM generate_series(1, %(ended)s) AS n, LATERAL (SELECT now() - interval '1 min' * n) AS of (at);
INSERT INTO workflow_runs (id, workflow_name, spec, spec_hash, status, created_at, started_at, finished_at)
SELECT lpad(to_hex(n), 32, '0')::uuid, 'film' || n % 5, '{}', 'h', 'completed', at, at, at
FROM generate_series(1, %(ended)s) AS n, LATERAL (SELECT now() - interval '1 min' * n) AS of (at);
INSERT INTO workflow_nodes (run_id, node_id, state, jobs_total, jobs_completed)
SELECT lpad(to_hex(n), 32, '0')::uuid, 'n', 'completed', 1, 1 FROM generate_series(1, %(ended)s) AS n;
INSERT INTO workflow_node_jobs
    (run_id, node_id, queue, status, claimed_by, attempt, created_at, started_at, finished_at)
SELECT lpad(to_hex(n), 32, '0')::uuid, 'n', 'gpu', CASE WHEN n % 50 = 0 THEN 'failed' ELSE 'completed' END,
    'w', 1, at, at, at
FROM generate_series(1, %(ended)s) AS n, LATERAL (SELECT now() - interval '1 min' * n) AS of (at);
INSERT INTO audit_log (at, actor, action, subject_kind, subject_id)
SELECT now() - interval '1 min' * n, 'ann', 'job.retry', 'job', 'ingest:' || n
FROM generate_series(1, %(ended)s) AS n;
INSERT INTO hook_records (run_id, node_job_id, attempt, plugin, hook, line_no, type, payload)
SELECT run_id, id, 1, 'title', 'on_page__title', 1, 'Result', '{}' FROM workflow_node_jobs
WHERE node_id = 'n';
INSERT INTO workflow_dispatch_events (run_id, generation, attempt, kind, payload, tries, poisoned_at)
SELECT lpad(to_hex(n), 32, '0')::uuid, 1, 0, 'cancel', '{}', 9, now() FROM generate_series(1, 200) AS n
"""
MORE = [
    "/runs/{run}?view=timeline",
    "/runs/{run}?view=nodes",
    "/runs/{run}?view=records",
    "/runs/{run}/nodes/{node}?state=failed",
    "/jobs?q=status:failed",
    "/jobs?q=queue:fetch status:queued",
    "/jobs?q=worker:nobody newer:1d",
    "/jobs?q=held:any",
    "/runs?q=workflow:nothing",
    "/runs?q=poisoned:yes",
    "/audit?target=ingest:7",
]


@dataclass(frozen=True)
class Statement:
    """What a page asks; one that is not to be prepared is planned for its values each time."""

    sql: str
    params: dict[str, Any]
    modes: tuple[str, ...]


@contextmanager
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Statement]]:
    """The statements of a look, without those that set its bounds."""
    found: list[Statement] = []
    before = psycopg.Cursor.execute

    def heard(cursor: Any, query: Any, params: Any = None, **how: Any) -> Any:
        sql = query.decode() if isinstance(query, bytes) else str(query)
        # Nor those of a reader that is new: which of the three looks is not ours to say.
        if "set_config" not in sql and "pg_has_role" not in sql:
            is_prepared = how.get("prepare") is not False
            modes = ("force_custom_plan", *(("force_generic_plan",) if is_prepared else ()))
            found.append(Statement(sql, dict(params or {}), modes))
        return before(cursor, query, params, **how)

    with monkeypatch.context() as patched:
        patched.setattr(psycopg.Cursor, "execute", heard)
        yield found


@pytest.fixture(scope="module")
def crowded(qwf_server: QwfServer) -> Iterator[tuple[OperatorsPage, EveryState, psycopg.Connection]]:
    """Something in every state, and 40,000 rows of each kind that are over."""
    with qwf_server.database() as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        there = put_every_state(connection)
        connection.execute("SET session_replication_role = replica")
        for sql in PAST.split(";\n"):
            connection.execute(sql.replace(" % ", " %% ").encode(), {"ended": ENDED})
        connection.execute("RESET session_replication_role")
        connection.execute("VACUUM ANALYZE")
        with served_page(dsn) as page:
            # The first look of a reader sets its connection up, and asks about the schema.
            for job in there.jobs.values():
                page.get(f"/jobs/{job}")
            yield page, there, connection


@pytest.mark.parametrize("path", [*(one.path for one in ADDRESSES if not one.is_alone), *MORE])
def test_no_history_is_read_as_a_whole(
    path: str,
    crowded: tuple[OperatorsPage, EveryState, psycopg.Connection],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By an index, whatever the planner knows of the values, and but for a search never more than a part."""
    page, there, connection = crowded
    place, _, words = there.place(path).partition("?")
    with asked(monkeypatch) as statements:
        shown = page.get(place, **dict(pair.split("=", 1) for pair in words.split("&") if pair))
    assert shown.status_code == 200, text_of(shown)
    # Hooks are files of the machine's, and no rows.
    assert bool(statements) == (path != "/hooks")
    for one in statements:
        for mode in one.modes:
            plan = explain(connection, mode, one.sql, one.params)
            whole = {node["Relation Name"] for node in plan if node["Node Type"] == "Seq Scan"}
            assert not whole & set(HISTORY), (mode, one.sql)
            # What few match is looked for in so many rows, which `test_job_search` is about.
            assert rows_read(plan, *HISTORY) < ENDED / 2 or "q=" in words, (mode, one.sql)


def test_a_live_search_looks_as_far_however_slow_it_is(
    crowded: tuple[OperatorsPage, EveryState, psycopg.Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or each look would differ from the one before, and be sent; further back the clock may end it."""
    page, _, _ = crowded

    def further(**words: str) -> list[str]:
        """Where a search goes on that has no time, and one that has much of it."""
        found = []
        for searched_for_s in (1e-9, 3600.0):
            monkeypatch.setattr("queue_workflows.web.pages.jobs.SEARCHED_FOR_S", searched_for_s)
            text = page.get("/jobs", q="worker:nobody", **words).text
            found += re.findall(r'rel="next" href="[^"]*before=([a-z0-9.]+)', text) or ["the end"]
        return found

    hasty, patient = further()
    assert hasty == patient != "the end"
    hasty, patient = further(before=hasty)
    assert hasty != patient == "the end"
