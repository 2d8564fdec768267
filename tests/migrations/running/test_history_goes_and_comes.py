"""The revision of history by months: on either version, in a schema of one's own, and back with every job."""

from __future__ import annotations

import os

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from support.rows.history import by_months, over, places, rows, settle
from support.rows.revisions import REVISIONS
from support.servers.postgres_versions import each_version

from queue_workflows.db import bootstrap, downgrade, migrations
from queue_workflows.db.migrations.beside_writers import history
from queue_workflows.db.migrations.chain.chains import engine_chain
from queue_workflows.db.migrations.chain.host_filter import include_name
from queue_workflows.errors import SchemaError
from queue_workflows.repositories import IngestJobRepository
from queue_workflows.repositories.reports.job_listing import JobFilter, SelectingRepository

BEFORE = REVISIONS[REVISIONS.index("0047") - 1]


@each_version
def test_a_downgrade_brings_everything_back(empty: str) -> None:
    """Also while history is by months; and the schema with months in it is as the models say."""
    bootstrap(empty)
    with psycopg.connect(empty, autocommit=True) as connection:
        ids = [*over(connection, 5, days=70), *over(connection, 5)]
        by_months(connection)
        settle(connection, retention_days=1000)
        assert places(connection) == ([], ids)
        before = rows(connection)
        migrations.check(empty, chain=engine_chain())
        downgrade(empty, chain="engine", revision=BEFORE)
        left = [
            row[0] for row in connection.execute("SELECT to_jsonb(job) FROM ingest_jobs AS job ORDER BY id")
        ]
        assert left == before
        tables = connection.execute("SELECT relname FROM pg_class WHERE relname ~ 'history'").fetchall()
        assert {name for (name,) in tables if "ingest" in name} == set()
    bootstrap(empty)


@each_version
def test_a_downgrade_goes_by_ids(empty: str) -> None:
    """However the history lies, so that no batch walks what those before it have left behind."""
    bootstrap(empty)
    with psycopg.connect(empty, autocommit=True) as connection:
        ids = over(connection, 12_000, days=70)
        connection.execute(
            "UPDATE ingest_jobs SET finished_at = now() - interval '70 days' - id * interval '1 s'"
        )
        by_months(connection)
        settle(connection, retention_days=1000)
        assert places(connection) == ([], ids)
        downgrade(empty, chain="engine", revision=BEFORE)
        lie = [job_id for (job_id,) in connection.execute("SELECT id FROM ingest_jobs ORDER BY ctid")]
        assert lie == ids


@each_version
def test_a_downgrade_with_too_long_a_history_is_refused(empty: str) -> None:
    """Before anything is locked or brought back: `qwf db history --plain` does that beside the work."""
    bootstrap(empty)
    with psycopg.connect(empty, autocommit=True) as connection:
        ids = over(connection, 5)
        by_months(connection)
        settle(connection)
        connection.execute(
            "UPDATE pg_class SET reltuples = 1000001 WHERE relname ~ '^ingest_jobs_history_2.*[0-9]$'"
        )
        with pytest.raises(SchemaError, match="say qwf db history --plain"):
            downgrade(empty, chain="engine", revision=BEFORE)
        assert places(connection) == ([], ids)


@each_version
def test_a_role_with_rights_to_the_tables_alone_works_on(empty: str) -> None:
    """Roles made by hand before the revision: what worked works as long as no history is asked for."""
    bootstrap(empty)
    downgrade(empty, chain="engine", revision=BEFORE)
    role = f"by_hand_{os.getpid()}"
    with psycopg.connect(empty, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role}")
        try:
            connection.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}")
            connection.execute(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {role}")
            bootstrap(empty)
            (done,) = over(connection)
            connection.execute(f"SET ROLE {role}")
            jobs = IngestJobRepository(connection)
            queued = jobs.enqueue("task", queue="fetch").id
            with connection.transaction():
                assert jobs.retry_many([queued, done, done + 100], actor="ann") == {done: 2}
            assert jobs.fetch(done + 100) is None
            assert jobs.counts() == {"fetch": {"queued": 2}}
            assert SelectingRepository(connection).count(JobFilter(), at_most=10) == 2
        finally:
            connection.execute("RESET ROLE")
            connection.execute(f"DROP OWNED BY {role}")
            connection.execute(f"DROP ROLE {role}")


@each_version
def test_in_a_schema_of_ones_own(empty: str) -> None:
    """Whatever the search_path of the caller is when a function runs; months lie beside the other tables."""
    with psycopg.connect(empty, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA film")
    dsn = make_conninfo(empty, options="-c search_path=film,public")
    bootstrap(dsn)
    with psycopg.connect(dsn, autocommit=True) as connection:
        ids = over(connection, 5)
        by_months(connection)
        moved = "SELECT moved FROM film.qwf_history_move(NULL, now() - interval '1 day')"
        connection.execute("SET search_path = public")
        assert connection.execute(moved).fetchone() == (5,)
        connection.execute("SET search_path = film, public")
        assert places(connection) == ([], ids)
        lies = (
            "SELECT relnamespace::regnamespace::text FROM pg_class WHERE relname ~ '^ingest_jobs_history_2'"
        )
        assert {schema for (schema,) in connection.execute(lies)} == {"film"}
        assert list(IngestJobRepository(connection).retry_many(ids[:2], actor="ann")) == ids[:2]
        by_months(connection, False)
        settle(connection)
        assert places(connection) == (ids, [])


@each_version
def test_a_column_is_added_to_both_and_dropped_from_both(empty: str) -> None:
    """By what revisions use for it; the view has it as well, and what was moved before has its default."""
    bootstrap(empty)
    with psycopg.connect(empty, autocommit=True) as connection:
        over(connection, 2)
        by_months(connection)
        settle(connection)
        connection.execute(history.alter_both("ADD COLUMN mark text DEFAULT 'none'", hides=False))
        over(connection, 2)
        connection.execute("UPDATE ingest_jobs SET mark = 'new'")
        by_months(connection, False)
        by_months(connection)
        settle(connection)
        marks = connection.execute("SELECT mark FROM ingest_jobs_and_history ORDER BY id").fetchall()
        assert marks == [("none",)] * 2 + [("new",)] * 2
        assert len(places(connection)[1]) == 4
        connection.execute(history.alter_both("DROP COLUMN mark", hides=True))
        migrations.check(empty, chain=engine_chain())
        assert len(rows(connection)) == 4


def test_months_are_no_tables_of_the_app() -> None:
    """An `env.py` of one's own passes by what the database makes and drops."""
    assert not include_name("ingest_jobs_history_2026_10", "table", {"schema_name": None})
    assert include_name("ingest_jobs_history_of_mine", "table", {"schema_name": None})
