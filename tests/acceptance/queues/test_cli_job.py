"""`qwf job`: finding jobs of both families, showing one, cancelling and retrying one or many."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.commands import Said, qwf_here
from support.processes.workers import running_worker, until
from support.rows.jobs import CLEAR_WITH_WORKERS, Jobs, ending
from support.rows.schemas import qwf_environment, start_qwf


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR_WITH_WORKERS)
        yield connection


@pytest.fixture
def ingest(conn: psycopg.Connection) -> Jobs:
    return Jobs("ingest", conn)


@pytest.fixture
def node(conn: psycopg.Connection) -> Jobs:
    return Jobs("node", conn)


@pytest.fixture
def job(qwf_dsn: str) -> Any:
    """`qwf job` on the test's database."""

    def run(*arguments: str, status: int = 0) -> Said:
        return qwf_here("--db", qwf_dsn, "job", *arguments, status=status)

    return run


def fail(jobs: Jobs, message: str = "no use") -> int:
    jobs.enqueue(priorities=(9,), max_attempts=1)
    held = jobs.one()
    error = {"kind": "exception", "type": "ValueError", "message": message}
    jobs.repository.end(ending(held, "failed", error=error, counts=True))
    return held.id


def statuses(jobs: Jobs) -> list[str]:
    return [row["status"] for row in jobs.rows()]


def test_list_shows_both_families(job, ingest, node):
    """A line a job, the newest first; what does not match is left out."""
    failed = fail(ingest)
    (waiting,) = node.enqueue()
    lines = job("list").stdout.splitlines()
    assert [line.split()[:3] for line in lines] == [
        ["JOB", "STATUS", "QUEUE"],
        [f"node:{waiting}", "queued", "cpu"],
        [f"ingest:{failed}", "failed", "fetch"],
    ]
    assert lines[2].endswith("1 (1/1 failed)  ValueError: no use")
    (only,) = json.loads(job("list", "--status", "failed", "--json").stdout)
    assert (only["job"], only["error"], only["failures"]) == (f"ingest:{failed}", "ValueError: no use", 1)
    assert job("list", "--queue", "elsewhere") == Said("", "no job matches\n")
    assert job("list", "--limit", "1").stderr == "the newest 1; --limit shows more\n"


def test_where_says_the_options_in_one_text(job, ingest, node):
    """It finds and decides as the options do, beside them; a typo or a contradiction is a mistake."""
    failed = fail(ingest, "timed out")
    ingest.enqueue()
    (waiting,) = node.enqueue()
    (only,) = json.loads(job("list", "--where", 'status:failed error:"timed out"', "--json").stdout)
    assert only["job"] == f"ingest:{failed}"
    (only,) = json.loads(job("list", "--where", "family:node", "--status", "queued", "--json").stdout)
    assert only["job"] == f"node:{waiting}"
    typo = job("list", "--where", "queu:fetch", status=2)
    assert typo == Said(
        "",
        "qwf: no filter 'queu': one of family, queue, status, task, node, run, error, worker, held, older,"
        " newer\n",
    )
    assert (
        "status is given as an option and"
        in job("retry", "--where", "status:failed", "--status", "cancelled", "--yes", status=2).stderr
    )
    assert "name jobs, or say" in job("cancel", "--where", " ", "--yes", status=2).stderr
    assert "no job that is queued can be retried" in job("retry", "--where", "status:queued", status=2).stderr
    said = job("retry", "--where", "queue:fetch error:timed", "--yes", "--json")
    assert json.loads(said.stdout) == {"retried": 1}
    assert json.loads(job("cancel", "--where", "family:node", "--yes", "--json").stdout) == {"cancelled": 1}
    assert statuses(ingest) == ["queued", "queued"]


