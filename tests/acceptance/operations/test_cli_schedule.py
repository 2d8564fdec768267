"""`qwf schedule` and `qwf scheduler`, as an operator types them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta

import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.commands import qwf_here
from support.processes.programs import Running
from support.processes.workers import patiently, running_scheduler, worker_environment
from support.rows.jobs import CLEAR

from queue_workflows import IngestJobRepository, ScheduleRepository
from queue_workflows.errors import ExitCode
from queue_workflows.repositories.audit_log import AuditRepository

JUMPED = "its time is left out; the clock jumps forward to here"
NOWHERE = "postgresql://nobody@127.0.0.1:1/none"


@pytest.fixture
def connection(qwf_dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[psycopg.Connection]:
    """Two schedules; the commands find their database in the environment."""
    monkeypatch.setenv("QWF_DB_URL", qwf_dsn)
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR + "; TRUNCATE schedules")
        schedules = ScheduleRepository(connection)
        schedules.upsert(
            "nightly", cron="30 2 * * *", timezone="Europe/Berlin", task_name="tidy", queue="load"
        )
        schedules.upsert("pulse", cron="*/5 * * * * *", task_name="beat", queue="fetch", jitter_s=30)
        yield connection


def test_the_list_says_what_ticks_when(connection: psycopg.Connection) -> None:
    """As a table and as JSON; a paused schedule and one that is not declared any more do not tick."""
    connection.execute("UPDATE schedules SET enabled = false, next_tick_at = now() WHERE name = 'pulse'")
    connection.execute("UPDATE schedules SET declared_by = 'shop' WHERE name = 'nightly'")
    told = [line.split() for line in qwf_here("schedule", "list").stdout.splitlines()]
    assert told[0] == ["NAME", "STATE", "CRON", "TIMEZONE", "TASK", "QUEUE", "LAST", "NEXT"]
    assert told[1][:3] == ["nightly", "not", "declared"]
    assert told[2][:2] == ["pulse", "paused"]
    assert told[2][-2:] == ["-", "-"]
    told = json.loads(qwf_here("schedule", "list", "--json").stdout)
    assert [(one["schedule"], one["state"], one["task"]) for one in told] == [
        ("nightly", "not declared", "tidy"),
        ("pulse", "paused", "beat"),
    ]
    connection.execute("TRUNCATE schedules")
    ended = qwf_here("schedule", "list")
    assert (ended.stdout, "there is no schedule" in ended.stderr) == ("", True)


def test_pause_and_resume_are_written_down(connection: psycopg.Connection) -> None:
    """Who, when and why; what is so already is said, and written down by nobody."""
    for _ in range(2):
        qwf_here("schedule", "pause", "pulse", "nightly", "pulse", "--actor", "ann", "--reason", "loud")
    assert [one.enabled for one in ScheduleRepository(connection).list()] == [False, False]
    assert qwf_here("schedule", "resume", "pulse", "--actor", "bob").stdout == "pulse is on\n"
    assert qwf_here("schedule", "resume", "pulse").stdout == "pulse was on already\n"
    log = [(one.actor, one.action, one.reason) for one in AuditRepository(connection).of("schedule", "pulse")]
    assert log == [("bob", "schedule.resume", None), ("ann", "schedule.pause", "loud")]


def test_resuming_what_nobody_declares_says_so(connection: psycopg.Connection) -> None:
    """It will not tick, and whoever asked expects it to."""
    connection.execute("UPDATE schedules SET declared_by = 'shop', enabled = false WHERE name = 'pulse'")
    ended = qwf_here("schedule", "resume", "pulse")
    assert ended.stdout == "pulse is on\n"
    assert "pulse does not tick all the same: shop does not declare it any more" in ended.stderr


def test_trigger_enqueues_one_job_and_says_which(connection: psycopg.Connection) -> None:
    """Paused or not, beside the ticks, and written down."""
    qwf_here("schedule", "pause", "pulse")
    said = qwf_here("schedule", "trigger", "pulse", "--actor", "ann", "--reason", "to see").stdout
    told = json.loads(qwf_here("schedule", "trigger", "pulse", "--json", "--actor", "ann").stdout)
    jobs = IngestJobRepository(connection).list(newest_first=False)
    assert [f"ingest:{job.id}" for job in jobs] == [said.strip(), told["job"]]
    assert [(job.task_name, job.queue, job.status, job.reason) for job in jobs] == [
        ("beat", "fetch", "queued", "schedule pulse triggered by ann")
    ] * 2
    assert all(job.tick_at.microsecond for job in jobs)
    log = AuditRepository(connection).of("schedule", "pulse")
    assert [(one.action, one.reason, one.details) for one in log[1:2]] == [
        ("schedule.trigger", "to see", {"job": said.strip()})
    ]


@pytest.mark.parametrize("command", ["preview", "trigger", "pause", "resume"])
def test_an_unknown_name_changes_nothing(connection: psycopg.Connection, command: str) -> None:
    """A usage error, in one line, before anything is done to a known one."""
    names = ["pulse", "nothing"] if command in ("pause", "resume") else ["nothing"]
    ended = qwf_here("schedule", command, *names, status=ExitCode.USAGE)
    assert ended.stderr == "qwf: there is no schedule 'nothing' — `qwf schedule list` lists them\n"
    assert ended.stdout == ""
    assert connection.execute("SELECT count(*) FROM audit_log").fetchone() == (0,)


def test_a_preview_goes_across_every_jump(connection: psycopg.Connection) -> None:
    """By the clocks of the zone and in UTC, with a word about what the jump does."""
    told = qwf_here("schedule", "preview", "nightly", "--after", "2026-03-28", "--count", "2").stdout
    assert told.splitlines() == [
        "EUROPE/BERLIN                       UTC",
        "Sat 2026-03-28 02:30:00 CET +0100   2026-03-28 01:30:00Z",
        "Sun 2026-03-29 03:00:00 CEST +0200  2026-03-29 01:00:00Z  " + JUMPED,
    ]
    told = json.loads(qwf_here("schedule", "preview", "pulse", "--json").stdout)
    assert len(told) == 10
    assert all(one["tick_at"] <= one["begins_at"] for one in told)
    # The very next one, by the database's clock.
    ((now,),) = connection.execute("SELECT now()")
    first = ScheduleRepository(connection).fetch("pulse").updated_at
    assert first < datetime.fromisoformat(told[0]["tick_at"]) < now + timedelta(seconds=6)


def test_a_preview_of_an_expression_asks_no_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the environment names as one."""
    monkeypatch.setenv("QWF_DB_URL", NOWHERE)
    asked = ("--cron", "0 9 * * mon#1", "--timezone", "Asia/Kolkata", "--after", "2026-01-01T00:00+05:30")
    told = qwf_here("schedule", "preview", *asked, "--count", "1").stdout
    assert told.splitlines()[1] == "Mon 2026-01-05 09:00:00 IST +0530  2026-01-05 03:30:00Z"
    told = qwf_here("schedule", "preview", "--cron", "0 0 29 2 *", "--after", "2096-03-01", "--count", "1")
    assert told.stdout.splitlines()[1].startswith("Fri 2104-02-29 00:00:00")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ([], "say which: the NAME of a schedule, or --cron EXPR"),
        (["nightly", "--cron", "* * * * *"], "say which"),
        (["nightly", "--timezone", "UTC"], "--timezone goes with --cron"),
        (["--cron", "every day"], "has not five fields"),
        (["--cron", "0 0 30 2 *"], "Bad day-of-month"),
        (["--cron", "* * * * *", "--timezone", "Mars/Olympus"], "there is no time zone 'Mars/Olympus'"),
        (["--cron", "* * * * *", "--timezone", ""], "timezone is empty"),
        (["--cron", "* * * * *", "--after", "tomorrow"], "'tomorrow' is no moment"),
        (["--cron", "* * * * *", "--after", "0001-01-01"], "'0001-01-01' is no moment"),
        (["--cron", "* * * * *", "--count", "0"], "0 is not in the range"),
    ],
)
def test_what_cannot_be_previewed(asked: list[str], said: str) -> None:
    """One line that says what is wrong."""
    ended = qwf_here("schedule", "preview", *asked, status=ExitCode.USAGE)
    assert said in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "command",
    [
        ("schedule", "list"),
        ("schedule", "trigger", "x"),
        ("schedule", "preview", "x"),
        pytest.param(("scheduler", "--once", "--schema-wait", "0"), marks=pytest.mark.slow),
    ],
)
def test_without_a_database(command: tuple[str, ...]) -> None:
    """69 and one line, as of every command."""
    ended = qwf_here("--db", NOWHERE, *command, status=ExitCode.UNREACHABLE)
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.slow
def test_ctrl_c_ends_a_scheduler(connection: psycopg.Connection, qwf_dsn: str) -> None:
    """With 0 and without a word of Python; it was ready, and said so to a probe's file."""
    with running_scheduler(qwf_dsn) as scheduler:
        patiently(lambda: ScheduleRepository(connection).fetch("pulse").next_tick_at)
        scheduler.send_signal(signal.SIGINT)
        assert scheduler.wait(300) == 0
        assert "Traceback" not in scheduler.stderr.read()


