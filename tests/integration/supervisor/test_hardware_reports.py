"""What a supervisor tells the database of its devices, and hears of them there; and a real one that does."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from support.processes.programs import gone
from support.processes.supervised import HOST, over_stand_ins
from support.processes.vendor_tools import VendorTools, card, uuid_of
from support.processes.workers import until
from support.rows.jobs import Jobs

from queue_workflows.repositories import HeartbeatRepository
from queue_workflows.repositories.workers.hardware import HardwareRepository
from queue_workflows.repositories.workers.hardware_history import (
    KEPT_S,
    SLOTS,
    STEP_S,
    HardwareHistoryRepository,
)
from queue_workflows.repositories.workers.quarantine import QuarantineRepository
from queue_workflows.roles.supervisor.hardware_reports import HardwareReports
from queue_workflows.telemetry.cgroup import Share
from queue_workflows.telemetry.hw.device import Device
from queue_workflows.telemetry.hw.machine import Machine
from queue_workflows.telemetry.hw.reading import Devices, Reading

CARD = Device("nvidia", 0, "GPU-0a", memory_used_mb=3)
READING = Reading(Machine(40.0, 8, None, 1000, 600), Devices((CARD,), {}), Share(2, 30.0, 200))


@pytest.fixture
def clean(conn: psycopg.Connection) -> psycopg.Connection:
    conn.execute("TRUNCATE host_hardware, host_hardware_history, audit_log")
    return conn


def reports() -> HardwareReports:
    return HardwareReports("h1", "gpu", every_s=5.0, wall=lambda: 7.0)


def test_a_quarantine_is_written_kept_fresh_and_ends_when_somebody_deletes_it(clean) -> None:
    """The next supervisor of the host knows it from its first round on."""
    first = reports()
    first.quarantine("GPU-0a", "full", CARD.plain())
    assert first.is_quarantined("GPU-0a")
    first.run(clean)
    (row,) = HeartbeatRepository(clean).list()
    assert (row.worker_id, row.state, row.state_reason, row.pid) == (
        "h1:gpu:GPU-0a",
        "quarantined",
        "full",
        os.getpid(),
    )
    assert row.load["device"] == "GPU-0a"
    clean.execute("UPDATE worker_heartbeats SET last_seen = now() - interval '1 h'")

    second = reports()
    assert (second.is_open, second.is_quarantined("GPU-0a")) == (False, False)
    second.run(clean)
    assert (second.is_open, second.is_quarantined("GPU-0a")) == (True, True)
    assert QuarantineRepository(clean).of()[0].age_s < 3600

    QuarantineRepository(clean).clear("*", "gpu", actor="me")
    for one in (first, second):
        one.run(clean)
        assert not one.is_quarantined("GPU-0a")
    assert HeartbeatRepository(clean).list() == []


def test_a_quarantine_is_written_no_oftener_than_a_beat(clean) -> None:
    """Though it is asked for each second, as its end is heard of that way."""
    ours = reports()
    ours.quarantine("GPU-0a", "full", CARD.plain())
    for _ in range(3):
        ours.run(clean)
    seen = "SELECT last_seen, xmin::text FROM worker_heartbeats"
    before = clean.execute(
        "UPDATE worker_heartbeats SET last_seen = now() + interval '1 h' RETURNING last_seen"
    )
    (at,) = before.fetchone()
    ((_, version),) = clean.execute(seen).fetchall()
    ours.run(clean)
    assert clean.execute(seen).fetchall() == [(at, version)]
    clean.execute("UPDATE worker_heartbeats SET last_seen = now() - interval '6 s'")
    ours.run(clean)
    assert QuarantineRepository(clean).of()[0].age_s < 6
    assert ours.is_quarantined("GPU-0a")


def test_other_hosts_and_queues_are_not_ours(clean) -> None:
    """Their rows are neither read nor kept."""
    rows = QuarantineRepository(clean)
    rows.put("h2", "gpu", "GPU-0a", reason="full", pid=7, told={})
    rows.put("h1", "other", "GPU-0a", reason="full", pid=7, told={})
    ours = reports()
    ours.run(clean)
    assert not ours.is_quarantined("GPU-0a")


def test_a_reading_is_stored_with_what_the_containers_leave(clean) -> None:
    """The rest is the machine's less ours; the message says the same."""
    clean.execute("LISTEN hw_metrics")
    ours = reports()
    ours.publish(READING)
    ours.run(clean)
    ours.run(clean)
    (stored,) = HardwareRepository(clean).readings()
    assert stored.reading["containers"] == {
        "ours": {"containers": 2, "cpu_percent": 30.0, "memory_mb": 200},
        "rest": {"cpu_percent": 10.0, "memory_mb": 400},
    }
    (note,) = clean.notifies(timeout=150, stop_after=1)
    head = {"host": "h1", "at": 7.0, "every_s": 5.0, "part": 1, "parts": 1}
    assert json.loads(note.payload) == head | stored.reading


