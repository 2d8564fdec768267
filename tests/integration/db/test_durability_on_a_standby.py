"""A producer chooses what its commit waits for, by a real synchronous standby; `qwf doctor` says what is."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from support.processes.workers import until
from support.servers.cluster import Cluster

from queue_workflows import (
    ConfigurationError,
    NewIngestJob,
    PayloadError,
    aenqueue_ingest_job,
    aenqueue_many,
    enqueue_ingest_job,
    enqueue_many,
    ingest_task,
    start_run,
)
from queue_workflows.cli.main import run
from queue_workflows.db.doctor.examination import examine
from queue_workflows.db.doctor.findings import Check, Status
from queue_workflows.db.migrations import bootstrap
from queue_workflows.testing import configured_database

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
GREETING = {"name": "greeting", "nodes": [{"id": "greet", "module": "greet"}]}
SYNCHRONOUS = "SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')"
# What a backend waits for whose commit is on disk here, and has yet to be where it asked.
WAITS = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND datname = current_database()"
JOBS = "SELECT count(*) FROM ingest_jobs"


class Pair:
    """A primary with a synchronous standby, which can be kept from applying, or from being there."""

    def __init__(self, primary: Cluster, standby: Cluster) -> None:
        self.primary, self.standby = primary, standby
        self.dsn = primary.dsn()

    def one(self, sql: str, on: Cluster | None = None) -> Any:
        with (on or self.primary).connect() as admin:
            row = admin.execute(sql).fetchone()
            assert row is not None
            return row[0]

    def names(self, names: str) -> None:
        """Set which standbys are waited for, and wait until that holds."""
        with self.primary.connect() as admin:
            admin.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
            admin.execute("SELECT pg_reload_conf()")
        until(lambda: bool(self.one(SYNCHRONOUS)) is bool(names))

    @contextmanager
    def unapplied(self) -> Iterator[None]:
        """The standby writes what comes, and applies none of it."""
        self.one("SELECT pg_wal_replay_pause()", self.standby)
        until(lambda: self.one("SELECT pg_get_wal_replay_pause_state()", self.standby) == "paused")
        try:
            yield
        finally:
            self.one("SELECT pg_wal_replay_resume()", self.standby)

    def answered_once_applied(self, act: Callable[[], object]) -> None:
        """Have it done while nothing is applied: its commit waits, and ends when it is."""
        with self.unapplied():
            thread = threading.Thread(target=act)
            thread.start()
            until(lambda: self.one(WAITS) == 1)
            assert thread.is_alive()
        thread.join(300)
        assert not thread.is_alive()
        assert self.one(WAITS) == 0


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with Cluster.primary() as primary:
        bootstrap(primary.dsn())
        with Cluster.standby_of(primary) as standby:
            pair = Pair(primary, standby)
            pair.names("*")
            yield pair


@pytest.fixture(autouse=True)
def configured(pair: Pair) -> Iterator[None]:
    with configured_database(pair.dsn):
        yield


@ingest_task("durable", queue="fetch")
def durable(reason: str | None) -> None:
    """A task whose jobs are enqueued and never run."""


def test_a_commit_is_answered_once_the_standby_has_applied_it(pair: Pair) -> None:
    """By each verb, in a transaction of its own: only `remote_apply` waits for that."""
    with pair.unapplied():
        enqueue_ingest_job("durable", queue="fetch")
        enqueue_ingest_job("durable", queue="fetch", durability="on")
    pair.answered_once_applied(
        lambda: enqueue_ingest_job("durable", queue="fetch", durability="remote_apply")
    )
    pair.answered_once_applied(lambda: durable.enqueue(durability="remote_apply"))
    pair.answered_once_applied(lambda: durable.enqueue_many([{}, None], durability="remote_apply"))
    many = [NewIngestJob(task_name="durable", queue="fetch")] * 3
    pair.answered_once_applied(lambda: enqueue_many(many, durability="remote_apply"))
    pair.answered_once_applied(lambda: start_run(GREETING, durability="remote_apply"))


def test_awaited_verbs_do_so_too(pair: Pair) -> None:
    """On an asynchronous connection of the caller's, in its transaction."""

    async def enqueue() -> None:
        async with await psycopg.AsyncConnection.connect(pair.dsn) as connection:
            await aenqueue_ingest_job("durable", queue="fetch", conn=connection, durability="remote_apply")
            await aenqueue_many([], conn=connection)

    pair.answered_once_applied(lambda: asyncio.run(enqueue()))


