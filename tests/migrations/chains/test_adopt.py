"""Taking over a database with the hand-made ledger of the older SQL chain."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest
from support.rows.older_chain import LEDGER, by_hand
from support.rows.schemas import as_user, blocked, catalog, holding, leftovers, query, qwf, sa_engine
from support.servers.postgres_versions import newest_version, on_each_version

from queue_workflows.db import bootstrap, migrations, wait_for_schema
from queue_workflows.db.migrations.chain.chains import engine_chain
from queue_workflows.db.migrations.session import SessionTerms
from queue_workflows.errors import (
    AccessRefused,
    MigrationBlocked,
    MigrationRefused,
    SchemaBehind,
    SchemaDrift,
    SchemaError,
)

pytestmark = pytest.mark.slow

ENGINE = [engine_chain()]


@on_each_version("version", [9, 8, 6, 1])
def test_a_true_ledger_is_adopted_and_the_chain_goes_on(
    empty: str, at_head: dict[tuple[str, str], str], version: int
) -> None:
    """The ledger becomes a keepsake, and the upgrade ends at the very schema of a fresh database."""
    by_hand(empty, version)
    done = migrations.adopt(empty)
    assert (done.revision, done.already, done.dry_run) == (f"{version:04d}", False, False)
    assert query(empty, "SELECT version_num FROM queue_schema_version") == [(f"{version:04d}",)]
    assert query(empty, "SELECT max(version) FROM queue_schema_version_legacy") == [(version,)]
    bootstrap(empty)
    ours = {key: text for key, text in catalog(empty).items() if "queue_schema_version" not in key[1]}
    fresh = {key: text for key, text in at_head.items() if "queue_schema_version" not in key[1]}
    assert ours == fresh
    assert migrations.check(empty, chain=ENGINE[0]).status == "current"


def test_upgrade_refuses_a_ledger_with_that_advice(empty: str) -> None:
    """Upgrading past a ledger would create tables that are there."""
    by_hand(empty, 8)
    before = catalog(empty)
    for attempt in (bootstrap, lambda dsn: migrations.downgrade(dsn, chain="engine", revision="base")):
        with pytest.raises(MigrationRefused, match="qwf db adopt"):
            attempt(empty)
    assert catalog(empty) == before
    (state,) = migrations.current(empty, chains=ENGINE)
    assert (state.status, state.shown) == ("hand-made", "version 8 of a hand-made ledger")
    with pytest.raises(SchemaBehind, match="qwf db adopt"):
        wait_for_schema(8, 0, dsn=empty)


def test_a_second_adoption_says_it_is_done(empty: str) -> None:
    """Adopting twice is no error and changes nothing."""
    by_hand(empty, 8)
    migrations.adopt(empty)
    before = catalog(empty)
    again = migrations.adopt(empty)
    assert (again.already, again.revision) == (True, "0008")
    assert catalog(empty) == before


@newest_version
def test_a_dry_run_changes_nothing(empty: str) -> None:
    """It compares all the same, and says what it would do."""
    by_hand(empty, 8)
    before = leftovers(empty), catalog(empty)
    done = migrations.adopt(empty, dry_run=True)
    assert (done.revision, done.dry_run) == ("0008", True)
    assert (leftovers(empty), catalog(empty)) == before
    run = qwf("db", "adopt", "--dry-run", QWF_DB_URL=empty)
    assert run.returncode == 0, run.stderr
    assert "would be renamed to queue_schema_version_legacy" in run.stdout


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ("ALTER TABLE ingest_jobs DROP COLUMN limit_key", "column ingest_jobs.limit_key is missing"),
        (
            "ALTER TABLE ingest_jobs ALTER queue TYPE varchar(9)",
            "column ingest_jobs.queue is `character varying(9)",
        ),
        (
            "ALTER TABLE ingest_jobs ADD mine text NOT NULL",
            "column ingest_jobs.mine (`text not null`) is not expected",
        ),
        ("DROP INDEX uq_ingest_jobs_dedupe", "index ingest_jobs.uq_ingest_jobs_dedupe is missing"),
        ("DROP TABLE worker_heartbeats", "table worker_heartbeats is missing"),
        ("DROP TRIGGER qwf_wake_inserted ON ingest_jobs", "trigger ingest_jobs.qwf_wake_inserted is missing"),
        (
            "ALTER TABLE ingest_jobs DROP CONSTRAINT ck_ingest_jobs_status",
            "constraint ingest_jobs.ck_ingest_jobs_status is missing",
        ),
    ],
)
def test_a_ledger_that_lies_is_refused(empty: str, damage: str, named: str) -> None:
    """What the claimed revision makes must really be there; the refusal lists what differs."""
    by_hand(empty, 8)
    query(empty, damage)
    before = leftovers(empty), catalog(empty)
    with pytest.raises(SchemaDrift) as caught:
        migrations.adopt(empty)
    assert any(line.startswith(named) for line in caught.value.differences), caught.value.differences
    assert (leftovers(empty), catalog(empty)) == before


def test_a_ledger_ahead_of_its_tables_is_refused(empty: str) -> None:
    """The tables of revision 5 under a ledger that says 8."""
    by_hand(empty, 5, rows=list(range(1, 9)))
    with pytest.raises(SchemaDrift) as caught:
        migrations.adopt(empty)
    assert "table ingest_jobs is missing" in caught.value.differences


def test_more_than_we_make_does_no_harm(empty: str) -> None:
    """An index of the operator's, tables of the host's."""
    by_hand(empty, 8)
    query(empty, "CREATE INDEX mine ON ingest_jobs (task_name); CREATE TABLE films (id integer)")
    assert migrations.adopt(empty).revision == "0008"


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([1, 2, 5, 8], "no row for 3, 4, 6, 7"),
        ([], "is empty"),
        (list(range(1, 13)), "has version 12"),
        ([0, 1], "0"),
    ],
)
def test_a_ledger_with_holes_claims_nothing(empty: str, rows: list[int], said: str) -> None:
    """Gaps, no rows at all, or numbers that the older chain never had."""
    by_hand(empty, 8, rows=rows)
    with pytest.raises(MigrationRefused, match=said):
        migrations.adopt(empty)


def test_without_any_ledger_there_is_nothing_to_adopt(empty: str) -> None:
    """An empty database wants an upgrade."""
    with pytest.raises(MigrationRefused, match="qwf db upgrade"):
        migrations.adopt(empty)


def test_a_strange_table_of_that_name_is_not_taken_for_a_ledger(empty: str) -> None:
    """Neither ours nor the older chain's."""
    query(empty, "CREATE TABLE queue_schema_version (colour text)")
    for attempt in (bootstrap, migrations.adopt):
        with pytest.raises(MigrationRefused, match="no version table of ours"):
            attempt(empty)


