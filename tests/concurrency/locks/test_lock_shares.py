"""Several holders that know each other have a lock together, and all others wait for the last of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.processes.programs import Running
from support.rows.claimed_jobs import node_job

from queue_workflows.engine.limits.held_host_locks import KeptLocks
from queue_workflows.host.locks.lock import Absent, Free, Held, HostLock, probe
from queue_workflows.host.locks.lock_share import LockShare
from queue_workflows.repositories.sql.claimed_job import ClaimedNodeJob, Fence

HOLDER = """
import os, sys
from pathlib import Path
from queue_workflows.host.locks.lock import HostLock
lock = HostLock("screen", directory=Path(sys.argv[1]), note="listener")
lock.acquire()
os.write(1, b"held\\n")
sys.stdin.readline()
"""


@contextmanager
def listener(directory: Path) -> Iterator[Running]:
    """Another process, which has the lock."""
    with Running([sys.executable, "-c", HOLDER, str(directory)]) as holder:
        assert holder.line() == "held"
        yield holder


def share(directory: Path, note: str) -> LockShare:
    return LockShare("screen", directory=directory, note=note)


def test_a_share_holds_when_the_process_that_had_the_lock_is_killed(tmp_path: Path) -> None:
    """It is free when the last one has let go, and no file of the shares is left."""
    ours, other = share(tmp_path, "hook"), HostLock("screen", directory=tmp_path)
    with listener(tmp_path) as holder:
        assert ours.try_share({"listener"})
        holder.process.kill()
        holder.process.wait()
    assert isinstance(probe(tmp_path, "screen.hostlock"), Held)
    assert not other.try_acquire()
    assert "hook" in other.holding()
    assert ours.is_last
    ours.release()
    assert other.try_acquire()
    assert os.listdir(tmp_path)
    assert not list(tmp_path.glob("*.share"))


def test_a_share_is_had_beside_known_holders_alone(tmp_path: Path) -> None:
    """Of the lock and of each other share; one that was refused keeps nobody out."""
    with listener(tmp_path):
        assert not share(tmp_path, "stranger").try_share({"hook"})
        first, second = share(tmp_path, "hook"), share(tmp_path, "another")
        assert first.try_share({"listener"})
        assert not second.try_share({"listener"})
        assert second.try_share({"listener", "hook"})
        assert not first.is_last
        second.release()
    assert not share(tmp_path, "stranger").try_share(())
    first.release()
    assert HostLock("screen", directory=tmp_path).try_acquire()


def test_what_a_killed_process_left_of_its_share_is_removed(tmp_path: Path) -> None:
    """By the next one that has the lock; until then its file says nothing."""
    left = share(tmp_path, "killed")
    left.path.touch()
    assert isinstance(probe(tmp_path, "screen.hostlock"), Absent)
    assert HostLock("screen", directory=tmp_path).try_acquire()
    assert not left.path.exists()


@pytest.mark.parametrize("worker", ["here:hooks:aaa", "here:hooks:bbb"])
def test_an_attempt_of_the_same_number_in_another_database_is_another(tmp_path: Path, worker: str) -> None:
    """It shares with the worker that has the lock, and not with another one's job of one number."""
    holders, sharers = KeptLocks(tmp_path), KeptLocks(tmp_path)
    assert holders.take_one(job("here:hooks:aaa", 5), "screen")
    assert sharers.share(job("here:hooks:ccc", 6), "screen", [Fence(5, 1, worker)]) is (worker[-3:] == "aaa")
    assert sharers.missed is (worker[-3:] != "aaa")


def test_a_share_of_a_lock_that_was_let_go_of_is_had_all_the_same(tmp_path: Path) -> None:
    """As by a listener that has ended since it was asked for: nobody else has it from then on."""
    holders, sharers = KeptLocks(tmp_path), KeptLocks(tmp_path)
    listening, hook = job("here:hooks:aaa", 5), job("here:hooks:aaa", 6)
    assert holders.take_one(listening, "screen")
    holders.free([listening.fence])
    assert sharers.share(hook, "screen", [listening.fence])
    assert not holders.take_one(job("here:hooks:bbb", 7), "screen")
    assert sharers.free([hook.fence]) == ["screen"]


def test_what_waits_is_told_by_the_last_that_lets_go(tmp_path: Path) -> None:
    """Whoever that is; before it the lock is no other job's."""
    locks = KeptLocks(tmp_path)
    listening, hook = job("here:hooks:aaa", 5), job("here:hooks:aaa", 6)
    assert locks.take_one(listening, "screen")
    assert locks.share(hook, "screen", [listening.fence])
    assert locks.free([listening.fence]) == []
    assert not locks.is_free("screen")
    assert locks.free([hook.fence]) == ["screen"]
    assert isinstance(probe(tmp_path, "screen.hostlock"), Free)


def job(claimed_by: str, number: int) -> ClaimedNodeJob:
    """A job at work."""
    return node_job(id=number, attempt=1, claimed_by=claimed_by)
