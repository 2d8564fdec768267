"""Heartbeats, operators' wishes, limits and schedules."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from queue_workflows.engine.upkeep.tick import sweep
from queue_workflows.errors import ConfigurationError, PayloadError
from queue_workflows.repositories import (
    HeartbeatRepository,
    IngestJobRepository,
    LimitRepository,
    NewNodeJob,
    NodeJobRepository,
    RunRepository,
    ScheduleRepository,
    WorkerControlRepository,
)
from queue_workflows.settings import Settings


def beat(repository: HeartbeatRepository, worker_id: str, **more: Any) -> None:
    """A sign of life."""
    repository.beat(worker_id, **{"host_label": "h1", "queue": "fetch", "pid": 7, "state": "idle"} | more)


def age(connection: psycopg.Connection, *worker_ids: str) -> None:
    """Make workers' last beats a minute old."""
    connection.execute(
        "UPDATE worker_heartbeats SET last_seen = last_seen - interval '1 minute' WHERE worker_id = ANY (%s)",
        (list(worker_ids),),
    )


def log(connection: psycopg.Connection) -> list[tuple[Any, ...]]:
    """The audit log since the last look."""
    return connection.execute(
        "WITH taken AS (DELETE FROM audit_log RETURNING *)"
        " SELECT actor, action, subject_id, reason, details FROM taken ORDER BY id"
    ).fetchall()


def test_a_beat_tells_how_many_others_there_are(qwf_conn: psycopg.Connection) -> None:
    """Of those that beat within the last minute."""
    workers = HeartbeatRepository(qwf_conn)
    for worker in ("w1", "w2", "w3"):
        beat(workers, worker)
    age(qwf_conn, "w3")
    again = {"host_label": "h1", "queue": "fetch", "pid": 7, "state": "idle"}
    assert workers.beat("w1", **again) == (1, 0)
    assert workers.beat("w3", **again) == (2, 0)


def test_a_beat_tells_how_many_look_at_the_same_queue(qwf_conn: psycopg.Connection) -> None:
    """Neither those that hear a wake nor those of other queues, nor those that have gone."""
    workers = HeartbeatRepository(qwf_conn)
    looks = {"load": {"rss_mb": 80, "looks": True}}
    beat(workers, "beside", **looks)
    beat(workers, "busy", state="busy", **looks)
    beat(workers, "gone", **looks)
    beat(workers, "elsewhere", queue="load", **looks)
    beat(workers, "hears")
    age(qwf_conn, "gone")
    told = workers.beat("w", host_label="h1", queue="fetch", pid=7, state="idle", **looks)
    assert told == (4, 2)


def test_beat_is_an_upsert(qwf_conn: psycopg.Connection) -> None:
    """The first beat makes the row, later ones replace what the worker says of itself."""
    workers = HeartbeatRepository(qwf_conn)
    beat(workers, "w1", versions={"python": "3.11"}, cached_models=("sdxl",), load={"cpu": 0.5})
    first = workers.fetch("w1")
    beat(
        workers,
        "w1",
        state="busy",
        state_reason="why",
        current_job=("node", 5),
        jobs_held=2,
        control_version=9,
    )
    second = workers.fetch("w1")
    assert first is not None
    assert second is not None
    assert (first.state, first.cached_models, first.load) == ("idle", ["sdxl"], {"cpu": 0.5})
    said = (
        second.state,
        second.state_reason,
        second.current_job_family,
        second.current_job_id,
        second.jobs_held,
        second.control_version,
    )
    assert said == ("busy", "why", "node", 5, 2, 9)
    assert (second.cached_models, second.load) == ([], {})
    assert second.started_at == first.started_at
    assert second.last_seen > first.last_seen


def test_silent_holders_are_flagged_once(qwf_conn: psycopg.Connection) -> None:
    """Only who is long silent and holds running jobs of either family; a fresh beat takes the flag back."""
    workers = HeartbeatRepository(qwf_conn)
    for worker in ("ingest", "node", "idle", "fresh"):
        beat(workers, worker)
    age(qwf_conn, "ingest", "node", "idle")
    jobs = IngestJobRepository(qwf_conn)
    for worker in ("ingest", "fresh"):
        jobs.enqueue("t", queue="fetch")
        jobs.claim("fetch", worker_id=worker, lease_s=5)
    run = RunRepository(qwf_conn).insert("w", spec={}, spec_hash="h")
    NodeJobRepository(qwf_conn).insert_many([NewNodeJob(run_id=run.id, node_id="n", queue="cpu")])
    qwf_conn.execute(
        "UPDATE workflow_node_jobs"
        " SET status = 'running', attempt = 1, claimed_by = 'node', lease_expires_at = now()"
    )

    assert {each.worker_id for each in workers.flag_dead(older_than_s=30)} == {"ingest", "node"}
    assert workers.flag_dead(older_than_s=30) == []
    assert {each.worker_id for each in workers.list(flagged_dead=True)} == {"ingest", "node"}
    beat(workers, "node")
    assert {each.worker_id for each in workers.list(flagged_dead=True)} == {"ingest"}
    assert {each.worker_id for each in workers.list(flagged_dead=False)} == {"node", "idle", "fresh"}
    age(qwf_conn, "node")
    assert [each.worker_id for each in workers.flag_dead(older_than_s=30)] == ["node"]