def test_the_missing_right_is_named(empty: str, limited_role: str) -> None:
    """The comparison needs a scratch schema, and so CREATE on the database."""
    query(empty, f"GRANT ALL ON SCHEMA public TO {limited_role}")
    dsn = as_user(empty, limited_role)
    by_hand(dsn, 8)
    with pytest.raises(AccessRefused, match=f"{limited_role} lacks the CREATE right on database"):
        migrations.adopt(dsn)
    ((database,),) = query(empty, "SELECT current_database()")
    query(empty, f"GRANT CREATE ON DATABASE {database} TO {limited_role}")
    assert migrations.adopt(dsn).revision == "0008"


def test_an_older_migrator_at_work_is_waited_for_and_then_named(empty: str) -> None:
    """No one may write to the ledger while it is judged."""
    by_hand(empty, 8)
    with holding(empty, "INSERT INTO queue_schema_version VALUES (9, 'late')") as holder:
        with pytest.raises(MigrationBlocked, match=f"pid {holder.info.backend_pid}"):
            migrations.adopt(empty, terms=SessionTerms(lock_timeout_s=0.3))
        assert blocked(empty, holder.info.backend_pid) == []
    assert migrations.adopt(empty).revision == "0008"


def test_adoption_works_on_an_engine_and_in_another_schema(empty: str) -> None:
    """search_path decides where the engine lives; the comparison follows it."""
    query(empty, "CREATE SCHEMA queue")
    there = psycopg.conninfo.make_conninfo(empty, options="-c search_path=queue,public")
    by_hand(there, 8)
    assert migrations.adopt(sa_engine(there)).revision == "0008"
    bootstrap(there)
    assert migrations.check(there, chain=ENGINE[0]).status == "current"
    assert catalog(empty, "public") == {}
    assert issubclass(SchemaDrift, SchemaError)


