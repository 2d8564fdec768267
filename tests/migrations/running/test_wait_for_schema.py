"""Processes without DDL rights wait until somebody else has migrated."""

from __future__ import annotations

import threading

import pytest
import sqlalchemy as sa
import sqlalchemy.orm
from support.rows.revisions import HEAD
from support.rows.schemas import as_user, query, sa_engine, start_qwf, until

from queue_workflows.db import bootstrap, downgrade, migrations, wait_for_schema
from queue_workflows.db.migrations.chain.chains import engine_chain
from queue_workflows.errors import (
    AccessRefused,
    DatabaseUnreachable,
    MigrationRefused,
    SchemaAhead,
    SchemaBehind,
    UnknownRevision,
)

ENGINE = [engine_chain()]


class Clock:
    """Time that passes only by sleeping; `on_sleep` is what others do meanwhile."""

    def __init__(self, on_sleep: dict[int, object] | None = None) -> None:
        self.time, self.naps, self.on_sleep = 100.0, 0, on_sleep or {}

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds
        self.naps += 1
        action = self.on_sleep.get(self.naps)
        if callable(action):
            action()


def test_it_returns_at_once_when_the_schema_is_far_enough(migrated: str) -> None:
    """A number, an id or its meaning as an int: at least that is enough."""
    clock = Clock()
    for minimum in (8, "0008", int(HEAD)):
        assert wait_for_schema(minimum, 0, dsn=migrated, sleep=clock.sleep, now=clock.now) == HEAD
    assert wait_for_schema(1, 0, engine=sa_engine(migrated)) == HEAD
    assert clock.naps == 0


def test_it_polls_until_somebody_has_migrated(empty: str) -> None:
    """Nothing, then too little, then enough: it goes on from there, without anybody telling it."""
    steps = {
        2: lambda: migrations.upgrade(empty, chains=ENGINE, revision="0005"),
        4: lambda: migrations.upgrade(empty, chains=ENGINE, revision="0008"),
    }
    clock = Clock(steps)
    assert wait_for_schema(8, 60, dsn=empty, sleep=clock.sleep, now=clock.now) == "0008"
    assert clock.naps == 4


def test_a_real_wait_ends_with_a_real_upgrade(empty: str) -> None:
    """The waiting process sees the upgrade that another one commits."""
    thread = threading.Thread(target=bootstrap, args=(empty,))
    thread.start()
    assert wait_for_schema("0008", 30, dsn=empty) >= "0008"
    thread.join(150)


@pytest.mark.parametrize(("reached", "shown"), [(None, "at nothing"), ("0005", "at 0005")])
def test_a_timeout_says_where_the_schema_is(empty: str, reached: str | None, shown: str) -> None:
    """Behind, half-migrated or absent: exit code 79, the two revisions, and what to run."""
    if reached:
        migrations.upgrade(empty, chains=ENGINE, revision=reached)
    clock = Clock()
    with pytest.raises(SchemaBehind, match=f"{shown}, this needs 0008.*qwf db upgrade") as caught:
        wait_for_schema(8, 5, dsn=empty, sleep=clock.sleep, now=clock.now)
    assert caught.value.exit_code == 79
    assert clock.time == pytest.approx(105)
    assert bootstrap(empty)[-1].revision == HEAD


def test_a_schema_ahead_is_refused_at_once(migrated: str) -> None:
    """No waiting makes this code newer; upgrade, downgrade and check refuse it too."""
    query(migrated, "UPDATE queue_schema_version SET version_num = '0099'")
    clock = Clock()
    with pytest.raises(SchemaAhead, match=f"at 0099, this code knows revisions up to {HEAD}") as caught:
        wait_for_schema(8, 60, dsn=migrated, sleep=clock.sleep, now=clock.now)
    assert (clock.naps, caught.value.exit_code) == (0, 79)
    for attempt in (
        lambda: bootstrap(migrated),
        lambda: downgrade(migrated, chain="engine", revision="base"),
        lambda: migrations.check(migrated, chain=ENGINE[0]),
    ):
        with pytest.raises(SchemaAhead):
            attempt()
    assert query(migrated, "SELECT version_num FROM queue_schema_version") == [("0099",)]


