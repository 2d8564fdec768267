"""`qwf run start … --here`, and what `--watch` says where nobody runs what a run needs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.embedded_users import processes_below, unset_environment, until
from support.processes.workers import running_orchestrator, running_worker, worker_environment
from support.rows.jobs import CLEAR_WITH_WORKERS
from support.rows.roles import least_privilege
from support.suite import warm_starts

from queue_workflows.db import bootstrap

PATIENCE_S = 240
FILM = """\
name: film
inputs: {title: {type: string}}
nodes:
  - {id: plan, module: echo, inputs: {title: {$from: inputs.title}}}
  - {id: draw, module: echo, queue: gpu, for_each: {$value: [1, 2]}, inputs: {title: {$from: plan.title}}}
outputs: {title: {$from: plan.title}}
"""
LONG = """\
name: long
inputs: {directory: {type: string}, name: {type: string}, module: {type: string, default: polite}}
nodes:
  - {id: wait, module: %s, inputs: {directory: {$from: inputs.directory}, name: {$from: inputs.name}}}
"""


@pytest.fixture
def place(tmp_path: Path, qwf_dsn: str) -> Iterator[Path]:
    """A directory in which the commands run, with a film and an empty database; nothing may be left in it."""
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR_WITH_WORKERS)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "film.yaml").write_text(FILM, encoding="utf-8")
    for module in ("polite", "deaf"):
        (tmp_path / "here" / f"{module}.yaml").write_text(LONG % module, encoding="utf-8")
    yield tmp_path / "here"
    until(lambda: processes_below(tmp_path) == [], "no process is left")


def begin(dsn: str, place: Path, *arguments: str, **settings: str) -> subprocess.Popen[str]:
    """`qwf run start` under way, in a session of its own, as a shell would have it."""
    return warm_starts.start(
        [*warm_starts.MODULE, "run", "start", *arguments],
        {**worker_environment(dsn), "QWF_DATA_DIR": str(place / "data"), "QWF_GRACE_S": "1", **settings},
        cwd=place,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, list[str], str]:
    """Its status, the lines of its output, and what it said beside them."""
    try:
        out, err = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    return process.returncode, out.splitlines(), err


def test_a_run_of_several_queues_ends_in_one_command(qwf_dsn: str, place: Path) -> None:
    """Its orchestrator and its workers come and go with it; the command ends as the run does."""
    status, told, said = ended(begin(qwf_dsn, place, "film.yaml", "-i", "title=Sea", "--here"))
    assert (status, said) == (0, "")
    ends = [line.split()[2] for line in told if "completed" in line]
    assert ends == ["plan", "draw", "run"]
    with psycopg.connect(qwf_dsn) as connection:
        assert connection.execute("SELECT status, outputs FROM workflow_runs").fetchall() == [
            ("completed", {"title": "Sea"})
        ]


def test_a_run_that_fails_is_1(qwf_dsn: str, place: Path) -> None:
    """As with --watch; the changes are objects for programs."""
    (place / "bad.yaml").write_text(
        "name: bad\nnodes: [{id: a, module: picky, inputs: {ok: false}, retry: {max_attempts: 1}}]\n"
    )
    status, told, said = ended(begin(qwf_dsn, place, "bad.yaml", "--here", "--json"))
    assert status == 1
    # What failed is said as it happens, on stderr.
    assert said.splitlines()[-1] == "cpu/1: ValueError: not yet"
    assert all(line.startswith("cpu/1: ") for line in said.splitlines())
    last = json.loads(told[-1])
    assert (last["node"], last["state"]) == (None, "failed")


@pytest.mark.nightly
def test_it_needs_no_database_of_ones_own(directory: Path) -> None:
    """It makes an embedded one, of which nothing runs any more when the command has ended.

    On each change two of them do so at once, in test_cli_here_stops.py.
    """
    (directory / "film.yaml").write_text(FILM, encoding="utf-8")
    environment = worker_environment("") | unset_environment(directory)
    environment["PYTHONPATH"] += f":{Path(__file__).parents[2]}"
    options = ("-i", "title=Sea", "--here", "--app", "support.tasks.worker_tasks")
    done = subprocess.run(
        [sys.executable, "-m", "queue_workflows", "run", "start", "film.yaml", *options],
        cwd=directory,
        env={name: value for name, value in environment.items() if name != "QWF_DB_URL"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].endswith("run completed")
    assert [line for line in done.stderr.splitlines() if "embedded Postgres" not in line] == []
    until(lambda: processes_below(directory) == [], "all is gone")


def test_ctrl_c_ends_it_and_leaves_the_run_open(qwf_dsn: str, place: Path) -> None:
    """The job is given back within the grace, uncounted, and where the run goes on is told."""
    process = begin(qwf_dsn, place, "polite.yaml", "-i", f"directory={place}", "-i", "name=a", "--here")
    until((place / "a.begun").exists, "the job runs")
    process.send_signal(signal.SIGINT)
    status, _, said = ended(process)
    assert status == 130
    assert "is not over: it goes on where a worker of cpu and an orchestrator run\n" in said
    assert jobs(qwf_dsn) == [("queued", 0)]


def test_a_second_ctrl_c_does_not_wait(qwf_dsn: str, place: Path) -> None:
    """For a job that hears nothing, within a grace that nobody would wait for."""
    arguments = ("deaf.yaml", "-i", f"directory={place}", "-i", "name=a", "--here")
    process = begin(qwf_dsn, place, *arguments, QWF_GRACE_S="3600")
    until((place / "a.begun").exists, "the job runs")
    process.send_signal(signal.SIGINT)
    until(lambda: is_stopping(process.pid), "the first is heard")
    process.send_signal(signal.SIGINT)
    status, _, said = ended(process)
    assert status == 130
    assert "is not over: it goes on where" in said


def is_stopping(pid: int) -> bool:
    """Whether the process has taken the signal that was sent to it."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    pending = [line.split()[1] for line in status.splitlines() if line.startswith(("SigPnd", "ShdPnd"))]
    return not any(int(mask, 16) & 1 << (signal.SIGINT - 1) for mask in pending)