def test_a_sweep_flags_the_silent_and_forgets_the_gone(qwf_conn: psycopg.Connection) -> None:
    """Flagged is who holds a job; forgotten, after a day, who holds none; after an outage all have time."""
    workers, jobs = HeartbeatRepository(qwf_conn), IngestJobRepository(qwf_conn)
    for worker in ("holder", "old holder", "silent", "gone", "fresh"):
        beat(workers, worker)
        if "holder" in worker:
            jobs.enqueue("t", queue="fetch")
            jobs.claim("fetch", worker_id=worker, lease_s=3600)
    age(qwf_conn, "holder", "silent")
    qwf_conn.execute(
        "UPDATE worker_heartbeats SET last_seen = last_seen - interval '25 hours'"
        " WHERE worker_id IN ('old holder', 'gone')"
    )

    def swept(*, recovered_s: float | None, chance: float = 0.0) -> tuple[set[str], set[str]]:
        sweep(qwf_conn, Settings(), recovered_s=recovered_s, chance=lambda: chance)
        there = {each.worker_id: each.last_flagged_dead_at is not None for each in workers.list()}
        return set(there), {worker for worker, flagged in there.items() if flagged}

    everybody = {"holder", "old holder", "silent", "gone", "fresh"}
    assert swept(recovered_s=None, chance=0.99) == (everybody, set())
    assert swept(recovered_s=5.0) == (everybody - {"gone"}, set())
    assert swept(recovered_s=31.0) == (everybody - {"gone"}, {"holder", "old holder"})
    assert swept(recovered_s=None) == (everybody - {"gone"}, {"holder", "old holder"})


def test_heartbeat_lists(qwf_conn: psycopg.Connection) -> None:
    """By host, queue and state, paged by worker id; counted by queue and state; forgotten by id."""
    workers = HeartbeatRepository(qwf_conn)
    beat(workers, "a")
    beat(workers, "b", host_label="h2", state="busy")
    beat(workers, "c", queue="gpu", state="parked")
    assert [each.worker_id for each in workers.list(limit=2)] == ["a", "b"]
    assert [each.worker_id for each in workers.list(after="b")] == ["c"]
    assert [each.worker_id for each in workers.list(host_label="h1", queue="gpu")] == ["c"]
    assert [each.worker_id for each in workers.list(state=["idle", "busy"])] == ["a", "b"]
    assert workers.counts() == {"fetch": {"busy": 1, "idle": 1}, "gpu": {"parked": 1}}
    assert workers.delete("a")
    assert not workers.delete("a")
    assert workers.fetch("a") is None


@pytest.mark.parametrize(
    ("wishes", "effective"),
    [
        ([], None),
        ([("h1", "fetch", "pause")], ("h1", "fetch", "pause")),
        ([("*", "fetch", "pause")], ("*", "fetch", "pause")),
        ([("h1", "*", "off")], ("h1", "*", "off")),
        ([("*", "*", "pause")], ("*", "*", "pause")),
        ([("h1", "fetch", "pause"), ("*", "*", "off")], ("*", "*", "off")),
        ([("*", "*", "pause"), ("h1", "fetch", "pause")], ("h1", "fetch", "pause")),
        ([("*", "fetch", "off"), ("h1", "*", "off")], ("h1", "*", "off")),
        ([("h2", "fetch", "off"), ("h1", "load", "off"), ("*", "load", "off")], None),
    ],
)
def test_strictest_wish_wins(qwf_conn: psycopg.Connection, wishes: Any, effective: Any) -> None:
    """Of all rows that match a worker, `*` on either side, the strictest holds; of equals the nearest."""
    control = WorkerControlRepository(qwf_conn)
    for host_label, queue, desired in wishes:
        control.set(host_label, queue, desired, actor="me")
    row = control.effective("h1", "fetch")
    assert (row and (row.host_label, row.queue, row.desired)) == effective


def test_lapsed_wish_does_not_hold(qwf_conn: psycopg.Connection) -> None:
    """A wish for a while ends by the database's clock; it is still listed."""
    control = WorkerControlRepository(qwf_conn)
    control.set("h1", "fetch", "off", actor="me", expires_in=timedelta(seconds=0.001))
    control.set("*", "fetch", "pause", actor="me", expires_in=60)
    qwf_conn.execute("SELECT pg_sleep(0.002)")
    assert [row.desired for row in control.matching("h1", "fetch")] == ["pause"]
    assert len(control.list(queue="fetch")) == 2
    assert [row.host_label for row in control.list(desired="off")] == ["h1"]