def test_a_list_goes_on_at_its_cursor(job, conn, ingest):
    """A search that met its bound names how far it came, and what goes on from there."""
    conn.execute(
        "INSERT INTO ingest_jobs (task_name, queue, status, claimed_by, attempt, finished_at, created_at)"
        " SELECT CASE n WHEN 1 THEN 'rare' ELSE 'task' END, 'fetch', 'completed', 'w', 1, now(),"
        " '2026-01-02T14:02:00Z' FROM generate_series(1, 50001) AS n"
    )
    first = job("list", "--where", "task:rare", "--json")
    assert first.stdout == "[]\n"
    told = first.stderr.split()
    assert told[:5] == ["searched", "back", "to", "2026-01-02", "14:02:00Z;"]
    assert told[5:6] + told[7:] == ["--before", "searches", "further"]
    (rare,) = json.loads(job("list", "--where", "task:rare", "--before", told[6], "--json").stdout)
    assert (rare["title"], rare["family"]) == ("rare", "ingest")
    newest = conn.execute("SELECT max(id) FROM ingest_jobs").fetchone()[0]
    more = job("list", "--task", "task", "--limit", "2", "--before", f"ingest{newest}")
    assert [line.split()[0] for line in more.stdout.splitlines()[1:]] == [
        f"ingest:{newest - 1}",
        f"ingest:{newest - 2}",
    ]
    assert more.stderr == f"2 more; --before ingest{newest - 2} goes on\n"
    wrong = job("list", "--before", "yesterday", status=2).stderr
    assert wrong == ("qwf: 'yesterday' is no place in this list: take what the page before it ends with\n")


def test_show_has_everything(job, ingest):
    """Each column, every error with its traceback, and who did what to it."""
    job_id = fail(ingest, "bad\nline")
    ingest.repository.retry_many([job_id], actor="ann", reason="fixed")
    said = job("show", f"ingest:{job_id}").stdout
    for part in (
        f"ingest:{job_id} task",
        "generation",
        "error of attempt 1:",
        "message: bad",
        "message: line",
    ):
        assert part in said
    assert "job.retry by ann" in said
    shown = json.loads(job("show", str(job_id), "--json").stdout)
    assert (shown["status"], shown["generation"], shown["args"]) == ("queued", 2, {"n": 0})
    assert shown["errors"][0]["message"] == "bad\nline"
    assert [(entry["actor"], entry["reason"]) for entry in shown["audit"]] == [("ann", "fixed")]


def test_cancel_and_retry_by_name(job, conn, ingest, node):
    """Of both families at once; each says what became of it, and 1 says that not all did."""
    waiting, running = ingest.enqueue(2), node.enqueue()
    node.one()
    names = [f"ingest:{waiting[0]}", f"node:{running[0]}"]
    said = job("cancel", *names, "--actor", "ann", "--reason", "old").stdout.splitlines()
    assert said == [f"{names[0]}: cancelled", f"{names[1]}: asked to stop"]
    said = job("cancel", *names, status=1).stdout.splitlines()
    assert said[0] == f"{names[0]}: not cancelled, it is cancelled"
    assert json.loads(job("retry", names[0], "--json").stdout) == [{"job": names[0], "answer": "retried"}]
    said = job("retry", f"ingest:{waiting[1]}", status=1).stdout
    assert said == f"ingest:{waiting[1]}: not retried, it is queued\n"
    assert statuses(ingest) == ["queued", "queued"]
    logged = conn.execute("SELECT actor, action, subject_kind, reason FROM audit_log ORDER BY id").fetchall()
    assert logged[:2] == [
        ("ann", "job.cancel", "ingest job", "old"),
        ("ann", "job.cancel", "node job", "old"),
    ]


RUN_OVER = {
    "failed": "status = 'failed', finished_at = now()",
    "being cancelled": "cancel_requested_at = now()",
}


LEFT_ALONE = "left alone; the run would not go on with it: `qwf run retry` runs again what failed in a run"


