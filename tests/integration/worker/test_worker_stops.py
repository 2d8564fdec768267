"""Stops that come at an odd moment: to a forked child, without a database, before a job has begun."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import psycopg
import pytest
from support.processes.workers import running_worker, until
from support.rows.claimed_jobs import context, ingest_job
from support.rows.jobs import CLEAR
from support.servers.cluster import Cluster
from support.servers.tcp_proxy import TcpProxy

from queue_workflows.db import bootstrap
from queue_workflows.engine.execution.guards import Budget, HeldJob
from queue_workflows.engine.outcomes import Stop
from queue_workflows.host.processes.lease_timer import DeadMan, boottime
from queue_workflows.repositories import HeartbeatRepository, IngestJobRepository, WorkerControlRepository
from queue_workflows.repositories.claims.hold_lease import Found, Watched
from queue_workflows.repositories.workers.control import Control
from queue_workflows.roles.agent_link.watch import Told
from queue_workflows.roles.identity import Identity
from queue_workflows.roles.worker.claims.terms import ClaimTerms
from queue_workflows.roles.worker.guardian.guardian import Guardian
from queue_workflows.settings import Settings
from queue_workflows.states import DesiredState, WorkerState


def test_a_forked_child_of_a_job_ends_alone(qwf_dsn, jobs):
    """SIGTERM to it is not its worker's: multiprocessing ends its children so, and waits for them."""
    job = jobs.enqueue("forks", queue="fetch").id
    with running_worker(qwf_dsn) as worker:
        until(lambda: jobs.fetch(job).status == "completed")
        following = jobs.enqueue("note", queue="fetch").id
        until(lambda: jobs.fetch(following).status == "completed")
        assert worker.poll() is None
    assert jobs.fetch(job).result == {"exitcode": -signal.SIGTERM}


def test_a_closed_terminal_stops_gracefully(qwf_dsn, conn, jobs, tmp_path: Path):
    """SIGHUP: the job is given back, uncounted, and not left to its lease."""
    begun = tmp_path / "begun"
    job = jobs.enqueue("deaf", queue="fetch", args={"begun": str(begun)}).id
    with running_worker(qwf_dsn, "--grace", "0") as worker:
        until(begun.exists)
        worker.send_signal(signal.SIGHUP)
        assert worker.wait(150) == 143
    row = jobs.fetch(job)
    assert (row.status, row.crash_count, row.failures) == ("queued", 0, 0)


def guardian_of(identity: Identity, dsn: str, deadman: DeadMan) -> Guardian:
    """One that is asked by the test, and not started."""
    return Guardian(
        identity,
        Settings(),
        ClaimTerms.of(identity, Settings(), IngestJobRepository),
        connect=lambda: psycopg.connect(dsn, autocommit=True),
        deadman=deadman,
        listener=MagicMock(),
        grace_s=30,
    )


@pytest.mark.parametrize("news", ["stop", "off", "pause"])
def test_a_claim_that_meets_a_stop_is_not_begun(qwf_dsn, news):
    """Confirmed when the guardian has told all that were held: this one is told on its arrival."""
    with DeadMan(enabled=False) as deadman:
        guardian = guardian_of(Identity("here", "fetch", "x", 1), qwf_dsn, deadman)
        if news == "stop":
            guardian.stopping = signal.SIGTERM
        else:
            guardian.wish = Control(DesiredState(news), 1, "*", "fetch", None, "ann", None)
        job = ingest_job()
        held = HeldJob(job, context(job), Budget(3600, 120), time.monotonic(), boottime() + 30)
        guardian.hold(held)
        assert held.ctx.stopping is Stop.RELEASE
        assert held.end_at <= time.monotonic() + 30


def test_a_wish_that_comes_before_the_first_heartbeat_is_heard(qwf_dsn, conn, monkeypatch):
    """Its author may have found no such worker meanwhile: it claims nothing before it knows of the wish."""
    control = WorkerControlRepository(conn)
    with DeadMan(enabled=False) as deadman:
        guardian = guardian_of(Identity("late", "fetch", "x", 1), qwf_dsn, deadman)

        def ask(_now: float) -> None:
            control.set("late", "*", "pause", actor="ann")
            assert HeartbeatRepository(conn).standing("late") == []

        monkeypatch.setattr(guardian, "_publish", ask)
        monkeypatch.setattr(guardian, "_round", lambda: None)
        try:
            guardian.start()
            assert (guardian.wish is not None, guardian.is_claiming) == (True, False)
            guardian.close()
        finally:
            guardian.stop_signals.close()
            control.clear("late", "*", actor="ann")


def test_a_heartbeat_that_is_refused_keeps_no_wish_away(qwf_dsn, conn, caplog):
    """What the operator wants is asked in the same round, and heard in it."""
    control = WorkerControlRepository(conn)
    with DeadMan(enabled=False) as deadman:
        guardian = guardian_of(Identity("wordy", "fetch", "x", 1), qwf_dsn, deadman)
        guardian.doing(WorkerState.IDLE, "\0")
        control.set("wordy", "*", "pause", actor="ann")
        try:
            guardian._see_to_duties(time.monotonic())
        finally:
            control.clear("wordy", "*", actor="ann")
        assert guardian.wish is not None
        assert "a heartbeat is not written" in caplog.text


