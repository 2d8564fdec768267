"""A revision locks no table in use while it waits for another, and may be begun anew in between."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import psycopg
import pytest
from support.rows.revisions import HEAD
from support.rows.schemas import blocked, catalog, holding, query, until
from support.servers.postgres_versions import on_each_version

from queue_workflows.db import migrations
from queue_workflows.db.migrations.chain.chains import engine_chain
from queue_workflows.db.migrations.session import SessionTerms
from queue_workflows.errors import MigrationBlocked

ENGINE = engine_chain()
# Before the revisions that are as short as is said here.
BEFORE = "0031"
PATIENT = SessionTerms(lock_timeout_s=120)
HASTY = SessionTerms(lock_timeout_s=0.3)
RUN = """
INSERT INTO workflow_runs (id, workflow_name, spec, spec_hash) VALUES (gen_random_uuid(), 'w', '{}', 'h')
"""
WRITES = {
    "ingest_jobs": "INSERT INTO ingest_jobs (task_name, queue) VALUES ('t', 'fetch')",
    "workflow_node_jobs": """
        INSERT INTO workflow_node_jobs (run_id, node_id, kind, queue)
        SELECT id, gen_random_uuid()::text, 'task', 'cpu' FROM workflow_runs LIMIT 1
    """,
    "workflow_runs": RUN,
    "workflow_input_submissions": """
        INSERT INTO workflow_input_submissions (run_id, node_id, payload)
        SELECT id, 'ask', '{}' FROM workflow_runs LIMIT 1
    """,
}
# Tables that are looked at as rows of others are inserted: these refer to runs, and the event that announces
# an answer has a column for a node job.
LOOKED_AT = {
    "workflow_node_jobs": ("workflow_runs",),
    "workflow_input_submissions": ("workflow_runs", "workflow_node_jobs"),
}
# A statement that keeps others from a table until the end of its transaction.
LOCKS = re.compile(
    r"^\s*(?:ALTER TABLE (?:IF EXISTS )?|(?:CREATE|DROP)[^;]*? TRIGGER [^;]*? ON |UPDATE |DELETE FROM )(\w+)",
    re.IGNORECASE,
)
HELD = """
SELECT DISTINCT relation::regclass::text FROM pg_locks
WHERE pid = %s AND granted AND locktype = 'relation'
    AND mode IN ('ShareRowExclusiveLock', 'AccessExclusiveLock') AND relation::regclass::text = ANY (%s)
"""
AWAITED = "SELECT relation::regclass::text FROM pg_locks WHERE pid = ANY (%s) AND NOT granted"

Step = Callable[..., object]


def forth(dsn: str, terms: SessionTerms = PATIENT) -> None:
    migrations.upgrade(dsn, chains=[ENGINE], revision=HEAD, terms=terms)


def back(dsn: str, terms: SessionTerms = PATIENT) -> None:
    migrations.downgrade_chain(dsn, chain=ENGINE, host=None, revision=BEFORE, terms=terms)


@contextmanager
def migrating(step: Step) -> Iterator[list[str]]:
    """A migration in a thread; what it ended with is there once the block has ended."""
    said: list[str] = []

    def run() -> None:
        try:
            step()
            said.append("done")
        except Exception as error:
            said.append(repr(error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield said
    thread.join(150)
    assert not thread.is_alive()


@pytest.mark.parametrize("direction", ["upgrade", "downgrade"])
def test_no_transaction_locks_two_tables(direction: str) -> None:
    """As a script says it: between a BEGIN and its COMMIT one table at the most, by each revision since."""
    way = f"{BEFORE}:head" if direction == "upgrade" else f"{HEAD}:{BEFORE}"
    script = migrations.offline_sql(ENGINE, direction=direction, revision=way)
    together: set[str] = set()
    found: set[str] = set()
    inside = False
    # A body of a function has semicolons of its own.
    for statement in re.sub(r"\$\$.*?\$\$", "", script, flags=re.DOTALL).split(";"):
        words = re.sub(r"--[^\n]*", "", statement).strip()
        if words in {"BEGIN", "COMMIT"}:
            together, inside = set(), words == "BEGIN"
            continue
        if (locks := LOCKS.match(words)) and locks[1] != "queue_schema_version":
            found.add(locks[1])
            together = {*together, locks[1]} if inside else {locks[1]}
        assert "CASCADE" not in words
        assert len(together) <= 1, together
    assert found >= set(WRITES)


@pytest.mark.slow
@on_each_version("table", WRITES)
def test_who_writes_to_another_table_goes_on(empty: str, migrated: str, table: str) -> None:
    """While a revision waits for a writer of one table, up and down, it holds up nobody at another."""
    migrations.upgrade(empty, chains=[ENGINE], revision=BEFORE)
    query(empty, RUN)
    check_others_go_on(empty, table, partial(forth, empty))
    assert catalog(empty) == catalog(migrated)
    check_others_go_on(empty, table, partial(back, empty))
    back(migrated)
    assert catalog(empty) == catalog(migrated)


def check_others_go_on(dsn: str, table: str, step: Step) -> None:
    """The writer of a table is waited for; the other tables are free meanwhile."""
    with holding(dsn, WRITES[table]) as writer, migrating(step) as said:
        waits = partial(blocked, dsn, writer.info.backend_pid)
        until(lambda: said or waits(), "the revision waits for the writer")
        with psycopg.connect(dsn, autocommit=True, options="-c lock_timeout=30s") as another:
            assert another.execute(HELD, [waits()[0], list(WRITES)]).fetchall() == []
            ((awaited,),) = another.execute(AWAITED, [waits()]).fetchall()
            for other, sql in WRITES.items():
                if awaited not in {other, *LOOKED_AT.get(other, ())}:
                    another.execute(sql)
        assert said == []
        writer.commit()
    assert said == ["done"]


@pytest.mark.slow
@on_each_version("table", ["workflow_node_jobs", "ingest_jobs"])
def test_what_was_interrupted_between_two_tables_is_begun_anew(empty: str, migrated: str, table: str) -> None:
    """Up and down: what one table has already is no hindrance to the next try."""
    migrations.upgrade(empty, chains=[ENGINE], revision=BEFORE)
    for step in (forth, back):
        with holding(empty, f"LOCK TABLE {table} IN ROW EXCLUSIVE MODE"):
            for _ in range(2):
                with pytest.raises(MigrationBlocked, match="waited"):
                    step(empty, HASTY)
        step(empty)
        if step is back:
            back(migrated)
        assert catalog(empty) == catalog(migrated)