@pytest.mark.parametrize("word", RUN_OVER)
def test_a_node_whose_run_would_not_go_on_is_not_retried(job, conn, node, word):
    """Named or matched it is left alone, with what to do; nodes of runs that go on are retried."""
    lost = fail(node)
    conn.execute(f"UPDATE workflow_runs SET {RUN_OVER[word]}")
    before = node.row(lost)
    run_id = before["run_id"]
    run = f"its run {run_id} is {word} and would not go on with it: `qwf run retry {run_id}`"
    for more, status in (("--dry-run", 0), ("--json", 1)):
        said = job("retry", f"node:{lost}", more, status=status).stdout
        assert f"not retried, {run}" in said
    kept = fail(node)
    assert job("retry", "--queue", node.queue, "--dry-run").stderr.splitlines() == [
        "1 job would be retried",
        f"1 job would be {LEFT_ALONE}",
    ]
    dry = job("retry", "--queue", node.queue, "--dry-run", "--json").stdout
    assert json.loads(dry) == {"matched": 2, "dry_run": True, "left_alone": 1}
    said = job("retry", "--queue", node.queue, "--yes").stdout
    assert said.splitlines()[-2:] == [
        f"1 job {LEFT_ALONE}",
        "1 job retried",
    ]
    assert (node.row(lost), node.seen(kept, "status")) == (before, ("queued",))
    said = job("retry", "--queue", node.queue, "--yes", "--json").stdout
    assert json.loads(said) == {"run_over": 1}


def test_one_unknown_name_and_nothing_is_done(job, ingest):
    """A slip does not do half of what was meant."""
    (job_id,) = ingest.enqueue()
    said = job("cancel", f"ingest:{job_id}", "ingest:999999", status=2)
    assert "there is no job ingest:999999" in said.stderr
    assert statuses(ingest) == ["queued"]


def test_many_by_what_they_are(job, conn, ingest):
    """A dry run says how many and changes nothing; --yes does it."""
    for number in range(3):
        fail(ingest, f"order {number} is gone")
    fail(ingest, "other")
    ingest.enqueue(2)
    (group, _) = json.loads(job("failures", "--json").stdout)
    assert (group["count"], group["error"]) == (3, "ValueError: order # is gone")
    by_group = ("--error", group["error"])
    dry = job("retry", *by_group, "--dry-run")
    assert (len(dry.stdout.splitlines()), dry.stderr) == (4, "3 jobs would be retried\n")
    assert statuses(ingest).count("failed") == 4
    assert job("retry", *by_group, "--yes").stdout.splitlines()[-1] == "3 jobs retried"
    assert statuses(ingest).count("failed") == 1
    assert json.loads(job("cancel", "--queue", "fetch", "--yes", "--json").stdout) == {"cancelled": 5}
    assert statuses(ingest).count("cancelled") == 5
    assert job("cancel", "--queue", "fetch", "--yes").stderr == "no jobs match\n"
    assert conn.execute("SELECT count(*) FROM audit_log").fetchone() == (8,)


def test_failures_as_a_table(job, ingest):
    """The most frequent first, with one to look at."""
    ids = [fail(ingest, f"order {number}") for number in range(2)]
    lines = job("failures").stdout.splitlines()
    assert lines[1].split()[:3] == ["2", "fetch", "task"]
    assert lines[1].endswith(f"ingest:{ids[1]}  ValueError: order #")
    assert job("failures", "--queue", "load") == Said("", "nothing failed in the last 7d\n")


