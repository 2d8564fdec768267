"""The supervisor over stand-in workers: real processes, started, killed, stopped and buried."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.programs import gone
from support.processes.supervised import HOST, over_stand_ins
from support.processes.workers import until
from support.rows.jobs import CLEAR_WITH_WORKERS, Jobs
from support.servers.cluster import Cluster
from support.servers.tcp_proxy import TcpProxy

from queue_workflows.db import bootstrap
from queue_workflows.errors import ExitCode
from queue_workflows.repositories import HeartbeatRepository, WorkerControlRepository
from queue_workflows.roles.loop import Halt, Waiter
from queue_workflows.roles.supervisor.database_thread import DatabaseThread
from queue_workflows.roles.supervisor.slots import WorkerSpec
from queue_workflows.roles.supervisor.spares import Spares
from queue_workflows.roles.supervisor.supervisor import Supervisor
from queue_workflows.settings import Settings

READY = r"ready (\S+) (\d+)"
HOLDS = r"holds (\d+) as (\S+)"


@pytest.fixture
def connection(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    """The test's own eyes and hands, on empty tables."""
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR_WITH_WORKERS)
        yield connection


@pytest.fixture
def jobs(connection: psycopg.Connection) -> Jobs:
    """Ingest jobs on the queue `fetch`."""
    return Jobs("ingest", connection)


def kill(pid: int | str) -> None:
    os.kill(int(pid), signal.SIGKILL)


def queued_again(jobs: Jobs, job_id: int) -> Callable[[], bool]:
    return lambda: jobs.seen(job_id, "status") == ("queued",)


def heartbeats(connection: psycopg.Connection) -> set[str]:
    return {worker_id for (worker_id,) in connection.execute("SELECT worker_id FROM worker_heartbeats")}


def test_runs_what_it_was_told_to_and_ends_it(qwf_dsn, connection):
    """As many workers as asked for, each under a name of its own, until SIGTERM; nothing is left of them."""
    with over_stand_ins(qwf_dsn, "fetch:2", "load") as supervisor:
        ready = [supervisor.until(READY) for _ in range(3)]
        ids = {found[1] for found in ready}
        assert {re.sub("[0-9a-f]{12}$", "X", name) for name in ids} == {f"{HOST}:fetch:X", f"{HOST}:load:X"}
        assert len(ids) == 3
        assert heartbeats(connection) == ids
        assert {psutil.Process(int(found[2])).ppid() for found in ready} == {supervisor.pid}
        assert supervisor.stop() == 0
        assert all(gone(pid) for pid in supervisor.pids)
        assert sum("stopping" in line and HOST in line for line in supervisor.said) == 3
    assert heartbeats(connection) == set()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_every_ending_signal_is_passed_on(qwf_dsn, connection, number):
    """Ctrl-C and a closed terminal end the workers as gracefully as SIGTERM does."""
    with over_stand_ins(qwf_dsn, "fetch") as supervisor:
        supervisor.until(READY)
        supervisor.signal(number)
        supervisor.until("stopping h1:fetch")
        assert supervisor.status() == 0


def test_a_killed_worker_is_replaced_and_its_job_taken_back_at_once(qwf_dsn, connection, jobs):
    """Long before its lease of an hour: the row queued again, the crash counted, the heartbeat gone."""
    (job,) = jobs.enqueue()
    with over_stand_ins(qwf_dsn, "fetch --hold") as supervisor:
        holder = supervisor.until(HOLDS)[2]
        pid = supervisor.until(READY)[2]
        kill(pid)
        supervisor.until(f"took ingest job {job} of {holder}: queued, a crash counted")
        again = supervisor.until(HOLDS)
        assert (int(again[1]), again[2] == holder) == (job, False)
        assert jobs.seen(job, "status", "attempt", "failures", "crash_count") == ("running", 2, 0, 1)
        until(lambda: holder not in heartbeats(connection))


@pytest.mark.slow
def test_what_the_dead_worker_still_locks_is_taken_when_the_lock_goes(qwf_dsn, connection, jobs):
    """Its session may live on in the server for a while, holding the row that is to be taken back."""
    (job,) = jobs.enqueue()
    with over_stand_ins(qwf_dsn, "fetch --hold") as supervisor, psycopg.connect(qwf_dsn) as session:
        supervisor.until(HOLDS)
        pid = supervisor.until(READY)[2]
        session.execute("SELECT 1 FROM ingest_jobs WHERE id = %s FOR UPDATE", [job])
        kill(pid)
        supervisor.until(READY)
        assert jobs.seen(job, "status") == ("running",)
        session.rollback()
        until(queued_again(jobs, job))


