"""Under a real Patroni in synchronous mode no acknowledged job is lost, whatever becomes of the primary."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import psutil
import psycopg
import pytest
from support.fleet.failover import Producer, acknowledged, all_are_done, producing
from support.fleet.haproxy import HAProxy
from support.fleet.patroni import Member, PatroniCluster
from support.processes.supervised import supervisor_of
from support.processes.workers import patiently

from queue_workflows import db
from queue_workflows.db.doctor.examination import examine
from queue_workflows.db.doctor.findings import Status
from queue_workflows.testing import configured_database

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
# Two minutes of failovers belong to each run of all tests; the rest is run by `scripts/fleet`.
LONG = pytest.mark.skipif(
    os.environ.get("QWF_TEST_FLEET") != "long", reason="QWF_TEST_FLEET=long is not set: see scripts/fleet"
)
# A backend whose commit is on disk here, and has yet to be on a standby's.
WAITS = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND datname = current_database()"
# The promise is ten seconds once another is promoted; a machine with twenty others to serve has as many more.
WORKS_WITHIN_S = 60.0
# A worker whose leases lapse before another server is promoted ends, and begins anew, as in production.
WORKER = ("--worker", "fetch --concurrency 4", "--no-spare", "--no-janitor")


@pytest.fixture
def patroni() -> Iterator[PatroniCluster]:
    with PatroniCluster() as cluster:
        db.bootstrap(cluster.dsn)
        yield cluster


def receivers_of_all(standbys: list[Member]) -> list[psutil.Process]:
    """What receives on each of them; nothing as long as one follows nobody."""
    found = [member.receivers() for member in standbys]
    return [receiver for each in found for receiver in each] if all(found) else []


def lose_with_standbys_behind(patroni: PatroniCluster, primary: Member, producers: list[Producer]) -> None:
    """Kill the primary once its commits wait for a standby that hears nothing, or do not wait for it."""
    standbys = [member for member in patroni.members if member is not primary]
    # One that was the primary before may still be about to follow, while the other is synchronous already.
    receivers = patiently(lambda: receivers_of_all(standbys))
    for receiver in receivers:
        receiver.suspend()
    had = acknowledged(producers)
    with psycopg.connect(f"{patroni.dsn} target_session_attrs=read-write", autocommit=True) as eyes:
        patiently(lambda: acknowledged(producers) > had + 100 or eyes.execute(WAITS).fetchone() != (0,))
    primary.kill()
    for receiver in receivers:
        # So that what has come as far as this machine is not read: it might have been on its way only.
        receiver.terminate()
        receiver.resume()


def standby_says(dsn: str) -> tuple[Status, str]:
    """What `qwf doctor` has to say of a failover."""
    (check,) = [one for one in examine(dsn).checks if one.name == "standby"]
    return check.status, check.found


def goes_on(patroni: PatroniCluster, before: Member, producers: list[Producer]) -> None:
    """Another is the primary, and soon these are told of more jobs."""
    patiently(lambda: any(member.is_primary() for member in patroni.members if member is not before))
    promoted_at, had = time.monotonic(), acknowledged(producers)
    patiently(lambda: acknowledged(producers) > had + 100)
    assert time.monotonic() - promoted_at < WORKS_WITHIN_S


def test_a_switchover_and_the_loss_of_a_machine(patroni: PatroniCluster) -> None:
    """Producers and a worker find the new primary, by a DSN of all hosts and by the HAProxy of the docs.

    The machine is lost while its standbys are behind: in another mode they would lack what was acknowledged.
    """
    assert standby_says(patroni.dsn)[0] is Status.OK
    with configured_database(patroni.dsn), supervisor_of(patroni.dsn, *WORKER) as supervisor:
        with producing("switchover") as producers:
            patiently(lambda: acknowledged(producers) > 100)
            before = patroni.primary()
            patroni.switch_over()
            goes_on(patroni, before, producers)
        all_are_done(patroni.dsn, producers)
        assert supervisor.stop() == 0
    patroni.until_synchronous()
    with (
        HAProxy(patroni.members) as proxy,
        configured_database(proxy.dsn),
        supervisor_of(proxy.dsn, *WORKER) as supervisor,
    ):
        with producing("loss") as others:
            patiently(lambda: acknowledged(others) > 100)
            before = patroni.primary()
            lose_with_standbys_behind(patroni, before, others)
            goes_on(patroni, before, others)
        all_are_done(proxy.dsn, producers + others)
        assert supervisor.stop() == 0
    patroni.come_back(before)


@LONG
@pytest.mark.parametrize("what", ["its machine", "its Patroni"])
def test_a_leader_that_is_paused(patroni: PatroniCluster, what: str) -> None:
    """It comes back as a standby, and what it still takes for its own was acknowledged to nobody.

    Where only its Patroni is paused its Postgres goes on, and a DSN of all hosts would still find it; HAProxy
    asks Patroni.
    """
    with HAProxy(patroni.members) as proxy, supervisor_of(proxy.dsn, *WORKER):
        with producing("before", dsn=proxy.dsn) as producers:
            patiently(lambda: acknowledged(producers) > 100)
            before = patroni.primary()
            before.suspend(only_patroni=what == "its Patroni")
            try:
                with producing("after", dsn=proxy.dsn) as others:
                    goes_on(patroni, before, others)
            finally:
                before.resume()
        all_are_done(proxy.dsn, producers + others)
        patroni.until_standby(before)
        all_are_done(proxy.dsn, producers + others)


@LONG
def test_a_primary_that_is_cut_off(patroni: PatroniCluster) -> None:
    """From etcd and from its standbys, and not from its clients: it acknowledges nothing, and steps down."""
    with supervisor_of(patroni.dsn, *WORKER):
        with producing("cut", dsn=patroni.dsn) as producers:
            patiently(lambda: acknowledged(producers) > 100)
            before = patroni.primary()
            before.cut_off()
            try:
                goes_on(patroni, before, producers)
            finally:
                before.heal()
        all_are_done(patroni.dsn, producers)
        patroni.until_standby(before)
        all_are_done(patroni.dsn, producers)