def test_every_change_of_control_is_written_down(qwf_conn: psycopg.Connection) -> None:
    """Who, what and why; each change takes a higher version; where nothing changes nothing is written."""
    control = WorkerControlRepository(qwf_conn)
    log(qwf_conn)
    first = control.set("h1", "fetch", "pause", actor="ann", reason="deploy")
    second = control.set("h1", "fetch", "off", actor="bob", expires_in=60)
    assert second.version > first.version
    assert (second.reason, second.actor) == (None, "bob")
    assert second.expires_at is not None
    gone = control.clear("h1", "fetch", actor="cid", reason="done")
    assert gone is not None
    assert (gone.was.desired, gone.was.version) == ("off", second.version)
    assert control.clear("h1", "fetch", actor="cid") is None
    assert control.list() == []
    entries = log(qwf_conn)
    assert [entry[:4] for entry in entries] == [
        ("ann", "workers.pause", "h1 fetch", "deploy"),
        ("bob", "workers.off", "h1 fetch", None),
        ("cid", "workers.on", "h1 fetch", "done"),
    ]
    assert entries[0][4] == {"expires_at": None, "version": first.version}
    assert entries[2][4] == {"was": "off", "version": gone.version}


def test_limits(qwf_conn: psycopg.Connection) -> None:
    """A key's own limit beats a pattern's, a longer pattern a shorter one, and changes are written down."""
    limits = LimitRepository(qwf_conn)
    log(qwf_conn)
    assert limits.effective("example.org") is None
    for pattern, slots in (
        ("*", 9),
        ("host:*", 4),
        ("host:example.org", 2),
        ("host:exa*", 3),
        ("hos_:%*", 8),
    ):
        limits.set(pattern, slots, actor="ann", reason="polite")

    def effective(key: str) -> Any:
        row = limits.effective(key)
        return row and (row.key_pattern, row.max_slots)

    assert effective("host:example.org") == ("host:example.org", 2)
    assert effective("host:exaltation") == ("host:exa*", 3)
    assert effective("host:other") == ("host:*", 4)
    assert effective("gpu") == ("*", 9)
    raised = limits.set("host:example.org", 0, actor="bob")
    assert (raised.max_slots, raised.updated_by, raised.reason) == (0, "bob", None)
    assert limits.fetch("host:example.org").max_slots == 0
    assert limits.clear("host:example.org", actor="bob").max_slots == 0
    assert limits.clear("host:example.org", actor="bob") is None
    assert effective("host:example.org") == ("host:exa*", 3)
    by_key = [row.key_pattern for row in limits.list()]
    assert set(by_key) == {"*", "host:*", "host:exa*", "hos_:%*"}
    assert [row.key_pattern for row in limits.list(limit=2, after=by_key[0])] == by_key[1:3]
    assert [(*entry[:4], entry[4].get("was")) for entry in log(qwf_conn)[-3:]] == [
        ("ann", "limits.set", "hos_:%*", "polite", None),
        ("bob", "limits.set", "host:example.org", None, 2),
        ("bob", "limits.clear", "host:example.org", None, 0),
    ]


def test_slots(qwf_conn: psycopg.Connection) -> None:
    """Taken slots by key, or page by page."""
    limits = LimitRepository(qwf_conn)
    qwf_conn.execute(
        "INSERT INTO limit_slots (limit_key, slot, job_family, job_id, attempt, claimed_by, lease_expires_at)"
        " SELECT key, slot, 'ingest', 1, 1, 'w', now() + interval '1 h'"
        " FROM unnest(ARRAY['a', 'b']) AS key, generate_series(0, 2) AS slot"
    )
    assert [(each.limit_key, each.slot) for each in limits.slots("b")] == [("b", 0), ("b", 1), ("b", 2)]
    first = limits.slots(limit=4)
    rest = limits.slots(after=(first[-1].limit_key, first[-1].slot))
    assert [(each.limit_key, each.slot) for each in first + rest] == [(k, n) for k in "ab" for n in range(3)]


SCHEDULE: dict[str, Any] = {
    "name": "nightly",
    "cron": "0 3 * * *",
    "timezone": "Europe/Berlin",
    "catch_up": "all",
    "catch_up_cap": 5,
    "jitter_s": 2.5,
    "task_name": "tidy",
    "queue": "load",
    "args": {"deep": True},
    "priority": 1,
    "limit_key": "disk",
    "declared": True,
    "next_tick_at": datetime(2200, 1, 1, tzinfo=UTC),
}


