"""`qwf queue retry-failed`: what failed runs again, as far as it is meant; who and why is kept."""

from __future__ import annotations

import json
from collections.abc import Iterator

import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.commands import qwf_here
from support.rows.jobs import CLEAR, Jobs

# Failed jobs of two tasks and queues with two errors, some long ago, and what has not failed.
FILL = """
INSERT INTO ingest_jobs (task_name, queue, status, attempt, failures, claimed_by, finished_at, errors)
SELECT task_name, queue, 'failed', 3, 3, 'w', now() - make_interval(hours => hours),
    jsonb_build_array(jsonb_build_object('type', type, 'message', 'page ' || number || ' is gone'))
FROM (VALUES ('page', 'fetch', 0, 'OSError'), ('page', 'load', 0, 'OSError'),
    ('mail', 'fetch', 0, 'KeyError'), ('mail', 'fetch', 5, 'OSError')) AS k (task_name, queue, hours, type),
    generate_series(1, 3) AS number;
INSERT INTO ingest_jobs (task_name, queue, status, attempt, claimed_by, finished_at)
VALUES ('page', 'fetch', 'completed', 1, 'w', now()), ('page', 'fetch', 'cancelled', 1, 'w', now());
"""


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR)
        connection.execute(FILL)
        yield connection


def queued(conn: psycopg.Connection) -> list[tuple[str, str, int]]:
    counts = "SELECT task_name, queue, count(*) FROM ingest_jobs WHERE status = 'queued' GROUP BY 1, 2"
    return [tuple(row) for row in conn.execute(f"{counts} ORDER BY 1, 2").fetchall()]


@pytest.mark.parametrize(
    ("options", "meant"),
    [
        (("--queue", "fetch"), [("mail", "fetch", 6), ("page", "fetch", 3)]),
        (("--task", "page"), [("page", "fetch", 3), ("page", "load", 3)]),
        (("--since", "1h"), [("mail", "fetch", 3), ("page", "fetch", 3), ("page", "load", 3)]),
        (("--error", "keyerror"), [("mail", "fetch", 3)]),
        (("--error", "OSError: page # is gone", "--queue", "load"), [("page", "load", 3)]),
        (("--error", "page 2 is gone", "--task", "mail"), [("mail", "fetch", 2)]),
        (("--all",), [("mail", "fetch", 6), ("page", "fetch", 3), ("page", "load", 3)]),
        (
            ("--queue", "fetch", "--task", "mail", "--since", "1h", "--error", "KeyError"),
            [("mail", "fetch", 3)],
        ),
    ],
)
def test_those_that_are_meant_run_again(qwf_dsn, conn, options, meant):
    """After a dry run that says how many and changes nothing; with a line each in the audit log."""
    count = sum(number for _, _, number in meant)
    command = ("--db", qwf_dsn, "queue", "retry-failed", *options)
    would = json.loads(qwf_here(*command, "--dry-run", "--json").stdout)
    assert would == {"matched": count, "dry_run": True, "left_alone": 0}
    assert queued(conn) == []
    said = qwf_here(*command, "--yes", "--actor", "ann", "--reason", "mended")
    assert said.stdout.splitlines()[-1] == f"{count} jobs retried"
    assert queued(conn) == meant
    ((failures, generation),) = conn.execute(
        "SELECT DISTINCT failures, generation FROM ingest_jobs WHERE status = 'queued'"
    ).fetchall()
    assert (failures, generation) == (0, 2)
    log = conn.execute("SELECT action, actor, reason, count(*) FROM audit_log GROUP BY 1, 2, 3").fetchall()
    assert log == [("job.retry", "ann", "mended", count)]
    assert "no jobs match" in qwf_here(*command, "--yes").stderr


def test_nodes_of_workflows_are_left_alone(qwf_dsn, conn):
    """Their runs are retried."""
    conn.execute(CLEAR)
    (node,) = Jobs("node", conn).enqueue(1)
    conn.execute("UPDATE workflow_node_jobs SET status = 'failed', finished_at = now() WHERE id = %s", [node])
    assert "no jobs match" in qwf_here("--db", qwf_dsn, "queue", "retry-failed", "--all", "--yes").stderr


@pytest.mark.parametrize(
    "options",
    [("--yes",), ("--all", "--queue", "fetch", "--yes"), ("--since", "x", "--yes"), ("--queue", "fetch")],
)
def test_a_wrong_command_line_is_2(qwf_dsn, conn, options):
    """Nothing that is meant, too much, no time, and nobody there to be asked."""
    said = qwf_here("--db", qwf_dsn, "queue", "retry-failed", *options, status=2)
    assert said.stderr.splitlines()[-1].startswith("qwf: ")
    assert queued(conn) == []
