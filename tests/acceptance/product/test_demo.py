"""`qwf demo`, as a reader of the README runs it: a real process, in a directory of its own."""

from __future__ import annotations

import json
import locale
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.processes.embedded_users import ordinary_user, processes_below, unset_environment, until
from support.reference.demo_picture import is_shown, masked, readme_picture
from support.rows.revisions import HEAD, REVISIONS
from support.suite import warm_starts

from queue_workflows.cli.roles.demo import ask
from queue_workflows.repositories import IngestJobRepository
from queue_workflows.workflow.document.nodes import InputNode

SCENES = 6
TICKS = 3
PATIENCE_S = 400
pytestmark = pytest.mark.timeout(3 * PATIENCE_S)

# Completing a node stops at this gate for as long as a test holds the lock.
GATE = """
CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(4711);
    RETURN NEW;
END
$$;
CREATE TRIGGER gate BEFORE UPDATE ON workflow_node_jobs FOR EACH ROW WHEN (NEW.status = 'completed')
EXECUTE FUNCTION gate();
"""
AT_THE_GATE = """
SELECT count(*) FROM pg_locks
WHERE locktype = 'advisory' AND objid = 4711 AND NOT granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
CLAIMED = """
SELECT (SELECT count(*) FROM workflow_node_jobs WHERE status = 'running')
    + (SELECT count(*) FROM ingest_jobs WHERE status = 'running')
"""
# The run is cancelled, or will be by the first orchestrator that comes by.
CALLED_OFF = """
SELECT run.status = 'cancelled'
    OR EXISTS (SELECT FROM workflow_dispatch_events AS event WHERE event.run_id = run.id AND kind = 'cancel')