def test_commands_do_so_too(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    """`qwf queue enqueue` and `qwf run start`; another word is a usage error."""
    one = ["queue", "enqueue", "durable", "--queue", "fetch", "--durability"]
    pair.answered_once_applied(lambda: run(["--db", pair.dsn, *one, "remote_apply", "--count", "3"]))
    with pair.unapplied():
        assert run(["--db", pair.dsn, *one, "local"]) == 0
    assert run(["--db", pair.dsn, *one, "always"]) == 2


def test_a_transaction_of_the_callers_is_set_only_when_asked(pair: Pair) -> None:
    """For all of it, to its end; what commits by itself has no transaction, and nothing is written there."""
    show = "SHOW synchronous_commit"
    with psycopg.connect(pair.dsn) as connection:
        enqueue_ingest_job("durable", queue="fetch", conn=connection)
        assert connection.execute(show).fetchone() == ("on",)
        enqueue_ingest_job("durable", queue="fetch", conn=connection, durability="local")
        assert connection.execute(show).fetchone() == ("local",)
        connection.commit()
        assert connection.execute(show).fetchone() == ("on",)
    before = pair.one(JOBS)
    with psycopg.connect(pair.dsn, autocommit=True) as connection:
        with pytest.raises(ConfigurationError, match="commits each statement"):
            enqueue_ingest_job("durable", queue="fetch", conn=connection, durability="remote_apply")
        with connection.transaction():
            enqueue_ingest_job("durable", queue="fetch", conn=connection, durability="remote_apply")
        with pytest.raises(PayloadError, match="durability 'always' is none of off, local, remote_write, on"):
            enqueue_ingest_job("durable", queue="fetch", conn=connection, durability="always")
    assert pair.one(JOBS) == before + 1


def test_without_the_standby_local_is_answered_and_the_rest_waits(pair: Pair) -> None:
    """Which is what each of them means."""
    pair.standby.stop()
    try:
        until(lambda: pair.one("SELECT count(*) FROM pg_stat_replication") == 0)
        enqueue_ingest_job("durable", queue="fetch", durability="local")
        thread = threading.Thread(
            target=lambda: enqueue_ingest_job("durable", queue="fetch", durability="on")
        )
        thread.start()
        until(lambda: pair.one(WAITS) == 1)
        found = standby_of(pair.dsn)
        assert (found.status, found.found) == (
            Status.WARN,
            "synchronous_standby_names is '*', and no such standby is connected",
        )
        assert found.advice is not None
        assert found.advice.startswith("each commit waits until one is")
    finally:
        pair.standby.start()
    thread.join(300)
    assert not thread.is_alive()


def standby_of(dsn: str) -> Check:
    (check,) = [check for check in examine(dsn).checks if check.name == "standby"]
    return check


def test_the_doctor_says_what_a_failover_would_lose(pair: Pair) -> None:
    """With a synchronous standby nothing, unless nobody waits for it; with another the last jobs."""
    until(lambda: pair.one(SYNCHRONOUS) == 1)
    ours = standby_of(pair.dsn)
    assert (ours.status, ours.found) == (Status.SKIP, "1, of which this role may not see more than that")
    with pair.primary.connect() as admin:
        admin.execute("GRANT pg_monitor TO app")
    found = standby_of(pair.dsn)
    assert (found.status, found.found) == (
        Status.OK,
        "synchronous (walreceiver): a failover to it loses no acknowledged job",
    )
    found = standby_of(pair.primary.dsn(options="-c synchronous_commit=local"))
    assert (found.status, found.found) == (
        Status.WARN,
        "a synchronous standby, not waited for: synchronous_commit is local",
    )
    pair.names("")
    found = standby_of(pair.dsn)
    assert (found.status, found.found) == (
        Status.WARN,
        "1, none of them synchronous: a failover loses the last acknowledged jobs",
    )
    with pair.primary.connect() as admin:
        admin.execute("ALTER SYSTEM SET synchronous_standby_names = 'elsewhere'")
        admin.execute("SELECT pg_reload_conf()")
    until(lambda: pair.one("SHOW synchronous_standby_names") == "elsewhere")
    found = standby_of(pair.dsn)
    assert (found.status, found.found) == (
        Status.WARN,
        "synchronous_standby_names is 'elsewhere', and no such standby is connected",
    )
    pair.names("")
    with Cluster.primary() as alone:
        found = standby_of(alone.dsn())
    assert (found.status, found.found) == (
        Status.OK,
        "none: what was acknowledged survives a crash of this server, and not its loss",
    )
