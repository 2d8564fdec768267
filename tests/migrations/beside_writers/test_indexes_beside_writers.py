"""Revisions that build indexes of tables in use: writers go on, and what was interrupted is begun anew."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import psycopg
import pytest
from support.rows.revisions import HEAD
from support.rows.schemas import catalog, holding, query, until
from support.servers.postgres_versions import each_version, on_each_version

from queue_workflows.db import migrations
from queue_workflows.db.doctor import examine
from queue_workflows.db.doctor.findings import Status
from queue_workflows.db.migrations.chain.chains import engine_chain
from queue_workflows.db.migrations.session import SessionTerms
from queue_workflows.errors import MigrationBlocked

ENGINE = [engine_chain()]
PATIENT = SessionTerms(lock_timeout_s=120)
forth = partial(migrations.upgrade, chains=ENGINE)
back = partial(migrations.downgrade_chain, chain=ENGINE[0], host=None)
# Before the revisions that build them, and the indexes of each hot table that are invalid.
BEFORE = "0017"
INVALID = "SELECT indexrelid::regclass::text FROM pg_index WHERE NOT indisvalid"
AN_INGEST_JOB = "INSERT INTO ingest_jobs (task_name, queue) VALUES ('t', 'fetch')"
A_RUN = """
INSERT INTO workflow_runs (id, workflow_name, spec, spec_hash) VALUES (gen_random_uuid(), 'w', '{}', 'h')
"""
A_NODE_JOB = """
INSERT INTO workflow_node_jobs (run_id, node_id, kind, queue)
SELECT id, gen_random_uuid()::text, 'task', 'cpu' FROM workflow_runs LIMIT 1
"""
WRITES = {"ingest_jobs": AN_INGEST_JOB, "workflow_runs": A_RUN, "workflow_node_jobs": A_NODE_JOB}
WAITS = """
SELECT query FROM pg_stat_activity
WHERE {pid} = ANY (pg_blocking_pids(pid)) AND query LIKE '%INDEX CONCURRENTLY%'
"""


# A table that somebody writes to, and the revisions between which indexes of it are built.
WAYS = [
    ("ingest_jobs", "0017", "0021"),
    ("workflow_node_jobs", "0025", "0026"),
    ("workflow_node_jobs", "0028", "0029"),
    ("workflow_runs", "0019", "0020"),
]


@contextmanager
def migrating(dsn: str, step: Callable[..., object], to: str) -> Iterator[list[str]]:
    """A migration in a thread, patient; what it ended with is there once the block has ended."""
    said: list[str] = []

    def run() -> None:
        try:
            step(dsn, revision=to, terms=PATIENT)
            said.append("done")
        except Exception as error:
            said.append(repr(error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield said
    thread.join(150)
    assert not thread.is_alive()


def check_writers_go_on(dsn: str, table: str, step: Callable[..., object], to: str) -> None:
    """While an index waits for one writer, that one and others write; then the way is gone to its end."""
    with holding(dsn, WRITES[table]) as writer:
        waits = WAITS.format(pid=writer.info.backend_pid)
        with migrating(dsn, step, to) as said:
            until(lambda: said or query(dsn, waits), "the build waits for the writer")
            with psycopg.connect(dsn, autocommit=True, options="-c lock_timeout=30s") as another:
                for sql in WRITES.values():
                    writer.execute(sql)
                    another.execute(sql)
            assert said == []
            writer.commit()
        assert said == ["done"]


@on_each_version("way", WAYS)
@pytest.mark.slow
def test_writers_go_on_while_an_index_is_built(empty: str, second: str, way: tuple[str, str, str]) -> None:
    """Up and down, of each hot table; the schema is the one that an upgrade of an idle database makes."""
    table, before, after = way
    migrations.upgrade(empty, chains=ENGINE, revision=before)
    migrations.upgrade(second, chains=ENGINE, revision=after)
    query(empty, A_RUN)
    check_writers_go_on(empty, table, forth, after)
    assert catalog(empty) == catalog(second)
    check_writers_go_on(empty, table, back, before)
    assert query(empty, "SELECT version_num FROM queue_schema_version") == [(before,)]
    back(second, revision=before)
    assert catalog(empty) == catalog(second)


@pytest.mark.slow
@each_version
def test_what_was_interrupted_is_begun_anew(empty: str, at_head: dict[tuple[str, str], str]) -> None:
    """A build that gave up leaves an invalid index, which the next upgrade drops and builds again."""
    migrations.upgrade(empty, chains=ENGINE, revision=BEFORE)
    with holding(empty, AN_INGEST_JOB):
        for _ in range(2):
            with pytest.raises(MigrationBlocked, match="waited"):
                migrations.upgrade(empty, chains=ENGINE, terms=SessionTerms(lock_timeout_s=0.5))
            assert query(empty, INVALID) != []
    assert len(migrations.upgrade(empty, chains=ENGINE)) == int(HEAD) - int(BEFORE)
    assert query(empty, INVALID) == []
    assert catalog(empty) == at_head


def test_what_is_left_of_it_is_said(empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No word of a rollback: an invalid index stands, which doctor names until the next run has mended it."""
    migrations.upgrade(empty, chains=ENGINE, revision=BEFORE)
    monkeypatch.setenv("QWF_DB_URL", empty)
    told = []
    with holding(empty, AN_INGEST_JOB), pytest.raises(MigrationBlocked) as caught:
        migrations.upgrade(empty, chains=ENGINE, terms=SessionTerms(lock_timeout_s=0.5), report=told.append)
    assert told[-1].fate == "broken off, and begun anew by the next run"
    assert "; it was broken off" in caught.value.message
    assert "run it again" in str(caught.value.advice)
    assert "an index may be invalid" in str(caught.value.advice)
    assert "rolled back" not in str(caught.value)
    ((invalid,),) = query(empty, INVALID)
    (check,) = [one for one in examine().checks if one.name == "indexes"]
    assert check.status is Status.WARN
    assert invalid in check.found
    assert "`qwf db upgrade`" in check.advice
    assert f"REINDEX INDEX CONCURRENTLY {invalid}" in check.advice
    migrations.upgrade(empty, chains=ENGINE)
    (check,) = [one for one in examine().checks if one.name == "indexes"]
    assert check.status is Status.OK


