"""The engine chain goes up and down without a trace, and ends where the models are."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from support.rows.revisions import REVISIONS
from support.rows.schemas import catalog, leftovers, query, sa_engine
from support.servers.postgres_versions import each_version, newest_version, on_each_version

from queue_workflows.db import bootstrap, downgrade, migrations
from queue_workflows.db.migrations.chain.chains import engine_chain
from queue_workflows.db.migrations.chain.revisions import load_script
from queue_workflows.db.migrations.chain.visible_tables import LEFT_BEHIND
from queue_workflows.errors import SchemaDrift
from queue_workflows.models import Base

ENGINE = engine_chain()


@each_version
def test_base_to_head_and_back_leaves_nothing(empty: str) -> None:
    """A downgrade to base takes away every table, sequence, function, type, trigger and the version table."""
    before = leftovers(empty)
    bootstrap(empty)
    first = catalog(empty)
    assert ("table", "ingest_jobs") in first
    downgrade(empty, chain="engine", revision="base")
    assert leftovers(empty) == before
    bootstrap(empty)
    assert catalog(empty) == first


@pytest.mark.slow
@each_version
def test_each_step_is_undone_by_its_downgrade(empty: str) -> None:
    """Revision by revision up and down, then up again: the schema and its rows are what they were."""
    there = [seen(empty)]
    for revision in REVISIONS:
        migrations.upgrade(empty, chains=[ENGINE], revision=revision)
        there.append(seen(empty))
        assert there[-1] != there[-2], revision
    for number, revision in reversed(list(enumerate(REVISIONS))):
        downgrade(empty, chain="engine", revision=REVISIONS[number - 1] if number else "base")
        assert seen(empty) == there[number], revision
    bootstrap(empty)
    assert seen(empty) == there[-1]


def test_hosts_have_a_cap_until_somebody_sets_another(empty: str) -> None:
    """A fresh database has the default; what an operator has set survives the migration and its downgrade."""
    bootstrap(empty)
    assert limits(empty) == [("host:*", 4, "qwf")]
    query(empty, "UPDATE concurrency_limits SET updated_by = 'ann'")
    downgrade(empty, chain="engine", revision="0024")
    assert limits(empty) == [("host:*", 4, "ann")]
    query(empty, "UPDATE concurrency_limits SET max_slots = 9")
    bootstrap(empty)
    assert limits(empty) == [("host:*", 9, "ann")]


def seen(dsn: str) -> tuple[dict[tuple[str, str], str], list[tuple[str, int, str]]]:
    """The schema, and the caps that are set, if there is a table of them."""
    there = catalog(dsn)
    return there, limits(dsn) if ("table", "concurrency_limits") in there else []


def limits(dsn: str) -> list[tuple[str, int, str]]:
    """The caps that are set."""
    return query(dsn, "SELECT key_pattern, max_slots, updated_by FROM concurrency_limits ORDER BY 1")


def test_bootstrap_reports_what_it_did_and_then_nothing(empty: str) -> None:
    """The call that migrates gets the list of revisions, the next one an empty list."""
    assert [step.revision for step in bootstrap(empty)] == REVISIONS
    assert bootstrap(empty) == []


@newest_version
def test_check_finds_no_difference(empty: str) -> None:
    """What the migrations make is what the models say."""
    bootstrap(empty)
    assert migrations.check(empty, chain=ENGINE).status == "current"


@each_version
def test_migrated_schema_is_the_models_schema_in_every_detail(empty: str, second: str) -> None:
    """Defaults, checks, predicates and storage settings too, which autogenerate does not compare.

    But for columns that stay for the version before alone, and for the view, which no model makes.
    """
    bootstrap(empty)
    for table, column in LEFT_BEHIND:
        query(empty, f"ALTER TABLE {table} DROP COLUMN {column}")
    with sa_engine(second).begin() as connection:
        Base.metadata.create_all(connection)

    def comparable(dsn: str) -> dict[tuple[str, str], str]:
        return {
            (kind, name): text
            for (kind, name), text in catalog(dsn).items()
            if kind not in ("function", "trigger", "view") and not name.startswith("queue_schema_version")
        }

    assert comparable(empty) == comparable(second)


def test_the_view_over_jobs_and_their_history_has_every_column(empty: str) -> None:
    """And no other; where rows come from is asked in the tests of history."""
    bootstrap(empty)
    asked = (
        "SELECT attname FROM pg_attribute WHERE attrelid = '{}'::regclass AND attnum > 0 AND NOT attisdropped"
    )
    found = [query(empty, asked.format(name)) for name in ("ingest_jobs_and_history", "ingest_jobs")]
    assert sorted(found[0]) == sorted(found[1])
    assert {name for (name,) in found[0]} == {
        each.name for each in Base.metadata.tables["ingest_jobs"].columns
    }


def test_a_column_that_no_code_uses_stays_for_the_version_before(empty: str) -> None:
    """Its statements list the column; the models have it no more, and the check has nothing to say of it."""
    bootstrap(empty)
    for table, column in LEFT_BEHIND:
        assert column not in Base.metadata.tables[table].columns
        query(empty, f"SELECT {column} FROM {table}")
    assert migrations.check(empty, chain=ENGINE).status == "current"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ("ALTER TABLE ingest_jobs DROP COLUMN limit_key CASCADE", "ingest_jobs.limit_key is in the models"),
        ("ALTER TABLE workflow_runs ADD COLUMN own text", "workflow_runs.own is in the database"),
        ("DROP TABLE schedules", "table schedules is in the models"),
        ("DROP INDEX ix_ingest_jobs_claim", "index ix_ingest_jobs_claim on ingest_jobs is in the models"),
        (
            "DROP VIEW ingest_jobs_and_history; ALTER TABLE ingest_jobs ALTER queue TYPE varchar(9)",
            "ingest_jobs.queue: type is VARCHAR(9)",
        ),
        ("ALTER TABLE ingest_jobs ALTER COLUMN queue DROP NOT NULL", "ingest_jobs.queue: nullable is True"),
        ("ALTER TABLE ingest_jobs ALTER COLUMN priority SET DEFAULT 6", "ingest_jobs.priority: default is 6"),
    ],
)
def test_check_names_drift(empty: str, damage: str, named: str) -> None:
    """A schema that was altered by hand is refused, and the difference is named."""
    bootstrap(empty)
    query(empty, damage)
    with pytest.raises(SchemaDrift) as caught:
        migrations.check(empty, chain=ENGINE)
    assert any(named in line for line in caught.value.differences), caught.value.differences


@pytest.mark.slow
@on_each_version(
    "change",
    [
        "ALTER TABLE ingest_jobs SET (fillfactor = 77)",
        "ALTER TABLE ingest_jobs ALTER COLUMN status SET DEFAULT 'running'",
        "ALTER TABLE ingest_jobs DROP CONSTRAINT ck_ingest_jobs_status",
        "DROP INDEX ix_ingest_jobs_due; CREATE INDEX ix_ingest_jobs_due ON ingest_jobs (run_at)",
        "ALTER SEQUENCE ingest_jobs_position_seq INCREMENT 7",
        "ALTER TABLE ingest_jobs DISABLE TRIGGER qwf_wake_inserted",
        "CREATE OR REPLACE FUNCTION qwf_wake_class() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 1'",
        "CREATE TYPE mood AS ENUM ('fine')",
        "CREATE VIEW peek AS SELECT 1 AS one",
    ],
)
def test_the_catalog_sees_each_kind_of_change(migrated: str, change: str) -> None:
    """The comparison that the tests above rest on is not blind."""
    before = catalog(migrated)
    engine = sa_engine(migrated)
    with engine.connect() as connection:
        connection.execute(sa.text(change))
        connection.commit()
    assert catalog(migrated) != before


def test_ids_are_numbered_and_the_first_nine_keep_their_subjects() -> None:
    """`ingest needs >= 8` must go on meaning the multi-tenant revision."""
    assert [f"{n:04d}" for n in range(1, len(REVISIONS) + 1)] == REVISIONS
    subjects = {line.revision: line.subject.lower() for line in migrations.history([ENGINE])}
    words = [
        "runs",
        "node jobs",
        "answers",
        "outbox",
        "heartbeats",
        "leases",
        "ingest jobs",
        "multi-tenant",
        "dead",
    ]
    for revision, word in zip(REVISIONS, words, strict=False):
        assert word in subjects[revision], (revision, subjects[revision])


def test_every_revision_has_a_real_downgrade() -> None:
    """No revision is a one-way street or an empty shell."""
    for revision in load_script(ENGINE).walk_revisions():
        assert revision.module.upgrade.__code__.co_names, revision.revision
        assert revision.module.downgrade.__code__.co_names, revision.revision