def test_a_killed_workers_daemons_are_gone_before_it_is_replaced(qwf_dsn, connection):
    """Also one that forked twice: the next incarnation may need what it holds."""
    with over_stand_ins(qwf_dsn, "fetch --act daemon") as supervisor:
        daemon = int(supervisor.until(r"daemon (\d+)")[1])
        supervisor.until("started, pid")
        kill(supervisor.until(READY)[2])
        supervisor.until("started, pid")
        assert gone(daemon)


def test_a_supervisor_that_is_killed_leaves_no_orphan(qwf_dsn, connection):
    """Its workers hear of it from the kernel and stop."""
    with over_stand_ins(qwf_dsn, "fetch:3") as supervisor:
        pids = [int(supervisor.until(READY)[2]) for _ in range(3)]
        kill(supervisor.pid)
        until(lambda: all(map(gone, pids)))


# Dead in truth


@pytest.mark.slow
def test_a_stopped_worker_is_bounced(qwf_dsn, connection, jobs):
    """SIGSTOP freezes its heartbeat; it is killed, and its job runs elsewhere."""
    (job,) = jobs.enqueue()
    with over_stand_ins(qwf_dsn, "fetch --hold", env={"QWF_STALE_HEARTBEAT_S": "6"}) as supervisor:
        supervisor.until(HOLDS)
        pid = int(supervisor.until(READY)[2])
        os.kill(pid, signal.SIGSTOP)
        supervisor.until(f"killing pid {pid}: no heartbeat for")
        assert int(supervisor.until(HOLDS)[1]) == job
        assert gone(pid)
        assert jobs.seen(job, "attempt", "crash_count") == (2, 1)


@pytest.mark.slow
def test_a_worker_that_was_flagged_dead_is_bounced(qwf_dsn, connection, jobs):
    """At once, although its own silence is not long enough yet."""
    jobs.enqueue()
    with over_stand_ins(qwf_dsn, "fetch --hold --act frozen") as supervisor:
        supervisor.until(HOLDS)
        pid = supervisor.until(READY)[2]
        until(lambda: bool(HeartbeatRepository(connection).flag_dead(older_than_s=0.2)))
        supervisor.until(f"killing pid {pid}: flagged dead")
        supervisor.until(HOLDS)


def test_a_worker_that_never_beat_is_bounced(qwf_dsn, connection):
    """One that hangs while it starts would else hold its place for ever."""
    with over_stand_ins(qwf_dsn, "fetch --act mute", env={"QWF_FIRST_HEARTBEAT_S": "1"}) as supervisor:
        pid = supervisor.until(r"started, pid (\d+)")[1]
        supervisor.until(f"killing pid {pid}: no first heartbeat within 1 s")
        supervisor.until("started, pid")


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
        around.execute(CLEAR_WITH_WORKERS)
        yield proxy, cluster.dsn(port=str(proxy.port), sslmode="disable"), around


OUTAGE = {"QWF_STALE_HEARTBEAT_S": "5", "QWF_CONNECT_TIMEOUT_S": "1"}


@pytest.mark.slow
def test_nobody_is_killed_for_an_outage_of_the_database(away):
    """While it is away no heartbeat can arrive, and on its return workers have time to beat again."""
    proxy, dsn, around = away
    with over_stand_ins(dsn, "fetch:2", env=OUTAGE) as supervisor:
        pids = {supervisor.until(READY)[2] for _ in range(2)}
        proxy.pause()
        proxy.cut()
        supervisor.until("workers cannot be watched")
        oldest = "SELECT max(last_seen) < clock_timestamp() - interval '8 s' FROM worker_heartbeats"
        until(lambda: around.execute(oldest).fetchone() == (True,))
        proxy.resume()
        supervisor.until("the database is back")
        back = around.execute("SELECT clock_timestamp()").fetchone()
        fresh = "SELECT min(last_seen) > %s FROM worker_heartbeats"
        until(lambda: around.execute(fresh, back).fetchone() == (True,))
        assert supervisor.stop() == 0
        assert {str(pid) for pid in supervisor.pids} == pids
        assert not any("killing" in line for line in supervisor.said)


