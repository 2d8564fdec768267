"""Each tick of a schedule becomes one job, however many schedulers run, are killed, or come back late."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from threading import Barrier
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from support.connections.kept import own_connection
from support.processes.workers import TESTS, patiently, running_scheduler
from support.stages.ticking import away_since, pass_once

from queue_workflows.repositories import ScheduleRepository
from queue_workflows.repositories.schedules.ticks import Planned, Tick, TickRepository

EACH_SECOND = "* * * * * *"
SKEWED = TESTS / "support" / "skewed_clock"
# The job of a task called `gated` waits at this gate, in the middle of the statement that inserts it.
GATE = """
CREATE OR REPLACE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(4711);
    RETURN NEW;
END
$$;
CREATE OR REPLACE TRIGGER gate BEFORE INSERT ON ingest_jobs
FOR EACH ROW WHEN (NEW.task_name = 'gated') EXECUTE FUNCTION gate();
CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'not this one';
END
$$;
CREATE OR REPLACE TRIGGER refuse BEFORE INSERT ON ingest_jobs
FOR EACH ROW WHEN (NEW.task_name = 'refused') EXECUTE FUNCTION refuse();
"""
AT_THE_GATE = """
SELECT pid FROM pg_locks
WHERE locktype = 'advisory' AND objid = 4711 AND NOT granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


class Stage:
    """The schedules of one database and the jobs of their ticks."""

    def __init__(self, dsn: str, connection: psycopg.Connection) -> None:
        self.dsn, self.connection = dsn, connection
        self.schedules = ScheduleRepository(connection)

    def schedule(self, name: str, cron: str = EACH_SECOND, task_name: str = "tidy", **more: Any) -> None:
        """One that ticks from now on; nothing is left out of it however slow the machine is."""
        most = {"catch_up": "all", "catch_up_cap": 10_000}
        self.schedules.upsert(name, cron=cron, task_name=task_name, queue="load", **{**most, **more})

    def change(self, name: str, change: str) -> None:
        """What somebody else has made of it."""
        self.connection.execute(f"UPDATE schedules SET {change} WHERE name = %s", [name])

    def ticks(self, name: str) -> list[datetime]:
        """Of which there is a job, in the order of the jobs."""
        rows = self.connection.execute(
            "SELECT tick_at FROM ingest_jobs WHERE schedule_name = %s ORDER BY id", [name]
        )
        return [tick for (tick,) in rows]

    def await_ticks(self, name: str, count: int) -> None:
        """Wait for so many more."""
        before = len(self.ticks(name))
        patiently(lambda: len(self.ticks(name)) >= before + count)

    def now(self) -> datetime:
        """By the server's clock."""
        ((now,),) = self.connection.execute("SELECT clock_timestamp()")
        return now.astimezone(UTC)

    def away_since(self, name: str, ago: timedelta) -> None:
        """As if nobody had looked at a schedule for so long."""
        away_since(self.connection, name, ago)

    def once_elsewhere(self, **settings: str) -> None:
        """One pass of a scheduler in a process of its own."""
        with running_scheduler(self.dsn, "--once", **settings) as process:
            _, said = process.communicate(timeout=300)
            assert process.returncode == 0, said

    def pass_once(self, **of_task: Any) -> int:
        """One pass of a scheduler in this process, which is told times of elsewhere; its status."""
        options = {"timeout_s": 5.0, **of_task}
        dsn = make_conninfo(self.dsn, options="-c timezone=Asia/Kathmandu")
        return pass_once(lambda: psycopg.connect(dsn, autocommit=True), options=lambda _: options)


@pytest.fixture
def stage(qwf_dsn: str) -> Iterator[Stage]:
    """Empty tables."""
    with own_connection(qwf_dsn) as connection:
        connection.execute("TRUNCATE ingest_jobs, schedules, audit_log")
        connection.execute(GATE)
        yield Stage(qwf_dsn, connection)