def test_schedule_is_stored_whole(qwf_conn: psycopg.Connection) -> None:
    """Each value goes to its own column."""
    schedules = ScheduleRepository(qwf_conn)
    made = schedules.upsert(**SCHEDULE)
    stored = schedules.fetch("nightly")
    assert stored is not None
    for row in (made, stored):
        assert {name: getattr(row, name) for name in SCHEDULE} == SCHEDULE
        assert row.enabled


def test_schedule_declared_again(qwf_conn: psycopg.Connection) -> None:
    """New words replace the old; an operator's switch stays, the next tick only while the times do."""
    schedules = ScheduleRepository(qwf_conn)
    schedules.upsert(**SCHEDULE)
    schedules.set_enabled("nightly", False, actor="ann")
    again = SCHEDULE | {"task_name": "tidy_all", "next_tick_at": None}
    kept = schedules.upsert(**again)
    assert (kept.task_name, kept.enabled, kept.next_tick_at) == ("tidy_all", False, SCHEDULE["next_tick_at"])
    given = schedules.upsert(**again | {"next_tick_at": datetime(2200, 1, 2, tzinfo=UTC)})
    assert given.next_tick_at == datetime(2200, 1, 2, tzinfo=UTC)
    moved = schedules.upsert(**again | {"cron": "0 4 * * *"})
    assert (moved.cron, moved.next_tick_at) == ("0 4 * * *", None)


def test_schedule_switch_and_lists(qwf_conn: psycopg.Connection) -> None:
    """Switched by name, listed by name, queue, task and switch."""
    schedules = ScheduleRepository(qwf_conn)
    for name in ("a", "b", "c"):
        schedules.upsert(name, cron="* * * * *", task_name=f"task-{name}", queue="fetch")
    schedules.upsert(**SCHEDULE)
    off = schedules.set_enabled("b", False, actor="ann", reason="too loud")
    assert off is not None
    assert not off.enabled
    assert schedules.set_enabled("b", False, actor="ann") is None
    assert schedules.set_enabled("nothing", True, actor="ann") is None
    assert log(qwf_conn) == [("ann", "schedule.pause", "b", "too loud", {})]
    assert [row.name for row in schedules.list()] == ["a", "b", "c", "nightly"]
    assert [row.name for row in schedules.list(enabled=True, queue="fetch")] == ["a", "c"]
    assert [row.name for row in schedules.list(after="a", limit=1)] == ["b"]
    assert [row.name for row in schedules.list(task_name="task-c")] == ["c"]


@pytest.mark.parametrize("queue", ["cpu", "GPU", "hooks"])
def test_schedule_of_a_reserved_queue_is_refused(qwf_conn: psycopg.Connection, queue: str) -> None:
    """What it would enqueue is an ingest job."""
    with pytest.raises(ConfigurationError, match="reserved for node jobs"):
        ScheduleRepository(qwf_conn).upsert(**SCHEDULE | {"queue": queue})


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("cron", "every day", "has not five fields"),
        ("cron", "* * * * * * *", "has not five fields"),
        ("cron", "60 * * * * *", "Bad second"),
        ("cron", "@daily", "has not five fields"),
        ("cron", "61 * * * *", "Bad minute"),
        ("cron", "0 24 * * *", "Bad hour"),
        ("cron", "0 0 * * funday", "Bad day-of-week"),
        ("cron", "*/0 * * * *", "Bad minute"),
        ("cron", "0 0 30 2 *", "Bad day-of-month"),
        ("timezone", "Mars/Olympus", "no time zone"),
        ("timezone", "../etc/passwd", "no time zone"),
        ("timezone", "/etc/localtime", "no time zone"),
        ("timezone", "Europe", "no time zone"),
        ("timezone", "x" * 300, "no time zone"),
    ],
)
def test_schedule_that_nobody_could_follow_is_refused(
    qwf_conn: psycopg.Connection, field: str, value: str, said: str
) -> None:
    """Before it is stored: a ticker would meet it at night."""
    schedules = ScheduleRepository(qwf_conn)
    with pytest.raises(PayloadError, match=said) as refused:
        schedules.upsert(**SCHEDULE | {field: value})
    assert refused.value.path == field
    assert schedules.list() == []


@pytest.mark.parametrize(
    "cron", ["0 0 29 2 *", "*/5 8-18 * * MON-fri", "0 12 L * *", "15,45 * 1-7 jan,jul 1#2"]
)
def test_schedule_takes_what_cron_takes(qwf_conn: psycopg.Connection, cron: str) -> None:
    """Names, ranges, steps, lists, the last day, the n-th weekday, and a day that comes every four years."""
    made = ScheduleRepository(qwf_conn).upsert(**SCHEDULE | {"cron": cron, "timezone": "America/St_Johns"})
    assert (made.cron, made.timezone) == (cron, "America/St_Johns")
