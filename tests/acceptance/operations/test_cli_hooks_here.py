"""`qwf hooks run … --here`: a run of scripts from its start to its end in one command."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from support.processes.embedded_users import processes_below, unset_environment, until
from support.processes.workers import worker_environment
from support.rows.jobs import CLEAR_WITH_WORKERS
from support.stages.hook_stage import result
from support.suite import warm_starts

PATIENCE_S = 240


def put(place: Path, hook: str, *lines: str) -> None:
    path = place / "plugins" / hook
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)


def command(*more: str) -> list[str]:
    run = ["hooks", "run", "Page", "--dir", "plugins", "--here"]
    return [sys.executable, "-m", "queue_workflows", *run, *more]


def run_here(dsn: str, place: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return warm_starts.run(
        command(*more),
        {**worker_environment(dsn), "QWF_DATA_DIR": str(place / "data")},
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        timeout_s=PATIENCE_S,
    )


@pytest.mark.slow
def test_a_run_needs_no_database_of_ones_own(directory: Path) -> None:
    """Progress of each hook on standard output, its files below .qwf, and nothing goes on after the end."""
    put(directory, "a/on_Page__10_a.sh", 'echo "$*" > args')
    put(directory, "b/on_Page__20_b.sh", "cat ../a/args", result("succeeded"))
    done = warm_starts.run(
        command("--input", "url=http://site.test/"),
        unset_environment(directory),
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        timeout_s=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    told = [line.partition(" ")[2] for line in done.stdout.splitlines()]
    ends = [words.split()[1] for words in told if "completed" in words]
    assert ends == ["a__10_a_sh", "b__20_b_sh", "descendants", "run"]
    assert told[-1].endswith("run completed")
    (args,) = directory.glob(".qwf/runs/*/a/args")
    assert args.read_text() == "--url=http://site.test/\n"
    said = [line for line in done.stderr.splitlines() if "embedded Postgres" not in line]
    assert said == []
    until(lambda: processes_below(directory) == [], "all is gone")


def test_it_ends_as_the_run_does(qwf_dsn: str, tmp_path: Path) -> None:
    """On a database of one's own as well; a hook that failed is the command's failure."""
    put(tmp_path, "a/on_Page__10_a.sh", result("failed", "no title"))
    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        connection.execute(CLEAR_WITH_WORKERS)
    done = run_here(qwf_dsn, tmp_path, "--json", "--dedupe-key", "k")
    assert done.returncode == 1, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert {"a__10_a_sh", None} <= {one.get("node") for one in told}
    again = run_here(qwf_dsn, tmp_path, "--dedupe-key", "k")
    assert again.returncode == 1, again.stderr
    assert "has this key already: nothing was started" in again.stderr


@pytest.mark.slow
def test_a_tree_with_a_setup_ends_here_too(qwf_dsn: str, tmp_path: Path) -> None:
    """What the setup has in the background is gone with the last run, and its end is told."""
    lives = ("trap 'rm up; exit 0' TERM", "touch up", "while :; do sleep 0.1; done")
    put(tmp_path, "b/on_SiteSetup__10_open.bg.sh", *lives)
    put(tmp_path, "b/on_SiteSetup__20_made.sh", "while [ ! -e up ]; do sleep 0.1; done")
    put(tmp_path, "a/on_Page__10_a.sh", 'test -e "$SITE_DIR/b/up"')
    (tmp_path / "plugins" / "hooks.toml").write_text('[env]\nSITE_DIR = "{root_run_dir}"\n')
    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        connection.execute(CLEAR_WITH_WORKERS)
    done = run_here(qwf_dsn, tmp_path, "--setup", "SiteSetup")
    assert done.returncode == 0, done.stderr
    told = [line.partition(" ")[2].split() for line in done.stdout.splitlines()]
    ends = [words[1] for words in told if "completed" in words]
    assert sorted(ends[:-1]) == ["b__10_open_bg_sh", "b__20_made_sh", "descendants", "first_run", "seal"]
    assert ends[-1] == "run"
    assert list((tmp_path / "data" / "runs").glob("*/b/up")) == []


@pytest.mark.slow
def test_a_stop_ends_it_with_its_hooks(qwf_dsn: str, tmp_path: Path) -> None:
    """By Ctrl-C: the hook is gone when the command is, and the run is said to be open."""
    put(tmp_path, "a/on_Page__10_a.sh", "echo $$ > pid.part", "mv pid.part pid", "exec sleep 600")
    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        connection.execute(CLEAR_WITH_WORKERS)
    process = warm_starts.start(
        command(),
        {
            **worker_environment(qwf_dsn),
            "QWF_DATA_DIR": str(tmp_path / "data"),
            "QWF_GRACE_S": "1",
        },
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        until(lambda: list(tmp_path.glob("data/runs/*/a/pid")), "the hook runs")
        (pid,) = tmp_path.glob("data/runs/*/a/pid")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == 130, errors
    assert "is not over: it goes on where a worker of hooks and an orchestrator run" in errors
    assert not os.path.exists(f"/proc/{pid.read_text().strip()}")


@pytest.mark.slow
def test_a_stop_takes_the_embedded_server_along_quietly(directory: Path) -> None:
    """Whoever presses Ctrl-C reads that the run is open, and nothing of a database that goes away."""
    put(directory, "a/on_Page__10_a.sh", "touch begun", "exec sleep 600")
    process = warm_starts.start(
        command(),
        {**unset_environment(directory), "QWF_GRACE_S": "1"},
        cwd=directory,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        until(lambda: list(directory.glob(".qwf/runs/*/a/begun")), "the hook runs")
        # As a terminal sends it, to all processes of the command.
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == 130, errors
    said = [line for line in errors.splitlines() if "embedded Postgres" not in line]
    assert [line for line in said if "is not over: it goes on where" in line] != [], said
    assert [line for line in said if "database" in line or "LISTEN" in line] == [], said
    until(lambda: processes_below(directory) == [], "all is gone")


@pytest.mark.slow
def test_what_a_hook_waits_for_is_said(qwf_dsn: str, tmp_path: Path) -> None:
    """A program that nobody has, and why, on standard error: whoever waits for the run can mend that."""
    put(tmp_path, "a/on_Page__10_a.sh")
    (tmp_path / "plugins" / "a" / "binaries.jsonl").write_text(
        '{"name": "qwf-nowhere", "bin_providers": "env"}\n'
    )
    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        connection.execute(CLEAR_WITH_WORKERS)
    process = warm_starts.start(
        command(),
        {**worker_environment(qwf_dsn), "QWF_DATA_DIR": str(tmp_path / "data")},
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        said = next((line for line in process.stderr if "waits for a program" in line), "")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert "a/on_Page__10_a.sh waits for a program: qwf-nowhere: env: " in said


WIRING = """
from queue_workflows import enqueue_ingest_job, register_record_type

@register_record_type("Order")
def order(record, ctx):
    enqueue_ingest_job("mail", queue="fetch", args=record, dedupe_key="", conn=ctx.conn)
"""


@pytest.mark.slow
def test_what_is_refused_of_a_hooks_records_is_said(qwf_dsn: str, tmp_path: Path) -> None:
    """As a job that its handler may not enqueue: one line, with what lists all; the hook ended well."""
    (tmp_path / "wiring.py").write_text(WIRING)
    put(tmp_path, "a/on_Page__10_a.sh", *(f'echo \'{{"type": "Order", "no": {no}}}\'' for no in (1, 2)))
    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        connection.execute(CLEAR_WITH_WORKERS)
    done = warm_starts.run(
        command(),
        {**worker_environment(qwf_dsn), "QWF_DATA_DIR": str(tmp_path / "data"), "QWF_APP": "wiring"},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        timeout_s=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    (said,) = done.stderr.splitlines()
    _, _, words = said.partition("a/on_Page__10_a.sh: ")
    assert words.startswith("something is wrong with 2 of its lines, first with line 1: Order: dedupe_key")
    assert re.search(r"; `qwf hooks records [0-9a-f-]{36} --warnings` lists them", words)