def assert_unbroken(ticks: list[datetime]) -> None:
    """One job for each second from the first to the last."""
    seconds = [tick.timestamp() for tick in sorted(ticks)]
    assert seconds == [seconds[0] + number for number in range(len(seconds))]


def test_those_who_read_the_same_insert_it_once(stage: Stage) -> None:
    """Each of four has reckoned all ticks before the first of them inserts any."""
    for number in range(20):
        stage.schedule(f"s{number}")
        stage.away_since(f"s{number}", timedelta(seconds=9))
    read, wrote = Barrier(4), Barrier(4)

    def ticker(_: int) -> list[Any]:
        with psycopg.connect(stage.dsn, autocommit=True) as connection:
            ticks = TickRepository(connection)
            due = ticks.due()
            assert len(due.schedules) == 20
            second = due.now.replace(microsecond=0)
            planned = [
                Planned(one, [Tick(second, second, "why", {"max_attempts": 3})], second + timedelta(days=1))
                for one in due.schedules
            ]
            read.wait(150)
            inserted = ticks.insert(planned)
            wrote.wait(150)
            # Whoever comes late, with what it read long ago, finds everything moved.
            return inserted + ticks.insert(planned)

    with ThreadPoolExecutor(4) as threads:
        inserted = [name for one in threads.map(ticker, range(4)) for name, _ in one]
    assert sorted(inserted) == sorted(f"s{number}" for number in range(20))
    assert all(len(stage.ticks(f"s{number}")) == 1 for number in range(20))


@pytest.mark.slow
def test_many_schedulers_insert_each_tick_once(stage: Stage) -> None:
    """All of them look at the same moments; one of them is killed again and again."""
    for number in range(5):
        stage.schedule(f"s{number}")
    with ExitStack() as running:
        schedulers = [running.enter_context(running_scheduler(stage.dsn)) for _ in range(3)]
        for scheduler in schedulers[:2]:
            stage.await_ticks("s0", 2)
            scheduler.kill()
        stage.await_ticks("s0", 2)
        schedulers[2].terminate()
        assert schedulers[2].wait(300) == 0
    for number in range(5):
        assert_unbroken(stage.ticks(f"s{number}"))


@pytest.mark.parametrize("ends", [pytest.param("with it", marks=pytest.mark.slow), "without it"])
def test_killed_while_it_inserts(stage: Stage, ends: str) -> None:
    """Its statement comes to its end, or does not; another comes to the same ticks, and waits for nobody."""
    stage.schedule("held", cron="0 0 1 1 *", task_name="gated", catch_up="all")
    stage.schedule("free")
    stage.change("held", "updated_at = now() - interval '800 days', next_tick_at = NULL")
    stage.change("free", "enabled = false")
    patient = {"QWF_LOCK_TIMEOUT_S": "300", "QWF_CLIENT_CONNECTION_CHECK_INTERVAL_S": "0.2"}
    with psycopg.connect(stage.dsn) as gate_keeper:
        gate_keeper.execute("SELECT pg_advisory_xact_lock(4711)")
        with running_scheduler(stage.dsn, **patient) as victim:
            backend = patiently(lambda: stage.connection.execute(AT_THE_GATE).fetchone())
            with running_scheduler(stage.dsn, **patient) as other:
                stage.change("free", "enabled = true, updated_at = now(), next_tick_at = NULL")
                stage.await_ticks("free", 2)
                assert stage.ticks("held") == []
                if ends == "with it":
                    # Nobody has told the server yet: it may go on without anybody who waits for it.
                    os.kill(victim.pid, signal.SIGSTOP)
                    gate_keeper.rollback()
                    patiently(lambda: stage.ticks("held"))
                victim.kill()
                gone = "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = %s"
                patiently(lambda: stage.connection.execute(gone, backend).fetchone()[0])
                gate_keeper.rollback()
                patiently(lambda: len(stage.ticks("held")) >= 2)
                stage.await_ticks("free", 2)
                assert other.poll() is None
    held = stage.ticks("held")
    assert len(held) in (2, 3)  # of 800 days
    assert len(set(held)) == len(held)
    assert_unbroken(stage.ticks("free"))