@pytest.mark.slow
def test_a_death_during_an_outage_is_seen_to_at_once_and_buried_later(away):
    """The next incarnation starts all the same; the job comes back with the database, and is not blamed."""
    proxy, dsn, around = away
    jobs = Jobs("ingest", around)
    (job,) = jobs.enqueue()
    with over_stand_ins(dsn, "fetch --hold", env=OUTAGE) as supervisor:
        supervisor.until("started, pid")
        holder = supervisor.until(HOLDS)[2]
        pid = supervisor.until(READY)[2]
        proxy.pause()
        kill(pid)
        supervisor.until(f"pid {pid} killed by SIGKILL after .*; again at once")
        supervisor.until("started, pid")
        supervisor.until("workers cannot be watched")
        assert jobs.seen(job, "status", "claimed_by") == ("running", holder)
        proxy.resume()
        supervisor.until(f"took ingest job {job} of {holder}: queued$")
        # The next incarnation may have claimed it by now.
        assert jobs.seen(job, "crash_count", "suspect") == (0, False)


# What follows an end


@pytest.mark.slow
def test_an_end_that_only_a_change_can_mend_is_named_and_tried_slowly(qwf_dsn, connection):
    """One line with the reason, and the next try in half a minute at the earliest."""
    with over_stand_ins(qwf_dsn, "fetch --act exit:78") as supervisor:
        line = supervisor.until("ended with 78").string
        assert "A setting, a file, the host app's wiring or the database's access rules are wrong" in line
        wait = re.search(r"again in ([\d.]+) s, though that may not help before somebody acts", line)
        assert wait is not None
        assert 30 <= float(wait[1]) <= 60
        assert supervisor.stop() == 0


@pytest.mark.slow
def test_a_worker_that_dies_young_waits_longer_each_time(qwf_dsn, connection):
    """The first time not at all."""
    with over_stand_ins(qwf_dsn, "fetch --act exit:1") as supervisor:
        first, second, third = (supervisor.until("ended with 1 .*again (.*)")[1] for _ in range(3))
        assert first == "at once"
        assert 0.5 <= float(second.split()[1]) <= 1
        assert 1 <= float(third.split()[1]) <= 2


@pytest.mark.slow
def test_all_finished_is_the_end_of_the_supervisor(qwf_dsn, connection):
    """Workers that were told to end when there is nothing to do are not replaced."""
    with over_stand_ins(qwf_dsn, "fetch --act exit:0 --once", "load --act exit:0 --once") as supervisor:
        assert supervisor.status() == 0
        assert sum("its work is done" in line for line in supervisor.said) == 2
        assert len(supervisor.pids) == 2


@pytest.mark.slow
def test_a_worker_that_was_stopped_from_outside_is_replaced_at_once(qwf_dsn, connection):
    """So workers can be renewed one by one, and nobody's SIGTERM makes a machine smaller for good."""
    with over_stand_ins(qwf_dsn, "fetch") as supervisor:
        pid = int(supervisor.until(READY)[2])
        ready_at = time.monotonic()
        until(lambda: time.monotonic() - ready_at > 1.2)
        os.kill(pid, signal.SIGTERM)
        supervisor.until(r"ended with 0 \(Done\).*again at once")
        assert int(supervisor.until(READY)[2]) != pid


@pytest.mark.slow
def test_a_worker_that_the_operator_switched_off_comes_back_when_it_is_on(qwf_dsn, connection):
    """Not before: a restart would go against the wish, and nobody else could start it again."""
    control = WorkerControlRepository(connection)
    control.set(HOST, "fetch", "off", actor="ann")
    with over_stand_ins(qwf_dsn, "fetch --act exit:77", "load") as supervisor:
        supervisor.until("fetch/1: pid .* ended with 77 .*; starts when it is switched on")
        # Two rounds of the thread that asks the database, each marked by a worker whose death it had to tell.
        for _ in range(2):
            kill(supervisor.until(READY)[2])
        supervisor.until(READY)
        assert sum("fetch/1: started" in line for line in supervisor.said) == 1
        control.clear(HOST, "fetch", actor="ann")
        supervisor.until("fetch/1: switched on again")
        supervisor.until("fetch/1: started")
        supervisor.until("fetch/1: started")


# Stopping


