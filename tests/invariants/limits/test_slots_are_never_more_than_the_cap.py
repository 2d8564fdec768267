"""Slots of keyed limits: never more held than the cap, whoever takes at once, and none that leaks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.workers import until

from queue_workflows.repositories import Fence, LimitRepository
from queue_workflows.repositories.limits.slots import FREE_LEFT_BY, Slot, SlotRepository, Taken, Want
from queue_workflows.states import JobFamily

KEY = "host:example.org"


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    """A connection in autocommit, and no slots."""
    with own_connection(qwf_dsn) as connection:
        connection.execute(
            "TRUNCATE concurrency_limits, limit_slots, ingest_jobs, workflow_node_jobs CASCADE"
        )
        yield connection


@pytest.fixture
def slots(conn: psycopg.Connection) -> SlotRepository:
    return SlotRepository(conn)


def want(number: int, key: str = KEY, most: int | None = None, worker: str = "w1") -> Want:
    """What the numbered job wants."""
    return Want(key, JobFamily.INGEST, Fence(number, 1, worker), most)


def cap(conn: psycopg.Connection, most: int, key: str = KEY) -> None:
    LimitRepository(conn).set(key, most, actor="me")


def take(slots: SlotRepository, *wants: Want, **more: Any) -> Taken:
    return slots.take(wants, **{"lease_s": 60.0} | more)


def held(conn: psycopg.Connection, key: str = KEY) -> list[tuple[int, int]]:
    """Slots with a lease, and whose."""
    sql = (
        "SELECT slot, job_id FROM limit_slots WHERE limit_key = %s AND lease_expires_at > now() ORDER BY slot"
    )
    return conn.execute(sql, [key]).fetchall()


def test_no_more_than_the_cap(conn: psycopg.Connection, slots: SlotRepository) -> None:
    """In one statement and over several; what is given back is taken again, by its number."""
    cap(conn, 2)
    first = take(slots, want(1), want(2), want(3))
    assert (sorted(first.slots), first.full) == ([0, 1], {2})
    assert take(slots, want(4)).full == {0}
    assert slots.free([first.slots[0]]) == [first.slots[0]]
    assert held(conn) == [(1, 2)]
    assert take(slots, want(5)).slots[0].number == 0
    assert held(conn) == [(0, 5), (1, 2)]


def test_a_key_without_a_cap_has_no_slots(conn: psycopg.Connection, slots: SlotRepository) -> None:
    """Its own cap, else the longest pattern's, else that of who asks; the lower one of the two."""
    assert take(slots, want(1)).unlimited == {0}
    assert held(conn) == []
    assert sorted(take(slots, want(1, most=1), want(2, most=1)).slots) == [0]
    cap(conn, 5, "host:*")
    assert sorted(take(slots, want(3, most=3), want(4, most=3), want(5, most=3)).slots) == [0, 1]
    cap(conn, 4, "host:example.*")
    assert len(take(slots, *map(want, range(6, 10))).slots) == 1
    cap(conn, 0)
    assert take(slots, want(11)).full == {0}
    assert take(slots, want(11, key="other")).unlimited == {0}


def test_together_is_all_or_none(conn: psycopg.Connection, slots: SlotRepository) -> None:
    """And says which key was full, though the others had room; unlimited ones do not matter."""
    cap(conn, 1, "a")
    cap(conn, 1, "b")
    both = (want(1, "a"), want(1, "free"), want(1, "b"))
    taken = take(slots, *both, together=True)
    assert (sorted(taken.slots), taken.unlimited) == ([0, 2], {1})
    slots.free([taken.slots[0]])
    again = take(slots, *(replace_fence(each, 2) for each in both), together=True)
    assert (again.slots, again.full, again.spared, again.unlimited) == ({}, {2}, {0}, {1})
    assert (held(conn, "a"), held(conn, "b")) == ([], [(0, 1)])


def replace_fence(each: Want, number: int) -> Want:
    return each._replace(fence=each.fence._replace(job_id=number))