def jobs(dsn: str) -> list[tuple[str, int]]:
    """Each node job's status, and how often it failed."""
    with psycopg.connect(dsn) as connection:
        return connection.execute("SELECT status, failures FROM workflow_node_jobs ORDER BY id").fetchall()


@pytest.mark.nightly
def test_two_at_once_share_a_database(qwf_dsn: str, place: Path) -> None:
    """Their roles work for both, and the one that ends first leaves the other whole.

    On each change one of two is stopped, in test_cli_here_stops.py.
    """
    both = [begin(qwf_dsn, place, "film.yaml", "-i", f"title={name}", "--here") for name in ("Sea", "Sky")]
    for process in both:
        status, told, said = ended(process)
        assert (status, said) == (0, "")
        assert told[-1].endswith("run completed")
    with psycopg.connect(qwf_dsn) as connection:
        found = connection.execute("SELECT status, outputs ->> 'title' FROM workflow_runs ORDER BY 2")
        assert found.fetchall() == [("completed", "Sea"), ("completed", "Sky")]


@pytest.mark.slow
def test_without_the_rights_of_the_roles_it_ends_and_says_so(qwf_new_database, qwf_role_suffix, place):
    """A producer may start a run, but may not do its work: the roles end, and nothing tries for ever."""
    with least_privilege(qwf_new_database(template=False), qwf_role_suffix) as roles:
        bootstrap(roles.dsn("migrator"))
        roles.grant()
        process = begin(roles.dsn("producer"), place, "film.yaml", "-i", "title=Sea", "--here")
        status, _, said = ended(process)
    assert status not in (0, 130)
    assert "permission denied" in said or "rights" in said
    assert "Traceback" not in said


@pytest.mark.slow
def test_what_nobody_runs_is_said_with_what_starts_it(qwf_dsn: str, place: Path) -> None:
    """Each role once, for as long as it is missing; then the run goes on."""
    process = begin(qwf_dsn, place, "film.yaml", "-i", "title=Sea", "--watch")
    assert process.stderr
    assert [process.stderr.readline() for _ in range(3)] == [
        "no orchestrator runs: `qwf orchestrator` starts one\n",
        "no worker of cpu runs: `qwf worker --queue cpu` starts one\n",
        "`qwf up` runs all roles in one terminal; with --here `qwf run start` needs none\n",
    ]
    with running_orchestrator(qwf_dsn), running_worker(qwf_dsn, "--queue", "cpu"):
        gpu = "no worker of gpu runs: `qwf worker --queue gpu` starts one\n"
        assert gpu in iter(process.stderr.readline, "")
        with running_worker(qwf_dsn, "--queue", "gpu"):
            status, told, _ = ended(process)
    assert status == 0
    assert told[-1].endswith("run completed")