FROM workflow_runs AS run ORDER BY run.id LIMIT 1
"""
ENDS = "SELECT node_id, state FROM workflow_nodes WHERE run_id = %s ORDER BY node_id"


def demo(
    directory: Path, *arguments: str, python: str = sys.executable, uid: int | None = None
) -> subprocess.CompletedProcess[str]:
    command = [python, "-m", "queue_workflows", *arguments]
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if uid is None:
        return warm_starts.run(
            command, environment(directory), cwd=directory, timeout_s=PATIENCE_S, **streams
        )
    return subprocess.run(
        command,
        cwd=directory,
        env=environment(directory),
        user=uid,
        group=uid,
        extra_groups=[],
        text=True,
        timeout=PATIENCE_S,
        check=False,
        **streams,
    )


def environment(directory: Path) -> dict[str, str]:
    """Of somebody who has no database, in whose language what is drawn can be written."""
    language = {} if locale.getencoding().lower() == "utf-8" else {"LC_ALL": "C.UTF-8"}
    return {**unset_environment(directory), **language}


def started(directory: Path, dsn: str, *arguments: str, **streams: Any) -> subprocess.Popen[str]:
    return warm_starts.start(
        [sys.executable, "-m", "queue_workflows", "--db", dsn, "demo", *arguments],
        # The server notices soon that whoever waits at the gate is gone.
        {**environment(directory), "QWF_CLIENT_CONNECTION_CHECK_INTERVAL_S": "0.2"},
        cwd=directory,
        **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams},
    )


def told(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """What `--json` printed; the story must not be in the way of it."""
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def nodes_of(outcome: dict[str, Any]) -> dict[str, str]:
    return {node["node"]: node["state"] for node in outcome["run"]["nodes"]}


def assert_all_is_told(outcome: dict[str, Any]) -> None:
    """The film is made and the ticks came; nothing is left of what was rolled back."""
    assert (outcome["left_by_rollback"], outcome["late_results_refused"]) == (0, 1)
    assert outcome["run"]["status"] == "completed"
    assert outcome["run"]["outputs"] == {"frames": SCENES}
    assert nodes_of(outcome) == {
        "plan": "completed",
        "draw": "completed",
        "subtitle": "skipped",
        "approve": "completed",
        "publish": "completed",
        "tidy": "completed",
    }
    rows = outcome["jobs"]
    ticks = [row for row in rows if row["job"].startswith("ingest:")]
    assert len(rows) == len(["plan", "approve", "publish", "tidy"]) + SCENES + len(ticks)
    # One more may be there before the third has run, and ends the schedule.
    assert len(ticks) >= TICKS
    assert {row["name"] for row in ticks} == {f"tick {number}" for number in range(1, len(ticks) + 1)}
    by_number = sorted(ticks, key=lambda row: int(row["name"].split()[1]))
    assert by_number[-1]["result"]["last"]
    # The first tick is the job whose lease was lost.
    assert by_number[0]["attempt"] >= 2
    assert "triggered by demo" in by_number[0]["result"]["reason"]
    assert all(":demo:" in row["worker"] for row in ticks)


def assert_models_stay_warm(outcome: dict[str, Any]) -> None:
    """Each worker loads its model for its first scene, and for no other."""
    scenes = [row for row in outcome["jobs"] if row["name"].startswith("draw[")]
    assert len(scenes) == SCENES
    assert all(":gpu:" in row["worker"] for row in scenes)
    loads = Counter(row["worker"] for row in scenes if not row["result"]["warm"])
    assert loads == Counter({row["worker"] for row in scenes})


# On each change test_two_commands.py holds what two others have printed against README's picture.
STORY = (
    f"revisions applied, up to {HEAD}",
    "film 1, its run and a schedule that ticks beside it, in one transaction",
    "film 2, its run and its schedule, given up: 0 of them left",
    "late result is refused",
)
DRAWN = ("●    publish   completed", "from left to right", "loaded in", "warm model", "qwf run show")


@pytest.mark.slow
def test_with_nothing_set_up_the_demo_makes_a_server_and_a_film(directory):
    """Nobody is there to be asked, so the answer is yes; no process stays, and all is told as plain data."""
    done = demo(directory, "demo", "--json")
    outcome = told(done)
    until(lambda: processes_below(directory) == [], "all is gone")
    assert [line for line in STORY if line not in done.stderr] == []
    assert "nobody is there to be asked, so the answer is yes" in done.stderr
    assert_all_is_told(outcome)
    assert_models_stay_warm(outcome)
    assert (outcome["revisions_applied"], outcome["source"]) == (len(REVISIONS), "embedded server")
    assert outcome["data_directory"].startswith(str(directory / ".qwf"))
    assert (directory / ".qwf").is_dir()


@pytest.mark.nightly
def test_the_demo_runs_twice_on_the_embedded_server(directory):
    """What is drawn is as README has it, and the next run makes one film more."""
    first = demo(directory, "demo")
    assert first.returncode == 0, first.stderr
    until(lambda: processes_below(directory) == [], "all is gone")
    assert [line for line in (*STORY, *DRAWN) if line not in first.stdout] == []
    assert is_shown(readme_picture(), first.stdout), first.stdout
    assert "nobody is there to be asked, so the answer is yes" in first.stderr
    assert str(directory / ".qwf") in first.stdout

    second = demo(directory, "demo", "--yes", "--json")
    outcome = told(second)
    until(lambda: processes_below(directory) == [], "all is gone")
    assert_all_is_told(outcome)
    assert_models_stay_warm(outcome)
    assert (outcome["revisions_applied"], outcome["source"]) == (0, "embedded server")
    assert "nobody is there" not in second.stderr


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("plan completed", "plan skipped"),
        ("├─╯", "├─╮"),
        ("of them left", "of them are left"),
        ("nobody: ", ""),
    ],
)
def test_a_picture_that_is_stale_is_seen(printed: str, shown: str) -> None:
    """Words and lines of README's picture are held against what was printed; times and workers may differ."""
    picture = readme_picture()
    later = picture.replace("0.4s", "61.25s").replace("67422f7e4a70", "0123456789ab").replace("████", "██")
    before = f"database  made\n{later}more\n".replace("...", "left out\nhere")
    assert is_shown(picture, before)
    masked_picture = "\n".join("..." if line == "..." else masked(line) for line in picture.splitlines())
    assert printed in masked_picture
    assert not is_shown(masked_picture.replace(printed, shown), before)


def test_a_database_in_which_others_work_is_refused(directory, qwf_new_database):
    """Its processes would take part in that work: one line, 78, and nothing is written."""
    dsn = qwf_new_database()
    with psycopg.connect(dsn, autocommit=True) as connection:
        IngestJobRepository(connection).enqueue("render", queue="fetch")
        done = demo(directory, "--db", dsn, "demo")
        assert (done.returncode, len(done.stderr.splitlines())) == (78, 1)
        assert "of others" in done.stderr
        assert connection.execute("SELECT to_regnamespace('qwf_demo')").fetchone() == (None,)


