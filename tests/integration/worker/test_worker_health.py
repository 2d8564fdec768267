"""`qwf worker --health` and `--health-file`, asked as a probe does."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.connections.kept import own_connection
from support.processes.workers import running_worker, until
from support.rows.jobs import jobs_of

from queue_workflows.cli.main import run
from queue_workflows.repositories import WorkerControlRepository
from queue_workflows.roles.probes.health import HealthReport
from queue_workflows.roles.probes.servers import HealthServer


@pytest.fixture
def control(qwf_dsn: str) -> Iterator[WorkerControlRepository]:
    """On empty tables."""
    with own_connection(qwf_dsn) as connection:
        connection.execute("TRUNCATE ingest_jobs, worker_heartbeats, worker_control")
        yield WorkerControlRepository(connection)


def address(worker: subprocess.Popen[str]) -> str:
    """Where it says that it answers."""
    while line := worker.stderr.readline():
        if found := re.search(r"health: (http://127\.0\.0\.1:\d+)/live", line):
            return found[1]
    raise AssertionError("it did not say where it answers")


def get(url: str) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(url, timeout=150) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        return refused.code, json.load(refused)


def test_a_worker_is_ready_while_it_can_claim(qwf_dsn, control, tmp_path: Path):
    """Idle it is; paused it lives and is not; on again it is; and the file says the same until it stops."""
    file = tmp_path / "health"

    def written() -> dict[str, Any]:
        return json.loads(file.read_text())

    with running_worker(qwf_dsn, "--health", "0", "--health-file", str(file)) as worker:
        url = address(worker)
        until(lambda: get(f"{url}/ready")[0] == 200)
        status, told = get(f"{url}/live")
        assert (status, told["live"], told["ready"], told["pid"]) == (200, True, True, worker.pid)
        assert told["worker_id"].startswith("here:fetch:")
        assert get(f"{url}/elsewhere")[0] == 404
        until(lambda: written()["ready"])
        first = file.stat().st_mtime_ns
        until(lambda: file.stat().st_mtime_ns > first)
        control.set("*", "fetch", "pause", actor="ann", reason="maintenance")
        until(lambda: get(f"{url}/ready")[0] == 503)
        status, told = get(f"{url}/ready")
        assert (status, told["live"], told["reasons"]) == (
            503,
            True,
            ["the operator asked for pause: maintenance"],
        )
        assert get(f"{url}/live")[0] == 200
        until(lambda: not written()["ready"])
        control.clear("*", "fetch", actor="ann")
        until(lambda: get(f"{url}/ready")[0] == 200)
        worker.terminate()
        assert worker.wait(150) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_container_asks_with_the_command_itself(qwf_dsn, control, capsys):
    """`qwf healthcheck`: 0 for 200, else 1 with the reason, and also where nothing answers."""
    with running_worker(qwf_dsn, "--health", "0") as worker:
        port = address(worker).rpartition(":")[2]
        until(lambda: run(["healthcheck", port, "/ready"]) == 0)
        assert run(["healthcheck", port]) == 0
        control.set("*", "fetch", "pause", actor="ann", reason="maintenance")
        until(lambda: run(["healthcheck", f"127.0.0.1:{port}", "ready"]) == 1)
        capsys.readouterr()
        assert run(["healthcheck", port, "/ready"]) == 1
        said = f"127.0.0.1:{port}/ready answered 503: the operator asked for pause: maintenance\n"
        assert capsys.readouterr() == ("", said)
        assert run(["healthcheck", port, "/elsewhere"]) == 1
        assert f"127.0.0.1:{port}/elsewhere answered 404: " in capsys.readouterr().err
        assert run(["healthcheck", port]) == 0
    assert run(["healthcheck", port]) == 1
    assert f"no answer from 127.0.0.1:{port}: " in capsys.readouterr().err


def test_a_worker_that_waits_for_its_schema_lives(qwf_new_database):
    """And is not ready yet."""
    dsn = qwf_new_database(template=False)
    with running_worker(dsn, "--health", "0", "--schema-wait", "600") as worker:
        url = address(worker)
        assert get(f"{url}/live")[0] == 200
        assert get(f"{url}/ready")[0] == 503


def test_a_worker_that_imports_what_jobs_wait_for_is_not_ready(qwf_dsn, tmp_path: Path):
    """It has a database and beats, and claims nothing before it knows what it can run."""
    gate = tmp_path / "gate"
    with jobs_of("node", qwf_dsn) as nodes:
        (job,) = nodes.enqueue(1, node_module="gated")
        nodes.repository.hold(nodes.one(), "unknown_module", "gated", delay_s=86_400)
        options = ("--queue", "cpu", "--health", "0")
        with running_worker(qwf_dsn, *options, GATE_OF_THE_IMPORT=str(gate)) as worker:
            url = address(worker)
            told = until(lambda: (told := get(f"{url}/ready"))[1]["worker_id"] and told)
            assert told[0] == 503
            assert "it is starting" in told[1]["reasons"]
            gate.touch()
            until(lambda: get(f"{url}/ready")[0] == 200)
            until(lambda: nodes.seen(job, "status") == ("completed",))


@pytest.mark.slow
def test_a_port_that_is_taken_is_refused(qwf_dsn, tmp_path: Path):
    """78, with what to do; so is a file that cannot be written."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with running_worker(qwf_dsn, "--health", port) as worker:
            assert worker.wait(150) == 78
            assert f"127.0.0.1:{port}" in worker.stderr.read()
    with running_worker(qwf_dsn, "--health-file", str(tmp_path / "no" / "file")) as worker:
        assert worker.wait(150) == 78


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "-1", "1e9", "soon", ""])
@pytest.mark.parametrize("command", [["worker", "--queue", "fetch"], ["supervisor", "--worker", "fetch"]])
def test_a_number_that_is_none_is_a_usage_error(capsys, command, number):
    """A grace that is not a number would be one for ever, or none at all."""
    assert run([*command, f"--grace={number}"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "--grace" in said


@pytest.mark.parametrize(
    "option",
    [
        "--schema-wait=nan",
        "--max-jobs=0",
        "--recycle-jobs=-1",
        "--recycle-mb=1.5",
        "--health=70000",
        "--health=:1",
        "--health=x",
    ],
)
def test_other_odd_options_are_usage_errors(capsys, option):
    """In one line that names the option."""
    assert run(["worker", "--queue", "fetch", option]) == 2
    assert option.partition("=")[0] in capsys.readouterr().err


def test_a_queue_that_nobody_configured_is_refused(qwf_dsn, capsys):
    """By both commands, with the names that there are: the worker would wait on it for ever."""
    for command in (["worker", "--queue", "nope"], ["supervisor", "--worker", "nope"]):
        assert run(["--db", qwf_dsn, *command]) == 78
        said = capsys.readouterr().err
        assert "no queue 'nope'; known are cpu, fetch, gpu, hooks, load" in said


def test_two_workers_do_not_share_a_port(capsys):
    """Nor a file: the second could only end again and again."""
    assert run(["supervisor", "--worker", "fetch:2 --health 8080"]) == 2
    assert "for one worker" in capsys.readouterr().err
    for option in ("--health 8080", "--health-file /tmp/health"):
        workers = ["--worker", f"fetch {option}", "--worker", f"load {option}"]
        assert run(["supervisor", *workers]) == 2
        assert f"two workers cannot share {option.split()[0]}:" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["--help", "-h"])
def test_help_among_the_options_of_a_worker_is_a_usage_error(capsys, word):
    """Its answer would look like that of a supervisor that has done its work."""
    assert run(["supervisor", "--worker", f"fetch {word}"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "qwf worker --help" in said.err


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.skipif(not has_ipv6(), reason="there is no IPv6 loopback here")
def test_an_address_of_ipv6_is_answered_at():
    """With the brackets that an URL has."""
    with HealthServer(HealthReport(), ("::1", 0)) as server:
        assert get(f"http://[::1]:{server.port}/live")[0] == 200


@pytest.mark.slow
def test_who_drains_does_not_wait_for_a_server(capsys):
    """69 at once, though a worker that stays would wait for as long as it is told to."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    for option in ("--drain", "--once"):
        dsn = f"postgresql://x@127.0.0.1:{port}/x"
        with running_worker(dsn, option, "--schema-wait", "3600", QWF_APP="") as worker:
            assert worker.wait(150) == 69
            assert "nothing listens there" in worker.stderr.read()