def test_only_the_holder_renews_and_frees(conn: psycopg.Connection, slots: SlotRepository) -> None:
    """Every part of the fence counts, and the moment of taking."""
    cap(conn, 1)
    (slot,) = take(slots, want(1)).slots.values()
    strangers = [
        slot._replace(fence=slot.fence._replace(attempt=2)),
        slot._replace(fence=slot.fence._replace(job_id=2)),
        slot._replace(fence=slot.fence._replace(claimed_by="w2")),
        slot._replace(family=JobFamily.NODE),
        slot._replace(since=slot.since.replace(year=2000)),
    ]
    assert slots.renew(strangers, lease_s=60) == slots.free(strangers) == []
    assert slots.renew([slot], lease_s=60) == slots.free([slot]) == [slot]
    assert slots.renew([slot], lease_s=60) == slots.free([slot]) == []
    (mine,) = take(slots, want(1)).slots.values()
    assert slots.free([slot]) == []
    assert slots.free([mine]) == [mine]


def test_a_slot_is_free_when_its_lease_is_over(conn: psycopg.Connection, slots: SlotRepository) -> None:
    """Who comes back late has lost it."""
    cap(conn, 1)
    (late,) = take(slots, want(1)).slots.values()
    conn.execute("UPDATE limit_slots SET lease_expires_at = now() - interval '1 s'")
    (mine,) = take(slots, want(2)).slots.values()
    assert slots.renew([late], lease_s=60) == slots.free([late]) == []
    assert held(conn) == [(mine.number, 2)]


def test_two_takers_of_the_last_slot(conn: psycopg.Connection, slots: SlotRepository, qwf_dsn: str) -> None:
    """While one has it locked the other goes away empty-handed, and waits for nobody."""
    cap(conn, 1)
    slots.free(list(take(slots, want(1)).slots.values()))
    with psycopg.connect(qwf_dsn) as other:
        mine = take(SlotRepository(other), want(2))
        conn.execute("SET lock_timeout = 1")
        assert take(slots, want(3)).full == {0}
        other.commit()
        assert sorted(mine.slots) == [0]
    assert held(conn) == [(0, 2)]


@pytest.mark.parametrize("others", [{0, 1}, {2, 3}, {1, 3}, {0, 3}, {0, 1, 2, 3}])
def test_a_lowered_cap_counts_what_is_held_above_it(
    conn: psycopg.Connection, slots: SlotRepository, others: set[int]
) -> None:
    """Who has a slot keeps it; others get one when fewer than the cap are held."""
    cap(conn, 4)
    all_four = take(slots, *map(want, range(4))).slots
    slots.free([slot for slot in all_four.values() if slot.number not in others])
    cap(conn, 2)
    assert take(slots, want(9)).full == {0}
    left = [slot for slot in all_four.values() if slot.number in others]
    while left:
        slots.free([left.pop()])
        take(slots, *map(want, range(20, 24)))
        assert len(held(conn)) == max(2, len(left))
        slots.free([each for each in current(conn) if each.fence.job_id >= 20])
    cap(conn, 3)
    assert len(take(slots, *map(want, range(30, 34))).slots) == 3


def current(conn: psycopg.Connection) -> list[Slot]:
    rows = conn.execute(
        "SELECT limit_key, slot, job_id, attempt, claimed_by, acquired_at FROM limit_slots"
        " WHERE lease_expires_at > now()"
    )
    return [Slot(row[0], row[1], JobFamily.INGEST, Fence(*row[2:5]), row[5]) for row in rows]