@pytest.mark.slow
def test_a_second_signal_stops_at_once(qwf_dsn, connection, jobs):
    """Whoever does not stop is killed after a moment, and what he held is given back without blame."""
    (job,) = jobs.enqueue()
    with over_stand_ins(qwf_dsn, "fetch --hold --act deaf", env={"QWF_GRACE_S": "300"}) as supervisor:
        supervisor.until(READY)
        supervisor.signal(signal.SIGTERM)
        supervisor.until("SIGTERM: stopping, for 305 s at most")
        supervisor.until("heard")
        supervisor.signal(signal.SIGINT)
        supervisor.until("heard")
        supervisor.until("killing pid .*: did not stop in time")
        assert supervisor.status() == 130
    assert jobs.seen(job, "status", "crash_count", "suspect") == ("queued", 0, False)


@pytest.mark.slow
def test_a_worker_that_outlives_the_grace_is_killed(qwf_dsn, connection):
    """After the grace and what it takes to give a job back; the stop is a good one all the same."""
    with over_stand_ins(qwf_dsn, "fetch --act deaf", env={"QWF_GRACE_S": "0"}) as supervisor:
        supervisor.until(READY)
        started = time.monotonic()
        supervisor.signal(signal.SIGTERM)
        supervisor.until("killing pid .*: did not stop in time")
        assert time.monotonic() - started >= 5
        assert supervisor.status() == 0


@pytest.mark.slow
def test_workers_that_wait_for_their_restart_do_not_hold_up_a_stop(qwf_dsn, connection):
    """There is nobody to wait for."""
    with over_stand_ins(qwf_dsn, "fetch --act exit:78") as supervisor:
        supervisor.until("again in")
        started = time.monotonic()
        assert supervisor.stop() == 0
        assert time.monotonic() - started < 25  # the restart would be due after 30 s at the earliest


# As the one process of a service manager


@pytest.mark.slow
def test_a_service_manager_is_told(qwf_dsn, connection, tmp_path: Path):
    """Ready, alive, stopping, on the socket that it named; which is not the workers' to use."""
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(path))
        manager.settimeout(60)
        env = {"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "400000"}
        with over_stand_ins(qwf_dsn, "fetch", env=env) as supervisor:
            assert manager.recv(4096) == b"READY=1\nSTATUS=workers: 1"
            beats = [manager.recv(4096) for _ in range(3)]
            assert beats == [b"WATCHDOG=1"] * 3
            supervisor.until(READY)
            supervisor.signal(signal.SIGTERM)
            while (said := manager.recv(4096)) == b"WATCHDOG=1":
                pass
            assert said == b"STOPPING=1\nSTATUS=stopping after SIGTERM"
            assert supervisor.status() == 0
            assert "has the socket" not in supervisor.said


# The main one, the one at the database, and the one that looks at the hardware.
LASTING_THREADS = 3


@pytest.mark.slow
def test_restarts_gather_nothing(qwf_dsn, connection):
    """No descriptors, no threads, no zombies: it runs for months."""
    with over_stand_ins(qwf_dsn, "fetch:5 --act exit:69") as supervisor:
        process = psutil.Process(supervisor.pid)

        def at_rest() -> tuple[int, int] | None:
            held = (process.num_fds(), process.num_threads())
            is_quiet = process.children() == [] and held == (process.num_fds(), process.num_threads())
            return held if is_quiet and held[1] == LASTING_THREADS else None

        def after_five_deaths() -> tuple[int, int]:
            for _ in range(5):
                supervisor.until("again in")
            return until(at_rest)

        before = after_five_deaths()
        after_five_deaths()
        until(lambda: at_rest() == before)


# The supervisor's own health


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_supervisor_whose_database_thread_died_stops_its_workers_and_fails(caplog):
    """It could go on for ever, and take nothing back from anybody who died."""

    def unforeseen() -> psycopg.Connection:
        raise RuntimeError("nobody catches this")

    settings = Settings(host_label=HOST, grace_s=300)
    with Waiter() as waiter:
        database_thread = DatabaseThread(unforeseen, host_label=HOST, max_crashes=3, tell=waiter.ring)
        supervisor = Supervisor(
            [WorkerSpec("fetch")],
            command_for=lambda _: ["sleep", "3600"],
            settings=settings,
            database_thread=database_thread,
            waiter=waiter,
            halt=Halt(waiter.ring),
            spares=Spares((), lambda _: [], waiter),
        )
        with caplog.at_level("INFO"):
            assert supervisor.run() == ExitCode.FAILED
    assert "the thread that watches the workers has died" in caplog.text
    assert gone(int(re.search(r"started, pid (\d+)", caplog.text)[1]))