def test_of_several_supervisors_the_one_with_the_devices_is_heard(clean) -> None:
    """Others of its host have less to say, until nothing was heard of it for some looks."""

    def told() -> tuple[int, int]:
        (stored,) = HardwareRepository(clean).readings()
        return stored.reading["supervisor"]["devices"], len(stored.reading["devices"])

    giving, seeing, blind, again = reports(), reports(), reports(), reports()
    giving.devices = again.devices = 1
    nothing = replace(READING, devices=Devices((), {}))
    clean.execute("LISTEN hw_metrics")
    for one, reading, heard in (
        (blind, nothing, (0, 0)),
        (seeing, READING, (0, 1)),
        (blind, nothing, (0, 1)),
        (giving, READING, (1, 1)),
        (seeing, READING, (1, 1)),
        (giving, nothing, (1, 0)),
        (seeing, READING, (1, 0)),
        (again, READING, (1, 1)),
    ):
        one.publish(reading)
        one.run(clean)
        assert told() == heard
    assert len(list(clean.notifies(timeout=0))) == 5
    clean.execute("UPDATE host_hardware SET sampled_at = now() - interval '16 s'")
    blind.publish(nothing)
    blind.run(clean)
    assert told() == (0, 0)


def test_a_reading_of_each_half_minute_is_kept(clean) -> None:
    """Of the one supervisor that is heard; with what is drawn of each device, and no more."""
    at = [float(STEP_S)]
    giving, blind = (HardwareReports("h1", "gpu", every_s=5.0, wall=lambda: at[0]) for _ in range(2))
    giving.devices = 1
    for seconds, cpu in ((0, 40.0), (5, 50.0), (29, 60.0), (30, 70.0)):
        at[0] = STEP_S + seconds
        giving.publish(replace(READING, machine=replace(READING.machine, cpu_percent=cpu)))
        giving.run(clean)
        blind.publish(replace(READING, devices=Devices((), {})))
        blind.run(clean)
        if seconds == 29:
            # The server's clock stands still in between.
            clean.execute("UPDATE host_hardware_history SET slot = mod(slot + 1, %s)", [SLOTS])
    told = HardwareHistoryRepository(clean).readings("h1")
    assert [(one.cpu_percent, one.memory_used_mb, one.memory_total_mb) for one in told] == [
        (40.0, 600, 1000),
        (70.0, 600, 1000),
    ]
    assert told[0].devices == [{"id": "GPU-0a", "vendor": "nvidia", "number": 0, "memory_used_mb": 3}]