def test_what_the_agent_tells_is_heeded_once(qwf_dsn):
    """Of the moment at which it was told, and not again each round for as long as it is believed."""
    watched = Watched(frozenset(), frozenset(), 0, None)
    told = Told(watched, Found(queued=True, held=frozenset()), heard_at=time.monotonic())
    with DeadMan(enabled=False) as deadman:
        guardian = guardian_of(Identity("here", "fetch", "x", 1), qwf_dsn, deadman)
        guardian._agent = MagicMock(told=lambda now: told, is_steady=lambda now: True, beat=lambda *_: True)
        guardian.doing(WorkerState.IDLE)
        guardian.is_resting = True
        assert [guardian._is_seen_to(told.heard_at + later) for later in (0.1, 1.0, 2.0)] == [True] * 3
        assert guardian._listener.interrupt.call_count == 1
        guardian.poll.told(told.heard_at - 2, Found(queued=False, held=frozenset()))
        assert not guardian.poll.has_found_nothing(told.heard_at)


def test_a_stop_that_comes_in_the_last_round_is_told(qwf_dsn, monkeypatch, caplog):
    """An idle worker ends at once: its log says why also where the guarding thread was at something else."""
    caplog.set_level("INFO", "queue_workflows")
    in_round = threading.Event()
    with DeadMan(enabled=False) as deadman:
        guardian = guardian_of(Identity("here", "fetch", "x", 1), qwf_dsn, deadman)

        def long_round() -> None:
            in_round.set()
            until(lambda: guardian._closing)

        monkeypatch.setattr(guardian, "_round", long_round)
        guardian.stop_signals.begin()
        try:
            guardian._thread.start()
            guardian.stop_signals.ring()
            assert in_round.wait(60)
            signal.raise_signal(signal.SIGTERM)
            assert guardian.stopping == signal.SIGTERM
            guardian.close()
        finally:
            guardian.stop_signals.close()
    assert "SIGTERM: stopping" in caplog.text


def test_a_watch_asks_for_what_has_run_for_a_while(qwf_dsn, jobs):
    """Most jobs are over before the next watch, and a cancel of one that is not is still heard of in time."""
    jobs.enqueue("wait", queue="fetch")
    (job,) = jobs.claim("fetch", worker_id="h:fetch:1", lease_s=60)
    jobs.cancel(job.id, actor="test")
    with DeadMan(enabled=False) as deadman:
        guardian = guardian_of(Identity("h", "fetch", "1", 1), qwf_dsn, deadman)
        now = time.monotonic()
        held = HeldJob(job, context(job), Budget(3600, 120), now, boottime() + 30)
        guardian.hold(held)
        guardian._watch(now + 0.2)
        assert held.ctx.stopping is None
        guardian._watch(now + 0.3)
        assert held.ctx.stopping is Stop.CANCEL


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A server of the tests' own, that listens on TCP."""
    with Cluster.primary() as cluster:
        bootstrap(cluster.dsn())
        yield cluster


@pytest.fixture
def away(cluster: Cluster) -> Iterator[tuple[TcpProxy, str, psycopg.Connection]]:
    """A proxy, the DSN through it, and a way around it."""
    with TcpProxy(cluster.port) as proxy, cluster.connect() as around:
        around.execute(CLEAR + "; TRUNCATE worker_heartbeats, worker_control")
        yield proxy, cluster.dsn(port=str(proxy.port), sslmode="disable"), around


OUTAGE = {"QWF_CONNECT_TIMEOUT_S": "1"}


@pytest.mark.slow
def test_an_idle_worker_without_a_database_stops(away):
    """It holds nothing, so there is nothing to wait for."""
    proxy, dsn, around = away
    with running_worker(dsn, **OUTAGE) as worker:
        until(lambda: HeartbeatRepository(around).list(state="idle"))
        proxy.pause()
        proxy.cut()
        said = ""
        while "the worker has no database" not in said:
            said = worker.stderr.readline()
        worker.terminate()
        assert worker.wait(150) == 0


@pytest.mark.slow
def test_a_paused_worker_stops_though_its_database_answers_nothing(away):
    """Its connections stand, and the guardian waits on one of them for an answer that never comes."""
    proxy, dsn, around = away
    control = WorkerControlRepository(around)
    control.set("here", "fetch", "pause", actor="test")
    with running_worker(dsn, **OUTAGE) as worker:
        until(lambda: HeartbeatRepository(around).list(state="paused"))
        proxy.pause()
        seen = "SELECT last_seen < clock_timestamp() - interval '6 s' FROM worker_heartbeats"
        until(lambda: around.execute(seen).fetchone() == (True,))
        worker.terminate()
        assert worker.wait(150) == 0


@pytest.mark.slow
def test_a_worker_without_a_database_is_not_ready(away, tmp_path: Path):
    """As soon as it is gone, not when the last answer is old; and again when there is one."""
    proxy, dsn, _ = away
    file = tmp_path / "health"

    def health() -> dict[str, Any]:
        return json.loads(file.read_text())

    with running_worker(dsn, "--health-file", str(file), **OUTAGE, QWF_STALE_HEARTBEAT_S="600"):
        until(lambda: file.exists() and health()["ready"])
        proxy.pause()
        proxy.cut()
        told = until(lambda: not (told := health())["ready"] and told)
        assert (told["live"], told["reasons"]) == (True, ["it has no database"])
        proxy.resume()
        until(lambda: health()["ready"])