@pytest.mark.slow
def test_nobody_is_there_to_be_asked(job, ingest, qwf_dsn):
    """A script without --yes is told so, and nothing is done."""
    ingest.enqueue()
    done = subprocess.run(
        [sys.executable, "-m", "queue_workflows", "job", "cancel", "--queue", "fetch"],
        env=qwf_environment(QWF_DB_URL=qwf_dsn),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "say --yes" in done.stderr
    assert statuses(ingest) == ["queued"]


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "status", "left"), [("n", 1, "queued"), ("y", 0, "cancelled")])
def test_who_sits_there_is_asked(ingest, qwf_dsn, answer, status, left):
    """And what is answered is done."""
    ingest.enqueue()
    terminal, ours = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "queue_workflows", "job", "cancel", "--queue", "fetch"],
        env=qwf_environment(QWF_DB_URL=qwf_dsn),
        stdin=ours,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.write(terminal, f"{answer}\n".encode())
    _, said = process.communicate(timeout=150)
    os.close(terminal)
    os.close(ours)
    assert (process.returncode, statuses(ingest)) == (status, [left])
    assert "Cancel 1 job? [y/N]" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["cancel"], "name jobs, or say by --queue"),
        (["cancel", "1", "--queue", "fetch"], "not both"),
        (["retry", "--yes"], "name jobs, or say by --queue"),
        (["retry", "--status", "queued"], "no job that is queued can be retried"),
        (["cancel", "--status", "failed", "--yes"], "no job that is failed can be cancelled"),
        (["cancel", "x"], "write ingest:7, node:7, or 7"),
        (["list", "--status", "done"], "'done' is not one of"),
        (["list", "--run", "7"], "is not a valid UUID"),
        (["list", "--older-than", "nan"], "is no length of time"),
        (["list", "--error", "\udcff"], "a lone surrogate is no character"),
        (["list", "--queue", ""], "queue is empty"),
        (["list", "--limit", "0"], "0 is not in the range"),
        (["list", "--task", "t", "--node", "n"], "a task is of ingest jobs"),
        (["failures", "--since", "-1h"], "is no length of time"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_2(job, conn, arguments, said):
    """What is wrong, and nothing is changed."""
    ended = job(*arguments, status=2)
    assert said in ended.stderr
    assert (ended.stdout, ended.stderr.count("\n")) == ("", 1)


@pytest.mark.slow
def test_whoever_reads_may_go_away(ingest, qwf_dsn):
    """`| head`: quietly, with the status for it."""
    ingest.enqueue(3000)
    process = start_qwf("job", "list", "--limit", "3000", "--json", QWF_DB_URL=qwf_dsn)
    assert process.stdout
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr
    assert (process.stderr.read(), process.wait(150)) == ("", 141)


@pytest.mark.slow
def test_ctrl_c_leaves_whole_pages(ingest, conn, qwf_dsn):
    """What was done stays done and is told; the page under way is rolled back."""
    ids = ingest.enqueue(1200)
    with psycopg.connect(qwf_dsn) as other:
        # The second page waits for this row.
        other.execute("SELECT FROM ingest_jobs WHERE id = %s FOR UPDATE", [ids[700]])
        process = start_qwf("job", "cancel", "--queue", "fetch", "--yes", QWF_DB_URL=qwf_dsn)
        waiting = (
            "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        until(lambda: conn.execute(waiting).fetchone(), within_s=150)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=150)
    assert process.returncode == 130
    assert said.splitlines() == ["500 cancelled before the interruption", "qwf: interrupted"]
    assert statuses(ingest) == ["cancelled"] * 500 + ["queued"] * 700
    assert conn.execute("SELECT count(*) FROM audit_log").fetchone() == (500,)


def test_a_real_worker_hears_of_a_cancel_and_runs_a_retry(job, conn, ingest, qwf_dsn):
    """Asked to stop it stops; retried it runs as a new generation."""
    job_id = ingest.repository.enqueue("wait", queue="fetch", args={"s": 600}).id
    with running_worker(qwf_dsn):
        until(lambda: ingest.row(job_id)["status"] == "running", within_s=150)
        assert job("cancel", str(job_id)).stdout == f"ingest:{job_id}: asked to stop\n"
        until(lambda: ingest.row(job_id)["status"] == "cancelled", within_s=150)
        assert job("retry", f"ingest:{job_id}").stdout == f"ingest:{job_id}: retried\n"
        until(lambda: ingest.row(job_id)["status"] == "running", within_s=150)
    assert ingest.seen(job_id, "generation", "attempt") == (2, 2)