def test_readings_go_round_and_those_of_silent_machines_are_deleted(clean) -> None:
    """A machine has so many at the most, however long it is looked at; beyond them nothing is shown."""
    clean.execute(
        """
        INSERT INTO host_hardware_history
            (host_label, slot, sampled_at, cpu_percent, memory_used_mb, memory_total_mb, devices)
        SELECT host, n, now() - make_interval(secs => %(kept_s)s + 60), 99, 1, 2, '[]'
        FROM unnest(ARRAY['h1', 'gone']) AS host CROSS JOIN generate_series(0, %(slots)s - 1) AS n
        """,
        {"kept_s": KEPT_S, "slots": SLOTS},
    )
    rows = HardwareHistoryRepository(clean)
    assert rows.readings() == []
    ours = HardwareReports("h1", "gpu", every_s=5.0, chance=lambda: 1.0)
    ours.publish(READING)
    ours.run(clean)
    assert [(one.host_label, one.cpu_percent) for one in rows.readings()] == [("h1", 40.0)]
    count = "SELECT host_label, count(*) FROM host_hardware_history GROUP BY 1 ORDER BY 1"
    assert clean.execute(count).fetchall() == [("gone", SLOTS), ("h1", SLOTS)]
    forgetful = HardwareReports("h1", "gpu", every_s=5.0, chance=lambda: 0.0)
    forgetful.publish(READING)
    forgetful.run(clean)
    assert [host for host, _ in clean.execute(count)] == ["h1"]


def test_a_database_without_the_history_takes_the_last_reading(clean, caplog) -> None:
    """As one in which the worker's role has no right to the newer table yet."""
    ours = reports()
    clean.execute("ALTER TABLE host_hardware_history RENAME TO elsewhere")
    try:
        for _ in range(2):
            ours.publish(READING)
            ours.run(clean)
    finally:
        clean.execute("ALTER TABLE elsewhere RENAME TO host_hardware_history")
    assert caplog.text.count("the hardware's figures over time are not stored") == 1
    assert len(HardwareRepository(clean).readings()) == 1


def test_a_database_that_takes_no_readings_is_no_reason_to_do_without_the_rest(clean, caplog) -> None:
    """As one that is not migrated yet: said once, tried again later; quarantines go on."""
    ours = reports()
    clean.execute("ALTER TABLE host_hardware RENAME TO elsewhere")
    try:
        for _ in range(2):
            ours.publish(READING)
            ours.quarantine("GPU-0a", "full", {})
            ours.run(clean)
    finally:
        clean.execute("ALTER TABLE elsewhere RENAME TO host_hardware")
    assert caplog.text.count("the hardware's figures are not stored") == 1
    assert len(QuarantineRepository(clean).of("h1", "gpu")) == 1


@pytest.mark.slow
def test_a_real_supervisor_tells_of_its_machine(clean, qwf_dsn, tmp_path: Path) -> None:
    """With its cards, with workers on them or not; a tool that hangs keeps nobody from burying the dead."""
    tools = VendorTools(tmp_path / "bin")
    tools.cards(*(card(number) for number in range(16)))
    jobs = Jobs("ingest", clean)
    (job,) = jobs.enqueue()
    with psycopg.connect(qwf_dsn, autocommit=True) as ear:
        ear.execute("LISTEN hw_metrics")
        env = {"PATH": tools.path, "QWF_HW_SAMPLE_S": "0.2"}
        with over_stand_ins(qwf_dsn, "fetch --hold", env=env) as supervisor:
            (note,) = ear.notifies(timeout=150, stop_after=1)
            told = json.loads(note.payload)
            assert (told["host"], [one["uuid"] for one in told["devices"]]) == (
                HOST,
                [uuid_of(n) for n in range(16)],
            )
            (stored,) = HardwareRepository(clean).readings(HOST)
            assert stored.reading["machine"]["cores"] == os.cpu_count()
            until(lambda: HardwareHistoryRepository(clean).readings(HOST))
            (past, *_) = HardwareHistoryRepository(clean).readings(HOST)
            assert past.memory_total_mb == stored.reading["machine"]["memory_total_mb"]
            assert [one["id"] for one in past.devices] == [uuid_of(n) for n in range(16)]
            tools.hangs("nvidia-smi")
            asked = len(tools.asked("nvidia-smi"))
            until(lambda: len(tools.asked("nvidia-smi")) > asked)
            os.kill(int(supervisor.until(r"ready \S+ (\d+)")[1]), signal.SIGKILL)
            supervisor.until(f"took ingest job {job}")
            assert supervisor.stop() == 0
            until(lambda: gone(tools.hanging("nvidia-smi")))
