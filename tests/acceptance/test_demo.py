"""`qwf demo`, as a reader of the README runs it: a real process, in a directory of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.embedded_users import ordinary_user, processes_below, unset_environment, until
from support.revisions import HEAD

JOBS = 6
PATIENCE_S = 60

# Completing a job stops at this gate for as long as a test holds the lock.
GATE = """
CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(4711);
    RETURN NEW;
END
$$;
CREATE TRIGGER gate BEFORE UPDATE ON ingest_jobs FOR EACH ROW WHEN (NEW.status = 'completed')
EXECUTE FUNCTION gate();
"""
AT_THE_GATE = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711 AND NOT granted"
STATES = "SELECT status, count(*) FROM ingest_jobs GROUP BY status ORDER BY status"


def demo(
    directory: Path, *arguments: str, python: str = sys.executable, uid: int | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "-m", "queue_workflows", *arguments],
        cwd=directory,
        env=unset_environment(),
        user=uid,
        group=uid,
        extra_groups=[] if uid else None,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def told(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """What `--json` printed; the story must not be in the way of it."""
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def assert_all_is_told(outcome: dict[str, Any]) -> None:
    """Six jobs enqueued once, done in order of priority; nothing left of what was rolled back."""
    assert (outcome["enqueued"], outcome["enqueued_again"]) == (JOBS, 0)
    assert (outcome["left_by_rollback"], outcome["late_results_refused"]) == (0, 1)
    assert [row["status"] for row in outcome["jobs"]] == ["completed"] * JOBS
    priorities = [row["priority"] for row in outcome["jobs"]]
    assert priorities == sorted(priorities, reverse=True)
    assert sorted(row["attempt"] for row in outcome["jobs"]) == [1] * (JOBS - 1) + [2]
    assert all(":demo:" in row["claimed_by"] for row in outcome["jobs"])
    assert all(len(row["result"]["sha256"]) == 12 for row in outcome["jobs"])


def test_the_demo_runs_twice_on_the_embedded_server(directory):
    """With nothing set up it makes a server, migrates, works; the next run adds a batch; no process stays."""
    first = demo(directory, "demo")
    assert first.returncode == 0, first.stderr
    until(lambda: processes_below(directory) == [], "all is gone")
    for line in (
        f"schema    engine {HEAD}",
        "6 orders and their 6 jobs",
        "0 of them left",
        "late result is refused",
    ):
        assert line in first.stdout
    table = [line.split() for line in first.stdout.splitlines() if "describe_order" in line]
    assert [row[3] for row in table] == ["completed"] * JOBS
    assert str(directory / ".qwf") in first.stdout
    assert (directory / ".qwf").is_dir()

    second = told(demo(directory, "demo", "--json"))
    until(lambda: processes_below(directory) == [], "all is gone")
    assert_all_is_told(second)
    assert (second["revisions_applied"], second["source"]) == (0, "embedded server")
    assert second["counts"] == {"completed": 2 * JOBS}
    assert not {row["job"] for row in second["jobs"]} & {int(row[0]) for row in table}


def test_the_demo_uses_the_database_it_is_given(directory, qwf_new_database):
    """With --db it works there, makes no server of its own, and says how to be rid of its rows."""
    dsn = qwf_new_database(False)
    outcome = told(demo(directory, "--db", dsn, "demo", "--json"))
    assert_all_is_told(outcome)
    assert outcome["data_directory"] is None
    assert not (directory / ".qwf").exists()
    text = demo(directory, "--db", dsn, "demo")
    assert "DROP SCHEMA qwf_demo CASCADE" in text.stdout
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT count(*) FROM qwf_demo.orders").fetchone() == (2 * JOBS,)
        assert connection.execute(STATES).fetchall() == [("completed", 2 * JOBS)]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_demo_leaves_no_job_claimed(directory, qwf_new_database, number, status):
    """Ctrl-C in the middle of the work gives the jobs in hand back; the next run does them too."""
    dsn = qwf_new_database()
    with psycopg.connect(dsn, autocommit=True) as watcher:
        watcher.execute(GATE)
        watcher.execute("SELECT pg_advisory_lock(4711)")
        process = subprocess.Popen(
            [sys.executable, "-m", "queue_workflows", "--db", dsn, "demo"],
            cwd=directory,
            # The server notices soon that whoever waits at the gate is gone.
            env={**unset_environment(), "QWF_CLIENT_CONNECTION_CHECK_INTERVAL_S": "0.2"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        until(lambda: watcher.execute(AT_THE_GATE).fetchone() == (1,), "the demo completes its first job")
        process.send_signal(number)
        _, complaint = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == status
        assert len(complaint.splitlines()) == 1
        assert watcher.execute(STATES).fetchall() == [("queued", JOBS)]
        watcher.execute("SELECT pg_advisory_unlock(4711)")
        after = told(demo(directory, "--db", dsn, "demo", "--json"))
        assert [row["status"] for row in after["jobs"]] == ["completed"] * JOBS
        assert watcher.execute(STATES).fetchall() == [("completed", 2 * JOBS)]


@pytest.mark.slow
def test_two_demos_at_once_do_not_disturb_each_other(directory, qwf_new_database):
    """Both migrate, make their table and work on one queue at the same time, and both end well."""
    dsn = qwf_new_database(False)
    both = [
        subprocess.Popen(
            [sys.executable, "-m", "queue_workflows", "--db", dsn, "demo", "--json"],
            cwd=directory,
            env=unset_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=PATIENCE_S) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    batches = [json.loads(out) for out, _ in outputs]
    assert batches[0]["batch"] != batches[1]["batch"]
    assert {row["status"] for one in batches for row in one["jobs"]} == {"completed"}


@pytest.mark.skipif(os.geteuid() != 0, reason="the tests run as an ordinary user already: covered above")
def test_an_ordinary_user_can_run_the_demo(directory):
    """Not only root: whoever may write to the directory gets a server of their own in it."""
    uid, python = ordinary_user()
    os.chown(directory, uid, uid)
    outcome = told(demo(directory, "demo", "--json", python=python, uid=uid))
    assert_all_is_told(outcome)
    until(lambda: processes_below(directory) == [], "all is gone")
    assert (directory / ".qwf").stat().st_uid == uid


def test_an_unreachable_database_is_one_line(directory):
    """No server there: one line, exit code 69, nothing made."""
    done = demo(directory, "--db", "postgresql://127.0.0.1:1/none", "demo")
    assert done.returncode == 69
    assert len(done.stderr.splitlines()) == 1
    assert list(directory.iterdir()) == []