@pytest.mark.parametrize("off_by_s", [3600, pytest.param(-3600, marks=pytest.mark.slow)])
def test_after_a_day_away_the_policy_decides_by_the_servers_clock(stage: Stage, off_by_s: int) -> None:
    """A scheduler whose own clock is an hour off inserts the very ticks that are due, and no others."""
    half_past = stage.now() + timedelta(minutes=30)
    hourly = f"{half_past.minute} * * * *"
    last = half_past.replace(second=0, microsecond=0) - timedelta(hours=1)
    for policy in ("none", "latest", "all"):
        stage.schedule(policy, cron=hourly, catch_up=policy, catch_up_cap=5)
        stage.away_since(policy, timedelta(days=1))
    stage.schedule("new", cron=hourly)
    path = os.pathsep.join(map(str, (SKEWED, TESTS, os.environ.get("PYTHONPATH", ""))))
    for again in (False, True):
        if again:
            assert stage.pass_once() == 0
        else:
            stage.once_elsewhere(PYTHONPATH=path, CLOCK_IS_OFF_BY_S=str(off_by_s))
        hours = [last - timedelta(hours=number) for number in (4, 3, 2, 1, 0)]
        found = {name: stage.ticks(name) for name in ("none", "latest", "all", "new")}
        assert found == {"none": [], "latest": [last], "all": hours, "new": []}
    for name in found:
        following = stage.schedules.fetch(name)
        assert following.next_tick_at == last + timedelta(hours=1)


def test_a_paused_schedule_does_not_tick(stage: Stage) -> None:
    """Not even by whoever read it before, and what fell due meanwhile does not come afterwards."""
    stage.schedule("quiet", cron="0 0 1 1 *")
    stage.away_since("quiet", timedelta(days=400))
    due = TickRepository(stage.connection).due()
    stage.schedules.set_enabled("quiet", False, actor="ann")
    tick = Tick(due.now, due.now, "why", {"max_attempts": 3})
    assert TickRepository(stage.connection).insert([Planned(due.schedules[0], [tick], due.now)]) == []
    assert stage.pass_once() == 0
    stage.schedules.set_enabled("quiet", True, actor="ann")
    assert TickRepository(stage.connection).insert([Planned(due.schedules[0], [tick], due.now)]) == []
    assert stage.pass_once() == 0
    assert stage.ticks("quiet") == []


@pytest.mark.slow
def test_a_paused_schedule_is_quiet(stage: Stage) -> None:
    """From the pause on, whoever restarts, and what fell due meanwhile does not come afterwards."""
    stage.schedule("quiet")
    stage.schedule("loud")
    with running_scheduler(stage.dsn):
        stage.await_ticks("quiet", 1)
        stage.schedules.set_enabled("quiet", False, actor="ann")
        heard = stage.ticks("quiet")
        stage.await_ticks("loud", 2)
    with running_scheduler(stage.dsn):
        stage.await_ticks("loud", 1)
        assert stage.ticks("quiet") == heard
        before = stage.now()
        stage.schedules.set_enabled("quiet", True, actor="ann")
        stage.await_ticks("quiet", 1)
    assert min(tick for tick in stage.ticks("quiet") if tick not in heard) > before


@pytest.mark.slow
def test_new_times_hold_at_once(stage: Stage) -> None:
    """A running scheduler that waits for next year is told nothing, and comes in time all the same."""
    stage.schedule("yearly", cron="0 0 1 1 *")
    with running_scheduler(stage.dsn):
        patiently(lambda: stage.schedules.fetch("yearly").next_tick_at)
        stage.schedule("yearly", cron=EACH_SECOND)
        stage.await_ticks("yearly", 2)
    changed_at = stage.schedules.fetch("yearly").updated_at
    assert timedelta() < stage.ticks("yearly")[0] - changed_at <= timedelta(seconds=1)