def test_nobody_is_waited_for_any_longer_than_the_node_waits(monkeypatch):
    """A terminal without anybody at it."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        node = InputNode.model_validate({"id": "approve", "type": "input", "prompt": "Publish the film?"})
        answers: list[object] = []
        asking = threading.Thread(target=lambda: answers.append(ask(node, 0.1)), daemon=True)
        asking.start()
        asking.join(PATIENCE_S)
        assert answers == [None]
    os.close(ours)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.nightly)],
)
def test_after_an_interrupted_demo_two_at_once_do_not_disturb_each_other(
    directory, qwf_new_database, number, status
):
    """Ctrl-C at work leaves no process, no claimed job and no run that goes on; the next two both end well.

    They take each other's jobs; to one somebody at the terminal says no, and gets no film. With --db none of
    them makes a server of its own.
    """
    dsn = qwf_new_database()
    with psycopg.connect(dsn, autocommit=True) as watcher:
        watcher.execute(GATE)
        watcher.execute("SELECT pg_advisory_lock(4711)")
        process = started(directory, dsn, "--yes")
        until(lambda: watcher.execute(AT_THE_GATE).fetchone() == (1,), "the first node ends", PATIENCE_S)
        process.send_signal(number)
        _, complaint = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == status
        assert len(complaint.splitlines()) == 1
        until(lambda: processes_below(directory) == [], "all is gone")
        assert watcher.execute(CLAIMED).fetchone() == (0,)
        assert watcher.execute(CALLED_OFF).fetchone() == (True,)
        watcher.execute("SELECT pg_advisory_unlock(4711)")
        # Both make the tables that are the demo's own.
        watcher.execute("DROP SCHEMA qwf_demo CASCADE")
        answered, refused = _two_at_once(directory, dsn)
        ends = [watcher.execute(ENDS, [run]).fetchall() for run in (answered, refused)]
        assert [dict(states)["publish"] for states in ends] == ["completed", "skipped"]
        assert ends[1] == [
            ("approve", "completed"),
            ("draw", "completed"),
            ("plan", "completed"),
            ("publish", "skipped"),
            ("subtitle", "skipped"),
            ("tidy", "completed"),
        ]
        outputs = "SELECT status, outputs FROM workflow_runs WHERE id = %s"
        assert watcher.execute(outputs, [answered]).fetchone() == ("completed", {"frames": SCENES})
        assert watcher.execute(outputs, [refused]).fetchone() == ("completed", {"frames": None})
        assert watcher.execute("SELECT count(*) FROM qwf_demo.films").fetchone() == (2,)
        assert watcher.execute(CLAIMED).fetchone() == (0,)
    assert not (directory / ".qwf").exists()


def _two_at_once(directory: Path, dsn: str) -> tuple[str, str]:
    """The runs of two demos: of one with --yes, and of one to which somebody at the terminal says no."""
    ours, theirs = pty.openpty()
    answered = started(directory, dsn, "--json", "--yes")
    asked = started(directory, dsn, stdin=theirs)
    os.close(theirs)
    os.write(ours, b"perhaps\nn\n")
    (told, complaint), (story, questions) = (
        process.communicate(timeout=PATIENCE_S) for process in (answered, asked)
    )
    os.close(ours)
    assert [answered.returncode, asked.returncode] == [0, 0], complaint + questions
    assert "Publish the film? [Y/n]" in questions
    assert "please say yes or no" in questions
    assert "DROP SCHEMA qwf_demo CASCADE" in story
    (shown,) = re.findall(r"qwf run show (\S+)", story)
    return json.loads(told)["run"]["run"], shown


@pytest.mark.nightly
@pytest.mark.skipif(os.geteuid() != 0, reason="the tests run as an ordinary user already: covered above")
def test_an_ordinary_user_can_run_the_demo(directory):
    """Not only root: whoever may write to the directory gets a server of their own in it.

    On each change test_two_commands.py sees an ordinary user's demo in a clone.
    """
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