def test_a_sessions_connection_may_wait_inside_its_transaction(empty: str) -> None:
    """To look needs no transaction of its own: what the caller has begun is there afterwards, and no lock."""
    locks = (
        "SELECT count(*) FROM pg_locks WHERE relation = to_regclass('queue_schema_version')"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    clock = Clock({2: lambda: bootstrap(empty)})
    with sa.orm.Session(sa_engine(empty)) as session:
        session.execute(sa.text("CREATE TEMPORARY TABLE mine (n integer) ON COMMIT DROP"))
        session.execute(sa.text("INSERT INTO mine VALUES (7)"))
        conn = session.connection()
        assert wait_for_schema(8, 60, conn=conn, sleep=clock.sleep, now=clock.now) == HEAD
        assert session.scalar(sa.text("SELECT n FROM mine")) == 7
        assert query(empty, locks) == [(0,)]
    assert clock.naps == 2


def test_a_transaction_survives_a_right_that_is_missing(migrated: str, limited_role: str) -> None:
    """What the server refuses would end the caller's transaction, were it not asked in a savepoint."""
    with sa_engine(as_user(migrated, limited_role)).begin() as connection:
        number = connection.scalar(sa.text("SELECT pg_current_xact_id()"))
        with pytest.raises(AccessRefused):
            wait_for_schema(8, 0, conn=connection)
        assert connection.scalar(sa.text("SELECT pg_current_xact_id()")) == number


@pytest.mark.parametrize(("role", "called"), [({}, "qwf:wait@"), ({"role": "porter"}, "qwf:porter@")])
def test_who_waits_calls_itself_so(empty: str, role: dict[str, str], called: str) -> None:
    """An operator who reads pg_stat_activity sees a process that waits, not one that migrates."""
    seen: list[str] = []

    def look() -> None:
        sessions = "SELECT application_name FROM pg_stat_activity WHERE datname = current_database()"
        seen.extend(name for (name,) in query(empty, sessions) if name.startswith("qwf:"))

    clock = Clock({1: look})
    with pytest.raises(SchemaBehind):
        wait_for_schema(8, 1, dsn=empty, sleep=clock.sleep, now=clock.now, **role)
    assert [name.partition("@")[0] + "@" for name in seen] == [called]


@pytest.mark.slow
def test_a_worker_that_waits_calls_itself_a_worker(empty: str) -> None:
    """Also before there is anything to work on; it goes on to its work once somebody has migrated."""
    # Not the one of its first look, which is soon gone.
    sessions = (
        "SELECT application_name FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name LIKE 'qwf:%' AND backend_start < clock_timestamp() - interval '1 s'"
    )
    seen: list[tuple] = []
    process = start_qwf("worker", "--queue", "fetch", "--drain", "--schema-wait", "300", QWF_DB_URL=empty)
    try:
        until(lambda: seen.extend(query(empty, sessions)) or seen, "it has connected", seconds=90)
        bootstrap(empty)
        _out, err = process.communicate(timeout=150)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert {name.partition("@")[0] for (name,) in seen} == {"qwf:worker:fetch"}


def test_a_minimum_that_this_code_has_never_heard_of(migrated: str) -> None:
    """A typo would otherwise be waited for until the timeout."""
    for minimum in (99, "8", "nonsense"):
        with pytest.raises(UnknownRevision):
            wait_for_schema(minimum, 60, dsn=migrated)


def test_a_database_that_is_not_up_yet_is_waited_for(migrated: str) -> None:
    """Containers start in any order; when the time is over, it is the connection that is complained of."""
    clock = Clock()
    with pytest.raises(DatabaseUnreachable):
        wait_for_schema(8, 3, dsn="postgresql://nobody@127.0.0.1:1/none", sleep=clock.sleep, now=clock.now)
    assert clock.naps >= 2


def test_select_is_all_it_needs(migrated: str, limited_role: str) -> None:
    """An orchestrator without DDL rights waits with it, also for the grant; a missing one is named."""
    dsn = as_user(migrated, limited_role)
    clock = Clock()
    with pytest.raises(AccessRefused, match="GRANT SELECT ON queue_schema_version"):
        wait_for_schema(8, 5, dsn=dsn, sleep=clock.sleep, now=clock.now)

    def grant() -> None:
        query(migrated, f"GRANT SELECT ON queue_schema_version TO {limited_role}")

    # Grants are given after the first migration: the table has to be there.
    clock = Clock({3: grant})
    assert wait_for_schema(8, 5, dsn=dsn, sleep=clock.sleep, now=clock.now) == HEAD
    assert clock.naps == 3


def test_an_upgrade_without_ddl_rights_names_the_right(empty: str, limited_role: str) -> None:
    """First the schema, then the ownership; nothing is half done either time."""
    dsn = as_user(empty, limited_role)
    query(empty, "REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    with pytest.raises(
        AccessRefused, match=f"{limited_role} lacks the CREATE right on schema public"
    ) as caught:
        bootstrap(dsn)
    assert "GRANT CREATE ON SCHEMA public" in str(caught.value)
    assert caught.value.exit_code == 78
    migrations.upgrade(empty, chains=ENGINE, revision="0005")
    query(
        empty,
        f"GRANT CREATE ON SCHEMA public TO {limited_role};"
        f"GRANT SELECT ON queue_schema_version TO {limited_role}",
    )
    with pytest.raises(AccessRefused, match=r"does not own .*workflow_runs"):
        bootstrap(dsn)
    assert query(empty, "SELECT version_num FROM queue_schema_version") == [("0005",)]


def test_a_read_only_role_may_bootstrap_what_is_done(migrated: str, limited_role: str) -> None:
    """Where there is nothing to do, no right to do it is needed."""
    query(migrated, f"GRANT SELECT ON queue_schema_version TO {limited_role}")
    assert bootstrap(as_user(migrated, limited_role)) == []


def test_one_way_to_name_the_database(migrated: str) -> None:
    """Two at once would leave open which one was meant."""
    with pytest.raises(Exception, match="not several"):
        bootstrap(migrated, engine=sa_engine(migrated))
    assert issubclass(MigrationRefused, Exception)