def test_an_index_that_is_being_built_is_not_called_broken(
    empty: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody builds it, beside a writer that it waits for; doctor says who."""
    migrations.upgrade(empty, chains=ENGINE)
    monkeypatch.setenv("QWF_DB_URL", empty)
    with holding(empty, AN_INGEST_JOB) as writer:

        def build() -> None:
            with psycopg.connect(empty, autocommit=True) as builder:
                builder.execute("CREATE INDEX CONCURRENTLY ix_mine ON ingest_jobs (reason)")

        thread = threading.Thread(target=build, daemon=True)
        thread.start()
        until(lambda: query(empty, WAITS.format(pid=writer.info.backend_pid)), "the build waits")
        (check,) = [one for one in examine().checks if one.name == "indexes"]
        writer.commit()
        thread.join(150)
    assert check.status is Status.OK
    assert check.found.startswith("being built: ix_mine by pid ")


@pytest.mark.slow
@pytest.mark.parametrize("revision", ["0018", "0020", "0021", "0026", "0029"])
def test_a_revision_that_had_everything_but_its_number(
    empty: str, at_head: dict[tuple[str, str], str], revision: str
) -> None:
    """Ended between its last index and its commit, it is done again from its beginning."""
    before = f"{int(revision) - 1:04}"
    migrations.upgrade(empty, chains=ENGINE, revision=revision)
    query(empty, f"UPDATE queue_schema_version SET version_num = '{before}'")
    if revision == "0021":
        # What is no index of a hot table is one transaction with the number.
        query(empty, "DROP INDEX ix_concurrency_limits_patterns")
    migrations.upgrade(empty, chains=ENGINE)
    assert catalog(empty) == at_head


def test_no_revision_keeps_writers_of_jobs_and_runs_waiting() -> None:
    """From 0018 on: their indexes are built by the helper, also by revisions that nobody lists above."""
    script = migrations.offline_sql(ENGINE[0], direction="upgrade", revision=f"{BEFORE}:head")
    built = re.findall(r"^CREATE (?:UNIQUE )?INDEX (.*?) ON (\w+)", script, flags=re.MULTILINE)
    assert {table for _, table in built} >= set(WRITES)
    assert [name for name, table in built if table in WRITES and not name.startswith("CONCURRENTLY ")] == []
