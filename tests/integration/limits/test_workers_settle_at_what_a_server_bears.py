"""A real server refuses what is too much: workers settle near that, and come back when it bears more."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.workers import running_worker, until
from support.rows.jobs import CLEAR_WITH_WORKERS
from support.servers.polite_tasks import CEILING
from support.servers.refusing import Bears, refusing_server
from support.stages.declaring import EMPTY_LIMITS

from queue_workflows import NewIngestJob
from queue_workflows.config import reset_config
from queue_workflows.repositories import IngestJobRepository
from queue_workflows.repositories.limits.overview import LimitLineRepository

BORNE_PER_S = 20
BORNE_AT_ONCE = 3
# The module of the tasks has configured this process, too.
reset_config()


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    """A connection in autocommit; nothing is declared, set or enqueued."""
    with own_connection(qwf_dsn) as connection:
        connection.execute(f"{CLEAR_WITH_WORKERS}; {EMPTY_LIMITS}")
        yield connection


def enqueue(conn: psycopg.Connection, task: str, bears: Bears, count: int) -> None:
    IngestJobRepository(conn).enqueue_many(
        NewIngestJob(task_name=task, queue="fetch", args={"url": bears.url}) for _ in range(count)
    )


def rate_now(conn: psycopg.Connection) -> float:
    """The rate that takers go by."""
    found = conn.execute(
        "SELECT value * 2 ^ (extract(epoch FROM now() - lowered_at) / doubles_s) FROM adapted_limits"
        " WHERE limit_key = 'server' AND kind = 'rate'"
    ).fetchone()
    return CEILING if found is None else min(float(CEILING), float(found[0]))


@pytest.mark.slow
def test_a_rate_settles_near_what_the_server_bears(conn: psycopg.Connection, qwf_dsn: str) -> None:
    """Most that is asked then is answered; when the server bears anything, it is what is declared again."""
    with refusing_server() as bears:
        bears.per_s = BORNE_PER_S
        enqueue(conn, "ask", bears, 2_000)
        with running_worker(qwf_dsn, "--concurrency", "16", QWF_APP="support.servers.polite_tasks"):
            until(lambda: bears.accepted >= 4 * BORNE_PER_S)
            accepted, refused = bears.accepted, bears.refused
            until(lambda: bears.accepted >= accepted + 4 * BORNE_PER_S)
            assert bears.refused - refused <= bears.accepted - accepted
            assert 2 <= rate_now(conn) <= 4 * BORNE_PER_S
            bears.per_s = float("inf")
            until(lambda: rate_now(conn) == CEILING)


@pytest.mark.slow
def test_a_cap_settles_near_what_the_server_bears(conn: psycopg.Connection, qwf_dsn: str) -> None:
    """Under the key that jobs have of their task, though they were enqueued by its name."""
    with refusing_server(takes_s=0.02) as bears:
        bears.at_once = BORNE_AT_ONCE
        enqueue(conn, "sit", bears, 3_000)
        with running_worker(qwf_dsn, "--concurrency", "16", QWF_APP="support.servers.polite_tasks"):
            until(lambda: bears.refused > 0 and bears.accepted >= 50)
            accepted, refused = bears.accepted, bears.refused
            until(lambda: bears.accepted >= accepted + 100)
            assert bears.refused - refused <= bears.accepted - accepted
            assert (LimitLineRepository(conn).of("seats").max_slots or 0) <= 3 * BORNE_AT_ONCE
            bears.at_once = float("inf")
            until(lambda: LimitLineRepository(conn).of("seats").max_slots == 16)
