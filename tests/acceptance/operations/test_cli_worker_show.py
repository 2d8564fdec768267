"""`qwf workers show` and `qwf workers host`: one worker with its jobs, and all that is on one host."""

from __future__ import annotations

import json
from collections.abc import Iterator

import psycopg
import pytest
from support.processes.commands import Said, qwf_here
from support.rows.jobs import CLEAR_WITH_WORKERS, Jobs, jobs_of

from queue_workflows.repositories import HeartbeatRepository, WorkerControlRepository
from queue_workflows.repositories.workers.hardware import HardwareRepository
from queue_workflows.repositories.workers.quarantine import QuarantineRepository

READING = {
    "machine": {
        "cpu_percent": 25.0,
        "cores": 16,
        "load": [1.25, 0.5, 0.0],
        "memory_total_mb": 65536,
        "memory_used_mb": 16384,
    },
    "containers": None,
    "devices": [{"id": "amd:1", "vendor": "amd", "number": 1, "is_split": False}],
    "troubles": [],
}


@pytest.fixture
def jobs(qwf_dsn: str) -> Iterator[Jobs]:
    """No rows of jobs, workers, wishes or machines."""
    with jobs_of("ingest", qwf_dsn) as jobs:
        jobs.connection.execute(CLEAR_WITH_WORKERS + "; TRUNCATE host_hardware")
        yield jobs


def qwf(dsn: str, *arguments: str, status: int = 0) -> Said:
    return qwf_here("--db", dsn, *arguments, status=status)


def beat(conn: psycopg.Connection, worker_id: str, host: str = "h1", queue: str = "fetch") -> None:
    HeartbeatRepository(conn).beat(worker_id, host_label=host, queue=queue, pid=7, state="busy")


def test_a_worker_is_shown_with_its_jobs_and_every_wish(jobs: Jobs, qwf_dsn: str) -> None:
    """The jobs by the rows, the longest first; the wish that it obeys before the others."""
    beat(jobs.connection, "w1")
    beat(jobs.connection, "w2")
    first, second, _ = jobs.enqueue(3, host_lock="camera")
    jobs.claim("w1")
    jobs.claim("w1")
    jobs.claim("w2")
    control = WorkerControlRepository(jobs.connection)
    control.set("*", "fetch", "pause", actor="bob")
    control.set("h1", "*", "off", actor="ann", reason="new disk")
    told = json.loads(qwf(qwf_dsn, "workers", "show", "w1", "--json").stdout)
    assert [(one["job"], one["title"], one["host_lock"]) for one in told["jobs"]] == [
        (f"ingest:{first}", "task", "camera"),
        (f"ingest:{second}", "task", "camera"),
    ]
    assert [(one["desired"], one["actor"]) for one in told["wishes"]] == [("off", "ann"), ("pause", "bob")]
    (listed,) = (
        one
        for one in json.loads(qwf(qwf_dsn, "workers", "list", "--json").stdout)["workers"]
        if one["worker_id"] == "w1"
    )
    assert {name: told[name] for name in ("state", "control", "obedience", "versions")} == {
        name: listed[name] for name in ("state", "control", "obedience", "versions")
    }
    table = qwf(qwf_dsn, "workers", "show", "w1").stdout
    assert f"ingest:{second}" in table
    assert table.splitlines()[-2:] == ["(h1, *) is off by ann: new disk", "(*, fetch) is paused by bob"]


def test_a_host_is_shown_with_all_that_is_on_it(jobs: Jobs, qwf_dsn: str) -> None:
    """Its workers and no other host's, the locks that their jobs hold, hardware, quarantined devices."""
    beat(jobs.connection, "w1")
    beat(jobs.connection, "w2", host="h2")
    (first, _) = jobs.enqueue(2, host_lock="camera")
    jobs.claim("w1")
    jobs.claim("w2")
    HardwareRepository(jobs.connection).report("h1", READING, every_s=5.0, parts=[])
    QuarantineRepository(jobs.connection).put("h1", "gpu", "amd:1", reason="memory in use", pid=7, told={})
    told = json.loads(qwf(qwf_dsn, "workers", "host", "h1", "--json").stdout)
    assert [one["worker_id"] for one in told["workers"]] == ["w1"]
    assert [(one["host_lock"], one["job"]) for one in told["locks"]] == [("camera", f"ingest:{first}")]
    assert told["hardware"]["devices"][0]["quarantined"] == "memory in use"
    assert [(one["device"], one["queue"]) for one in told["quarantined"]] == [("amd:1", "gpu")]
    (hardware_json,) = json.loads(qwf(qwf_dsn, "hw", "--host", "h1", "--json").stdout)["hosts"]
    assert told["hardware"].keys() == hardware_json.keys()
    table = qwf(qwf_dsn, "workers", "host", "h1", "--ascii").stdout
    assert "amd:1 (gpu) is quarantined: memory in use" in table
    assert "of 16 cores" in table


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("show", "nobody"), "there is no worker 'nobody'"),
        (("host", "nowhere"), "there is no host 'nowhere'"),
        (("host", "*"), "there is no host '*'"),
    ],
)
def test_what_is_not_there_is_one_line_and_2(
    jobs: Jobs, qwf_dsn: str, words: tuple[str, ...], said: str
) -> None:
    """With the command that lists what there is."""
    ended = qwf(qwf_dsn, "workers", *words, status=2)
    assert said in ended.stderr
    assert (ended.stdout, ended.stderr.count("\n")) == ("", 1)
    assert "qwf workers list --all" in ended.stderr