def test_what_cannot_be_read_or_inserted_holds_up_no_other(stage: Stage, caplog) -> None:
    """Written by another version, or refused by a trigger of the host app; the scheduler says so."""
    for name in ("cron", "timezone", "refused", "fine"):
        stage.schedule(name, task_name="refused" if name == "refused" else "tidy")
        stage.away_since(name, timedelta(seconds=2))
    stage.change("cron", "cron = 'every other day'")
    stage.change("timezone", "timezone = 'Mars/Olympus'")
    assert stage.pass_once() == 1
    assert stage.ticks("fine")
    for name in ("cron", "timezone", "refused"):
        assert f"schedule {name} is left alone for 30 s" in caplog.text
        assert stage.ticks(name) == []


def test_a_lock_in_the_way_of_one_schedule_holds_up_no_other(stage: Stage, caplog) -> None:
    """A trigger of the host app that waits for somebody, for longer than `lock_timeout_s`."""
    for name, task_name in (("held", "gated"), ("fine", "tidy")):
        stage.schedule(name, task_name=task_name)
        stage.away_since(name, timedelta(seconds=2))
    impatient = make_conninfo(stage.dsn, options="-c lock_timeout=200ms")
    with psycopg.connect(stage.dsn) as gate_keeper:
        gate_keeper.execute("SELECT pg_advisory_xact_lock(4711)")
        assert pass_once(lambda: psycopg.connect(impatient, autocommit=True)) == 1
    assert stage.ticks("fine")
    assert stage.ticks("held") == []
    assert "schedule held is left alone for 30 s" in caplog.text


@pytest.mark.slow
def test_a_lost_connection_is_made_anew(stage: Stage) -> None:
    """Whatever ended it; no tick is missing."""
    stage.schedule("each")
    with running_scheduler(stage.dsn) as scheduler:
        stage.await_ticks("each", 1)
        lost = stage.connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'qwf:scheduler@here' AND datname = current_database()"
        ).fetchall()
        assert lost
        stage.await_ticks("each", 3)
        scheduler.terminate()
        assert scheduler.wait(300) == 0
        assert "the scheduler has no database" in scheduler.stderr.read()
    assert_unbroken(stage.ticks("each"))


def test_a_job_has_what_its_schedule_says(stage: Stage, caplog) -> None:
    """Each value in its own column; what the schedule leaves open is as for any other job."""
    caplog.set_level("INFO")
    args = {"deep": [1, None, "ü"]}
    stage.schedule("whole", args=args, priority=7, limit_key="disk", jitter_s=1_000_000)
    stage.away_since("whole", timedelta(seconds=2))
    assert stage.pass_once() == 0
    columns = "task_name, queue, reason, args, priority, limit_key, max_attempts, timeout_s, status"
    found = stage.connection.execute(f"SELECT {columns}, tick_at, run_at FROM ingest_jobs").fetchall()
    *told, tick, begins = found[0]
    said = f"{tick.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
    reason = f"schedule whole at {said}"
    assert f"tick {said} of schedule whole" in caplog.text
    assert told == ["tidy", "load", reason, args, 7, "disk", 3, 5.0, "scheduled"]
    assert begins > tick


def test_a_job_has_the_host_lock_of_its_schedule_or_of_its_task(stage: Stage) -> None:
    """The schedule's word counts; when somebody triggers it too."""
    stage.schedule("own", host_lock="disk")
    stage.schedule("open")
    for name in ("own", "open"):
        stage.away_since(name, timedelta(seconds=2))
    assert stage.pass_once(host_lock="scanner") == 0
    for name in ("own", "open"):
        stage.schedules.trigger(name, actor="ann", options={"host_lock": "scanner"})
    found = stage.connection.execute(
        "SELECT DISTINCT schedule_name, host_lock, reason LIKE '%by ann' FROM ingest_jobs ORDER BY 1, 3"
    ).fetchall()
    assert found == [
        ("open", "scanner", False),
        ("open", "scanner", True),
        ("own", "disk", False),
        ("own", "disk", True),
    ]
