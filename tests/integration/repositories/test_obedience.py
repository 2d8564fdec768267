"""Workers beside what operators want of them: which wish is shown, and how far a worker is with it."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from support.rows.jobs import Jobs

from queue_workflows.repositories import HeartbeatRepository, WorkerControlRepository
from queue_workflows.repositories.workers.obedience import Obedience, Standing
from queue_workflows.roles.await_workers import await_obedience


@pytest.fixture(autouse=True)
def _empty(qwf_conn: psycopg.Connection) -> None:
    qwf_conn.execute("TRUNCATE worker_heartbeats, worker_control")


def beat(conn: psycopg.Connection, worker_id: str, **more: Any) -> None:
    HeartbeatRepository(conn).beat(
        worker_id, **{"host_label": "h1", "queue": "fetch", "pid": 7, "state": "idle"} | more
    )


def standing(conn: psycopg.Connection, worker_id: str) -> Standing:
    (found,) = [one for one in HeartbeatRepository(conn).standing() if one.worker_id == worker_id]
    return found


def test_a_worker_is_listed_with_the_strictest_wish_that_matches(qwf_conn: psycopg.Connection) -> None:
    """The very row that the worker itself would be told, whole; none is on."""
    beat(qwf_conn, "w1", versions={"python": "3.11"}, load={"rss_mb": 80}, cached_models=("sdxl",))
    beat(qwf_conn, "w2", host_label="h2")
    control = WorkerControlRepository(qwf_conn)
    control.set("*", "fetch", "pause", actor="ann")
    control.set("h1", "*", "off", actor="bob", reason="disk", expires_in=60)
    control.set("h1", "load", "off", actor="eve")
    first, second = HeartbeatRepository(qwf_conn).standing()
    assert (first.versions, first.load, first.cached_models) == ({"python": "3.11"}, {"rss_mb": 80}, ["sdxl"])
    assert 0 <= first.age_s < 60
    for one, host in ((first, "h1"), (second, "h2")):
        wanted = control.effective(host, "fetch")
        assert one.control is not None
        assert wanted is not None
        assert (one.control.desired, one.control.version, one.control.actor, one.control.reason) == (
            wanted.desired,
            wanted.version,
            wanted.actor,
            wanted.reason,
        )


@pytest.mark.parametrize("family", ["node", "ingest"])
def test_the_current_job_is_that_of_the_rows(qwf_conn: psycopg.Connection, family: str) -> None:
    """Whatever the last beat said of it: the job that the worker has held longest, of either family."""
    jobs = Jobs(family, qwf_conn)
    beat(qwf_conn, "w1", current_job=(family, 999))
    assert standing(qwf_conn, "w1").current_job is None
    first, _ = jobs.enqueue(2)
    for _ in range(2):
        jobs.one("w1")
    qwf_conn.execute(f"UPDATE {jobs.table} SET started_at = now() - interval '1 m' WHERE id = %s", [first])
    assert standing(qwf_conn, "w1").current_job == f"{family}:{first}"


def test_workers_are_found_by_host_and_queue(qwf_conn: psycopg.Connection) -> None:
    """`*` is any."""
    for worker, host, queue in (("a", "h1", "fetch"), ("b", "h1", "load"), ("c", "h2", "fetch")):
        beat(qwf_conn, worker, host_label=host, queue=queue)
    beats = HeartbeatRepository(qwf_conn)
    for place, found in {
        ("*", "*"): "abc",
        ("h1", "*"): "ab",
        ("*", "fetch"): "ac",
        ("h1", "load"): "b",
        ("h3", "*"): "",
    }.items():
        assert "".join(one.worker_id for one in beats.standing(*place)) == found


@pytest.mark.parametrize(
    ("desired", "state", "behind", "obedience"),
    [
        (None, "idle", 0, Obedience.OBEYED),
        (None, "busy", 0, Obedience.OBEYED),
        (None, "parked", 0, Obedience.HEARD),
        (None, "paused", 0, Obedience.HEARD),
        ("pause", "busy", 1, Obedience.PENDING),
        ("pause", "busy", 0, Obedience.HEARD),
        ("pause", "paused", 0, Obedience.OBEYED),
        ("off", "parked", 1, Obedience.PENDING),
        ("off", "paused", 0, Obedience.HEARD),
        ("off", "starting", 0, Obedience.HEARD),
        ("off", "parked", 0, Obedience.OBEYED),
    ],
)
def test_how_far_a_worker_is(
    qwf_conn: psycopg.Connection, desired: str | None, state: str, behind: int, obedience: Obedience
) -> None:
    """It has to know of the wish, and then to be in the state that was asked for."""
    version = 0
    if desired is not None:
        version = WorkerControlRepository(qwf_conn).set("*", "*", desired, actor="ann").version
    beat(qwf_conn, "w", state=state, control_version=max(0, version - behind))
    assert standing(qwf_conn, "w").obedience() is obedience


def test_a_change_that_left_no_row_has_to_be_known_too(qwf_conn: psycopg.Connection) -> None:
    """After `on` nothing holds, but a worker that has not heard of it is not there yet."""
    beat(qwf_conn, "w", control_version=6)
    assert standing(qwf_conn, "w").obedience(7) is Obedience.PENDING
    beat(qwf_conn, "w", control_version=7)
    assert standing(qwf_conn, "w").obedience(7) is Obedience.OBEYED


def test_what_blocks_some_worker_of_a_place(qwf_conn: psycopg.Connection) -> None:
    """Every wish in force that meets the host and queue asked about, the strictest first; lapsed ones not."""
    control = WorkerControlRepository(qwf_conn)
    for host, queue, desired in (
        ("h1", "fetch", "pause"),
        ("*", "fetch", "off"),
        ("h2", "*", "pause"),
        ("*", "load", "pause"),
    ):
        control.set(host, queue, desired, actor="ann")
    control.set("h1", "*", "off", actor="ann", expires_in=0.0)

    def blocking(host: str, queue: str) -> list[tuple[str, str]]:
        return [(row.host_label, row.queue) for row in control.blocking(host, queue)]

    assert blocking("h1", "fetch") == [("*", "fetch"), ("h1", "fetch")]
    assert blocking("h2", "load") == [("h2", "*"), ("*", "load")]
    assert blocking("h1", "*") == [("*", "fetch"), ("h1", "fetch"), ("*", "load")]
    assert blocking("*", "load") == [("h2", "*"), ("*", "load")]
    assert len(blocking("*", "*")) == 4
    assert blocking("h1", "gpu") == []


def test_waiting_ends_when_all_obey_and_leaves_out_the_silent(qwf_conn: psycopg.Connection) -> None:
    """Looks again until nobody is behind; who is not heard of cannot obey, and is named."""
    version = WorkerControlRepository(qwf_conn).set("*", "*", "pause", actor="ann").version
    for worker in ("slow", "gone"):
        beat(qwf_conn, worker)
    qwf_conn.execute(
        "UPDATE worker_heartbeats SET last_seen = now() - interval '1 h' WHERE worker_id = 'gone'"
    )
    beats, told = HeartbeatRepository(qwf_conn), []

    def sleep(_seconds: float) -> None:
        state = "busy" if len(told) < 2 else "paused"
        beat(qwf_conn, "slow", state=state, control_version=version)

    awaited = await_obedience(
        beats.standing,
        version=version,
        stale_s=30,
        timeout_s=1e6,
        now=lambda: 0.0,
        sleep=sleep,
        tell=lambda so_far: told.append([one.state for one in so_far.behind]),
    )
    assert told == [["idle"], ["busy"]]
    assert awaited.behind == ()
    assert [one.worker_id for one in awaited.silent] == ["gone"]


def test_waiting_is_over_at_its_deadline(qwf_conn: psycopg.Connection) -> None:
    """Then it says who is behind."""
    WorkerControlRepository(qwf_conn).set("*", "*", "off", actor="ann")
    beat(qwf_conn, "deaf")
    clock = iter([0.0, 1.0, 2.0])
    awaited = await_obedience(
        HeartbeatRepository(qwf_conn).standing,
        version=0,
        stale_s=30,
        timeout_s=2.0,
        now=lambda: next(clock),
        sleep=lambda _: None,
    )
    assert [one.worker_id for one in awaited.behind] == ["deaf"]