@pytest.mark.slow
def test_a_scheduler_is_ready_when_it_ticks(connection: psycopg.Connection, qwf_dsn: str, tmp_path) -> None:
    """Its file is there as soon as it runs, and goes with it."""
    file = tmp_path / "health"
    command = [sys.executable, "-m", "queue_workflows", "scheduler", "--health-file", str(file)]
    with Running(command, env=worker_environment(qwf_dsn)) as scheduler:
        patiently(lambda: file.exists() and json.loads(file.read_text())["ready"])
        scheduler.process.terminate()
        assert scheduler.status(300) == 0
    assert not file.exists()


def test_a_queue_that_the_host_app_has_not_got(qwf_dsn: str, tmp_path) -> None:
    """78 before anything is declared."""
    (tmp_path / "odd_wiring.py").write_text(
        "from queue_workflows import set_ingest_schedule\n"
        "set_ingest_schedule([dict(name='n', cron='* * * * *', task_name='t', queue='elsewhere')])\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "queue_workflows", "--app", "odd_wiring", "scheduler", "--once"],
        cwd=tmp_path,
        env=worker_environment(qwf_dsn),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == ExitCode.CONFIGURATION
    assert "the schedule 'n' is for the queue 'elsewhere', which is none of fetch, load" in done.stderr
