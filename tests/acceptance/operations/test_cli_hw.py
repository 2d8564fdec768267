"""`qwf hw` and what operators see of devices: figures, staleness, quarantines, and how these end."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.commands import Said, qwf_here
from support.processes.vendor_tools import uuid_of
from support.rows.jobs import CLEAR_WITH_WORKERS, jobs_of
from support.rows.schemas import start_qwf

from queue_workflows.repositories import HeartbeatRepository
from queue_workflows.repositories.workers.hardware import HardwareRepository
from queue_workflows.repositories.workers.hardware_history import HardwareHistoryRepository
from queue_workflows.repositories.workers.quarantine import QuarantineRepository

REASON = "40,000 MB of its memory are in use 30 s after h1:gpu:5f0c had ended; 3 MB were before it began"
CARD = {
    "id": uuid_of(0),
    "vendor": "nvidia",
    "number": 0,
    "uuid": uuid_of(0),
    "name": "NVIDIA H100 80GB HBM3",
    "utilisation_percent": 7.0,
    "memory_total_mb": 81920,
    "memory_used_mb": 40960,
    "temperature_c": 31.0,
    "power_w": 69.97,
    "power_limit_w": 700.0,
    "is_split": False,
}
READING: dict[str, Any] = {
    "machine": {
        "cpu_percent": 25.0,
        "cores": 16,
        "load": [1.25, 0.5, 0.0],
        "memory_total_mb": 65536,
        "memory_used_mb": 16384,
    },
    "containers": {
        "ours": {"containers": 1, "cpu_percent": 10.0, "memory_mb": 4096},
        "rest": {"cpu_percent": 15.0, "memory_mb": 12288},
    },
    "devices": [
        CARD | {"worker": "h1:gpu:5f0c"},
        {"id": "amd:1", "vendor": "amd", "number": 1, "is_split": False},
    ],
    "troubles": ["amd-smi gave no answer within 10 s"],
}


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    with own_connection(qwf_dsn) as connection:
        connection.execute(
            CLEAR_WITH_WORKERS + "; TRUNCATE worker_control, host_hardware, host_hardware_history, audit_log"
        )
        yield connection


def qwf(dsn: str, *arguments: str, status: int = 0) -> Said:
    return qwf_here("--db", dsn, *arguments, status=status)


def report(conn: psycopg.Connection, host: str = "h1", **more: Any) -> None:
    HardwareRepository(conn).report(host, READING | more, every_s=5.0, parts=[])


def age(conn: psycopg.Connection, host: str, seconds: float) -> None:
    conn.execute(
        "UPDATE host_hardware SET sampled_at = now() - make_interval(secs => %s) WHERE host_label = %s",
        [seconds, host],
    )


def put_aside(conn: psycopg.Connection) -> None:
    QuarantineRepository(conn).put("h1", "gpu", uuid_of(0), reason=REASON, pid=7, told=CARD)


def test_a_machine_is_drawn(qwf_dsn, conn) -> None:
    """Bars for what there is a whole of; a question mark for what nobody told."""
    report(conn)
    head, *lines = qwf(qwf_dsn, "hw", "--ascii").stdout.splitlines()
    assert re.fullmatch(r"h1  [0-9]+s ago", head)
    shares = "ours  10%, the rest  15%", "ours 4.0 GB in 1 container, the rest 12.0 GB"
    about = "31 C   70 of 700 W   NVIDIA H100 80GB HBM3   worker h1:gpu:5f0c"
    assert lines == [
        f"  cpu           #####...............    25%   of 16 cores   load 1.2 0.5 0.0   {shares[0]}",
        f"  memory        #####...............   16.0 of 64.0 GB   {shares[1]}",
        f"  nvidia0       ##########..........   40.0 of 80.0 GB   busy   7%   {about}",
        "  amd1          ....................   ? GB   busy    ?   amd",
        "  ! amd-smi gave no answer within 10 s",
    ]


def test_a_machine_that_nobody_looks_at_is_stale(qwf_dsn, conn) -> None:
    """Its figures are those of then; after a day it is shown on request only."""
    report(conn)
    report(conn, "h2", devices=[], troubles=[], containers=None)
    age(conn, "h1", 300)
    lines = qwf(qwf_dsn, "hw").stdout.splitlines()
    heads = [line for line in lines if line.startswith("h")]
    assert heads[0].startswith("h1  stale: nothing was heard for 5m")
    assert re.fullmatch(r"h2  [0-9]+s ago", heads[1])
    age(conn, "h1", 100_000)
    assert "h1" not in qwf(qwf_dsn, "hw").stdout
    assert "h1" in qwf(qwf_dsn, "hw", "--all").stdout
    assert qwf(qwf_dsn, "hw", "--host", "h2", "--json").stdout.count('"host_label"') == 1


def test_machines_read_the_same(qwf_dsn, conn) -> None:
    """--json has the reading, and with it the reasons of quarantines."""
    report(conn)
    put_aside(conn)
    (host,) = json.loads(qwf(qwf_dsn, "hw", "--json").stdout)["hosts"]
    assert {name: host[name] for name in ("host_label", "stale", "every_s", "machine", "containers")} == {
        "host_label": "h1",
        "stale": False,
        "every_s": 5.0,
        "machine": READING["machine"],
        "containers": READING["containers"],
    }
    assert host["devices"][0] == READING["devices"][0] | {"quarantined": REASON}


def past(conn: psycopg.Connection, minutes: int, cpu: float | None, **more: Any) -> None:
    """A reading of so many minutes ago."""
    reading = READING | {"machine": READING["machine"] | {"cpu_percent": cpu}} | more
    HardwareHistoryRepository(conn).keep("h1", reading)
    conn.execute(
        "UPDATE host_hardware_history SET slot = -1 - %(minutes)s,"
        " sampled_at = now() - %(minutes)s * interval '1 min' WHERE slot >= 0",
        {"minutes": minutes},
    )


def test_the_last_hour_is_drawn(qwf_dsn, conn) -> None:
    """A column a minute, blank where nobody looked; a card that told nothing has no curve."""
    report(conn)
    report(conn, "h2")
    past(conn, 70, 100.0)
    for minute, cpu in ((59, 100.0), (30, 0.0), (29, None), (1, 50.0), (0, 25.0)):
        past(conn, minute, cpu)
    lines = qwf(qwf_dsn, "hw", "--history").stdout.splitlines()
    head, cpu, memory, busy, used, blank, other = lines
    assert (head, blank, other) == ("h1  the last hour", "", "h2  nothing was kept of the last hour")
    curve = cpu.removeprefix("  cpu           ")[:60]
    assert (curve[:3], curve[28:32], curve[57:]) == ("## ", " __ ", " ==")
    assert cpu.endswith("now  25%   highest 100%   busy")
    assert memory.endswith("now  25%   highest  25%   in use")
    assert busy.split()[0] == used.split()[0] == "nvidia0"
    assert busy.endswith("now   7%   highest   7%   busy")
    assert used.endswith("now  50%   highest  50%   memory in use")
    assert qwf(qwf_dsn, "hw", "--history", "--ascii").stdout.isascii()


def test_the_last_hour_reads_the_same(qwf_dsn, conn) -> None:
    """--json has each reading with what was told of each device, the oldest first."""
    report(conn)
    for minute, cpu in ((70, 9.0), (2, 1.5), (1, None)):
        past(conn, minute, cpu, devices=[CARD])
    (host,) = json.loads(qwf(qwf_dsn, "hw", "--history", "--host", "h1", "--json").stdout)["hosts"]
    assert host["host_label"] == "h1"
    first, second = host["readings"]
    assert first["sampled_at"] < second["sampled_at"]
    assert [one.pop("sampled_at") and one for one in (first, second)] == [
        {
            "cpu_percent": cpu,
            "memory_used_mb": 16384,
            "memory_total_mb": 65536,
            "devices": [
                {
                    "id": uuid_of(0),
                    "vendor": "nvidia",
                    "number": 0,
                    "name": "NVIDIA H100 80GB HBM3",
                    "utilisation_percent": 7.0,
                    "memory_total_mb": 81920,
                    "memory_used_mb": 40960,
                }
            ],
        }
        for cpu in (1.5, None)
    ]
    told = json.loads(qwf(qwf_dsn, "workers", "host", "h1", "--json").stdout)
    assert [one["cpu_percent"] for one in told["history"]] == [1.5, None]


def test_nobody_has_told_anything(qwf_dsn, conn) -> None:
    """Said beside the output, which is empty."""
    said = qwf(qwf_dsn, "hw")
    assert said.stdout == ""
    assert said.stderr.startswith("no supervisor has told of its machine")
    assert qwf(qwf_dsn, "hw", "--history") == said


def test_without_a_database_it_is_69(conn) -> None:
    """In one line."""
    said = qwf("postgresql://u@127.0.0.1:1/none", "hw", status=69)
    assert len(said.stderr.splitlines()) == 1


@pytest.mark.slow
def test_watching_goes_on_until_ctrl_c(qwf_dsn, conn) -> None:
    """A line each time for a machine; 130 without a word of ours in the end."""
    report(conn)
    watcher = start_qwf("--db", qwf_dsn, "hw", "--watch", "--every", "0.1s", "--json")
    try:
        assert watcher.stdout
        for _ in range(2):
            assert json.loads(watcher.stdout.readline())["hosts"][0]["host_label"] == "h1"
        watcher.send_signal(signal.SIGINT)
        _, err = watcher.communicate(timeout=150)
    finally:
        watcher.kill()
    assert watcher.returncode == 130
    assert "Traceback" not in err


def test_a_quarantined_device_stands_among_the_workers(qwf_dsn, conn) -> None:
    """With the reason and what to do; nothing is waited for that is no process."""
    put_aside(conn)
    said = qwf(qwf_dsn, "workers", "list").stdout.splitlines()
    assert said[1].split()[:4] == ["h1", "gpu", "7", "quarantined"]
    assert (
        said[2] == f"{uuid_of(0)} of h1 is quarantined: {REASON} — `qwf workers on h1 gpu` has it tried again"
    )
    qwf(qwf_dsn, "workers", "pause", "h1", "gpu", "--wait", "--timeout", "60s")
    said = qwf(qwf_dsn, "workers", "on", "h1", "gpu", "--actor", "ann", "--reason", "driver reloaded")
    assert said.stdout.splitlines() == [
        "(h1, gpu) is on",
        f"{uuid_of(0)} of h1 is tried again; it was: {REASON}",
    ]
    logged = conn.execute(
        "SELECT actor, action, subject_id, reason, details FROM audit_log WHERE subject_kind = 'device'"
    ).fetchall()
    assert logged == [("ann", "workers.on", f"h1 {uuid_of(0)}", "driver reloaded", {"was": REASON})]
    assert qwf(qwf_dsn, "workers", "on", "h1", "gpu").stdout == "(h1, gpu): nothing was asked of it\n"


def test_on_lets_only_devices_of_that_host_and_queue_be_tried_again(qwf_dsn, conn) -> None:
    """A star is any of them."""
    put_aside(conn)
    qwf(qwf_dsn, "workers", "on", "h2", "gpu")
    qwf(qwf_dsn, "workers", "on", "h1", "cpu")
    assert len(QuarantineRepository(conn).of()) == 1
    qwf(qwf_dsn, "workers", "on", "*", "gpu")
    assert QuarantineRepository(conn).of() == []


def test_a_quarantine_is_never_forgotten_with_the_silent(qwf_dsn, conn) -> None:
    """However long its supervisor is away, it ends when somebody says so."""
    put_aside(conn)
    conn.execute("UPDATE worker_heartbeats SET last_seen = now() - interval '30 days'")
    assert HeartbeatRepository(conn).forget(older_than_s=1.0) == 0
    assert "silent, was quarantined" in qwf(qwf_dsn, "workers", "list").stdout


def test_explain_and_doctor_name_the_device(qwf_dsn, conn) -> None:
    """Why a job waits while a card is there."""
    put_aside(conn)
    with jobs_of("node", qwf_dsn) as jobs:
        (job,) = jobs.enqueue(queue="gpu")
        told = json.loads(qwf(qwf_dsn, "explain", f"node:{job}", "--json").stdout)
    reasons = {one["code"]: one["text"] for one in told["reasons"]}
    assert reasons["device_quarantined"] == (
        f"no worker is started on {uuid_of(0)} of h1, which is quarantined: {REASON}"
        " — `qwf workers on h1 gpu` has it tried again"
    )
    assert "no_worker" in reasons
    checks = {one["name"]: one for one in json.loads(qwf(qwf_dsn, "doctor", "--json").stdout)["checks"]}
    assert checks["devices"]["status"] == "warn"
    assert checks["devices"]["advice"] == "see what holds its memory, then `qwf workers on h1 gpu`"
    qwf(qwf_dsn, "workers", "on", "h1", "gpu")
    checks = {one["name"]: one for one in json.loads(qwf(qwf_dsn, "doctor", "--json").stdout)["checks"]}
    assert checks["devices"]["status"] == "ok"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--worker", "cpu:each"], "after the colon comes a number from 1 to 1000, or it is gpu:each"),
        (["--worker", "gpu:each", "--worker", "gpu:each"], "gpu:each gives every device its worker"),
        (["--worker", "gpu:each", "--worker", "gpu:2"], "gpu:each gives every device its worker"),
        (["--worker", "gpu:each --health 8080"], "--health is for one worker: two cannot share it"),
        (["--worker", "gpu:each --queue cpu"], "--queue goes to the supervisor"),
        (["--worker", "gpu:all"], "after the colon comes a number"),
    ],
)
def test_wrong_asks_for_workers_on_devices_are_refused(options, said) -> None:
    """In one line, before anything is looked at or started."""
    assert said in qwf_here("supervisor", *options, status=2).stderr


def test_up_has_no_workers_on_devices() -> None:
    """It is for one terminal; the supervisor has them."""
    assert "gpu:each is for `qwf supervisor`" in qwf_here("up", "--worker", "gpu:each", status=2).stderr


def test_a_reading_is_stored_and_told(qwf_dsn, conn) -> None:
    """One row a machine, and each part of the message to whoever listens."""
    conn.execute("LISTEN hw_metrics")
    HardwareRepository(conn).report("h1", READING, every_s=5.0, parts=["one", "two"])
    HardwareRepository(conn).report("h1", READING | {"devices": []}, every_s=2.0, parts=["three"])
    told = [note.payload for note in conn.notifies(timeout=150, stop_after=3)]
    assert told == ["one", "two", "three"]
    (one,) = HardwareRepository(conn).readings()
    assert (one.host_label, one.every_s, one.reading["devices"]) == ("h1", 2.0, [])
    assert HardwareRepository(conn).forget(older_than_s=3600) == 0
    age(conn, "h1", 7200)
    assert HardwareRepository(conn).forget(older_than_s=3600) == 1
