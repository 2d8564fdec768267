"""Looking at a database from outside, past the code under test."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import sqlalchemy as sa
from psycopg.conninfo import make_conninfo
from support.processes.environments import environment_without
from support.suite import warm_starts
from support.suite.pauses import Pauses

from queue_workflows.db.migrations.catalog import read_catalog

ROLE_PASSWORD = "not-a-secret"
TESTS = Path(__file__).resolve().parents[2]

# Everything that somebody made, whatever its schema; what belongs to a thing of another kind comes with it.
LEFTOVERS = """
    SELECT 'relation ' || c.oid::regclass FROM pg_class c WHERE c.oid >= 16384 AND c.relkind NOT IN ('i', 't')
    UNION ALL SELECT 'function ' || p.oid::regprocedure FROM pg_proc p WHERE p.oid >= 16384
    UNION ALL SELECT 'type ' || t.oid::regtype FROM pg_type t
        WHERE t.oid >= 16384 AND t.typtype IN ('e', 'd', 'r')
    UNION ALL SELECT 'trigger ' || t.tgname FROM pg_trigger t WHERE NOT t.tgisinternal
    UNION ALL SELECT 'schema ' || n.nspname FROM pg_namespace n WHERE n.oid >= 16384 AND n.nspname !~ '^pg_'
    ORDER BY 1
"""


def leftovers(dsn: str) -> list[str]:
    """All that is in a database beyond what CREATE DATABASE makes."""
    with psycopg.connect(dsn) as connection:
        return [name for (name,) in connection.execute(LEFTOVERS)]


def as_user(dsn: str, role: str) -> str:
    """The same database as a role that the tests made."""
    return make_conninfo(dsn, user=role, password=ROLE_PASSWORD)


def query(dsn: str, sql: str) -> list[tuple]:
    """The rows of one statement, committed."""
    with psycopg.connect(dsn) as connection:
        cursor = connection.execute(sql)
        return cursor.fetchall() if cursor.description else []


def sa_engine(dsn: str) -> sa.Engine:
    """An engine without a pool."""
    return sa.create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(dsn), poolclass=sa.NullPool
    )


def catalog(dsn: str, schema: str = "public") -> dict[tuple[str, str], str]:
    """What a schema holds."""
    with sa_engine(dsn).connect() as connection:
        return read_catalog(connection, schema)


def blocked(dsn: str, by: int) -> list[int]:
    """The backends that wait for a lock which the backend `by` holds."""
    rows = query(dsn, f"SELECT pid FROM pg_stat_activity WHERE {by} = ANY (pg_blocking_pids(pid))")
    return [pid for (pid,) in rows]


def until(happened: Callable[[], object], what: str, seconds: float = 150.0) -> None:
    """Wait for something that must come; fails by name when it does not."""
    deadline, pauses = time.monotonic() + seconds, Pauses()
    while not happened():
        assert time.monotonic() < deadline, f"never happened: {what}"
        pauses.sleep()


def qwf_environment(**more: str) -> dict[str, str]:
    """This process's environment without the user's database, and with the tests' host app importable."""
    kept = environment_without("QWF_", "AI_LEADS_", "PG")
    paths = [
        str(TESTS),
        *filter(None, map(os.path.abspath, os.environ.get("PYTHONPATH", "").split(os.pathsep))),
    ]
    return {**kept, "PYTHONPATH": os.pathsep.join(paths), **more}


def start_qwf(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    """A real `qwf` process."""
    return warm_starts.start(
        [*warm_starts.MODULE, *arguments],
        qwf_environment(**environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def qwf(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A `qwf` command line, run to its end."""
    process = start_qwf(*arguments, **environment)
    out, err = process.communicate(timeout=150)
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


@contextmanager
def holding(dsn: str, sql: str) -> Iterator[psycopg.Connection]:
    """An open transaction, or a session, that holds the locks which `sql` takes."""
    with psycopg.connect(dsn, application_name="the-holder") as connection:
        connection.execute(sql)
        yield connection
        connection.rollback()