@pytest.mark.parametrize(
    ("version", "damage"),
    [
        pytest.param(
            8, "ALTER TABLE ingest_jobs DROP COLUMN limit_key, DROP COLUMN priority CASCADE", id="columns"
        ),
        pytest.param(
            5,
            "ALTER TABLE workflow_input_submissions ALTER id DROP IDENTITY, ALTER status DROP DEFAULT,"
            " ALTER status DROP NOT NULL, ALTER submitted_by TYPE varchar(80), ALTER error SET DEFAULT '';"
            " CREATE SEQUENCE answers_seq OWNED BY workflow_input_submissions.id;"
            " ALTER TABLE workflow_input_submissions ALTER id SET DEFAULT nextval('answers_seq')",
            id="serial and defaults",
        ),
        pytest.param(
            9,
            "ALTER TABLE workflow_runs RENAME CONSTRAINT pk_workflow_runs TO workflow_runs_pkey;"
            "ALTER TABLE worker_heartbeats RENAME CONSTRAINT ck_worker_heartbeats_state TO"
            " worker_heartbeats_state_check;"
            "ALTER INDEX ix_worker_heartbeats_host RENAME TO worker_heartbeats_host_label_queue_idx",
            id="other names",
        ),
        pytest.param(
            9,
            "ALTER TABLE ingest_jobs ADD tenant text NOT NULL DEFAULT 'a', ADD \"order\" bigint,"
            ' ADD CONSTRAINT mine CHECK (tenant <> \'\'), ADD CONSTRAINT "check" CHECK ("order" > 0);'
            "CREATE FUNCTION mine() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';"
            "CREATE TRIGGER mine BEFORE INSERT ON ingest_jobs FOR EACH ROW EXECUTE FUNCTION mine()",
            id="own columns",
        ),
        pytest.param(9, "DROP TABLE worker_heartbeats, workflow_input_submissions", id="tables"),
        pytest.param(
            8,
            "DROP FUNCTION qwf_wake_inserted CASCADE; DROP INDEX uq_ingest_jobs_dedupe;"
            "ALTER TABLE ingest_jobs DROP CONSTRAINT ck_ingest_jobs_status, SET (fillfactor = 90)",
            id="functions and indexes",
        ),
    ],
)
def test_what_cannot_be_adopted_is_told_with_what_would_mend_it(
    empty: str, version: int, damage: str
) -> None:
    """Run as they are printed, the statements make of it what is adopted, and what a fresh chain ends at."""
    by_hand(empty, version)
    query(empty, damage)
    run = qwf("db", "adopt", "--dry-run", QWF_DB_URL=empty)
    assert (run.returncode, "mend.sql" in run.stderr) == (79, True), run.stderr
    query(empty, run.stdout)
    assert migrations.adopt(empty).revision == f"{version:04d}"
    bootstrap(empty)
    assert migrations.check(empty, chain=ENGINE[0]).status == "current"


def test_the_order_of_columns_is_nobodys_business(empty: str) -> None:
    """A column that came later stands last."""
    by_hand(empty, 5)
    query(
        empty,
        "ALTER TABLE worker_heartbeats RENAME pid TO old; ALTER TABLE worker_heartbeats ADD pid integer;"
        "UPDATE worker_heartbeats SET pid = old; ALTER TABLE worker_heartbeats ALTER pid SET NOT NULL;"
        "ALTER TABLE worker_heartbeats DROP old",
    )
    assert migrations.adopt(empty).revision == "0005"


def test_what_a_column_of_its_own_held_is_kept_beside(empty: str) -> None:
    """The values go into a table of their own, by the key of their row."""
    by_hand(empty, 8)
    query(empty, "ALTER TABLE ingest_jobs ADD tenant text NOT NULL DEFAULT 'a'")
    with pytest.raises(SchemaDrift) as caught:
        migrations.adopt(empty)
    assert caught.value.statements == [
        "CREATE TABLE ingest_jobs_tenant AS SELECT id, tenant FROM ingest_jobs",
        "ALTER TABLE ingest_jobs DROP COLUMN tenant",
    ]


def test_the_tables_of_the_chain_itself_are_put_aside_and_their_jobs_carried_over(empty: str) -> None:
    """Its keys are texts, so nothing is mended: ours are made beside them, and get what is queued there."""
    query(
        empty,
        f"{LEDGER}; INSERT INTO queue_schema_version (version) SELECT generate_series(1, 9);"
        "CREATE TABLE workflow_runs (id text PRIMARY KEY, status text NOT NULL);"
        "CREATE TABLE ingest_jobs (id text PRIMARY KEY, task_name text NOT NULL, queue text NOT NULL,"
        " reason text NOT NULL DEFAULT 'tick', args jsonb, priority smallint NOT NULL DEFAULT 100,"
        " status text NOT NULL, created_at timestamptz NOT NULL DEFAULT now());"
        "INSERT INTO ingest_jobs VALUES ('a1', 'load', 'fetch', 'boot', '{\"n\": 1}', 100, 'queued'),"
        " ('a2', 'load', 'fetch', 'boot', NULL, 10, 'queued'),"
        " ('a3', 'load', 'fetch', 'boot', NULL, 1, 'failed')",
    )
    run = qwf("db", "adopt", "--dry-run", QWF_DB_URL=empty)
    assert (run.returncode, "keys of text" in run.stderr) == (79, True), run.stderr
    assert run.stdout.splitlines() == [
        "CREATE SCHEMA before_qwf;",
        "ALTER TABLE ingest_jobs SET SCHEMA before_qwf;",
        "ALTER TABLE workflow_runs SET SCHEMA before_qwf;",
        "ALTER TABLE queue_schema_version SET SCHEMA before_qwf;",
    ]
    query(empty, run.stdout)
    bootstrap(empty)
    assert migrations.check(empty, chain=ENGINE[0]).status == "current"
    page = (Path(__file__).parents[3] / "docs/deploy/from-the-sql-chain.md").read_text(encoding="utf-8")
    (carried,) = re.findall(r"```sql\n(INSERT .*?)```", page, re.DOTALL)
    query(empty, carried)
    assert query(empty, "SELECT task_name, reason, args, priority FROM ingest_jobs ORDER BY position") == [
        ("load", "boot", {}, 7),
        ("load", "boot", {"n": 1}, 5),
    ]