def test_many_at_once_never_hold_more_than_the_cap(conn: psycopg.Connection, qwf_dsn: str) -> None:
    """Eight that take, renew and free as fast as they can, counted from inside."""
    lock, inside, most = threading.Lock(), 0, 0
    start = threading.Barrier(8)
    cap(conn, 3)

    def go(number: int) -> None:
        nonlocal inside, most
        with psycopg.connect(qwf_dsn, autocommit=True) as own:
            slots = SlotRepository(own)
            start.wait()
            for turn in range(60):
                got = list(take(slots, want(number * 1000 + turn, worker=f"w{number}")).slots.values())
                if not got:
                    continue
                with lock:
                    inside += 1
                    most = max(most, inside)
                assert slots.renew(got, lease_s=60) == got
                with lock:
                    inside -= 1
                assert slots.free(got) == got

    threads = [threading.Thread(target=go, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 1 <= most <= 3
    assert held(conn) == []


def test_what_a_worker_left_is_freed(conn: psycopg.Connection, slots: SlotRepository) -> None:
    """Its slots for attempts that are over, not for those that run, and nobody else's."""
    cap(conn, 9)
    run_job(conn, 1)
    taken = take(slots, want(1), want(2), want(3, worker="w2"), want(4, key="unheard"))
    assert len(taken.slots) == 3
    assert slots.free_left_by("w1") == {KEY}
    assert [job for _, job in held(conn)] == [1, 3]


def run_job(conn: psycopg.Connection, job: int) -> None:
    """A job that the worker runs."""
    conn.execute(
        "INSERT INTO ingest_jobs (id, task_name, queue, status, attempt, claimed_by, lease_expires_at)"
        " OVERRIDING SYSTEM VALUE VALUES (%s, 't', 'fetch', 'running', 1, 'w1', now() + interval '1 h')",
        [job],
    )


def test_what_a_worker_left_is_not_waited_for(
    conn: psycopg.Connection, slots: SlotRepository, qwf_dsn: str
) -> None:
    """A slot that changes hands at that moment is left to who has it locked."""
    cap(conn, 1)
    left = list(take(slots, want(1)).slots.values())
    conn.execute("SET lock_timeout = '5s'")
    with psycopg.connect(qwf_dsn) as other:
        run_job(other, 2)
        SlotRepository(other).free(left)
        assert slots.free_left_by("w1") == set()
        other.rollback()
    assert slots.free_left_by("w1") == {KEY}


def test_what_a_worker_left_may_be_held_anew(
    conn: psycopg.Connection, slots: SlotRepository, qwf_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next job takes the slot after that was seen to be left, and keeps it."""
    cap(conn, 1)
    left = list(take(slots, want(1)).slots.values())
    pausing = {
        name: sql.replace(
            "WITH", "WITH paused AS MATERIALIZED (SELECT pg_advisory_xact_lock(21)), ", 1
        ).replace("SELECT true FROM", "SELECT true FROM paused,", 1)
        for name, sql in FREE_LEFT_BY.items()
    }
    monkeypatch.setattr("queue_workflows.repositories.limits.slots.FREE_LEFT_BY", pausing)
    freed: list[set[str]] = []
    with psycopg.connect(qwf_dsn, autocommit=True) as other:
        other.execute("SELECT pg_advisory_lock(21)")
        freeing = threading.Thread(target=lambda: freed.append(slots.free_left_by("w1")))
        freeing.start()
        sql = "SELECT count(*) FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
        until(lambda: other.execute(sql, [other.info.backend_pid]).fetchone() == (1,))
        others = SlotRepository(other)
        others.free(left)
        run_job(other, 2)
        assert take(others, want(2)).slots
        other.execute("SELECT pg_advisory_unlock(21)")
        freeing.join()
    assert freed == [set()]
    assert held(conn) == [(0, 2)]


def test_slots_that_nobody_uses_are_forgotten(conn: psycopg.Connection, slots: SlotRepository) -> None:
    """Only those that have been free all the time."""
    cap(conn, 3)
    taken = take(slots, want(1), want(2), want(3)).slots
    slots.free([taken[0], taken[1]])
    conn.execute("UPDATE limit_slots SET acquired_at = now() - interval '2 h' WHERE slot <> 1")
    assert slots.forget(for_s=3600) == 1
    assert [slot for (slot,) in conn.execute("SELECT slot FROM limit_slots ORDER BY 1")] == [1, 2]


def test_updates_of_slots_stay_hot(conn: psycopg.Connection, slots: SlotRepository) -> None:
    """No index is written when a slot changes hands."""
    cap(conn, 1)
    slots.free(list(take(slots, want(1)).slots.values()))
    sql = "SELECT pg_stat_get_xact_tuples_hot_updated(r), pg_stat_get_xact_tuples_updated(r)"
    with conn.transaction():
        (slot,) = take(slots, want(2)).slots.values()
        slots.renew([slot], lease_s=9)
        slots.free([slot])
        ((hot, updated),) = conn.execute(f"{sql} FROM (SELECT 'limit_slots'::regclass AS r) AS t").fetchall()
    assert hot == updated >= 3
