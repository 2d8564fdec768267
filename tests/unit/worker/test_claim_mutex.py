"""Whose turn it is: a thread that takes its turn over and over keeps nobody waiting."""

from __future__ import annotations

import threading

from queue_workflows.roles.worker.guardian.claim_mutex import FairMutex


def test_who_waits_has_the_next_turn() -> None:
    """However soon the main thread wants another, and though it was there first so far."""
    turns, seen, over = FairMutex(), [], threading.Event()

    def wait() -> None:
        assert turns.acquire(timeout=60)
        seen.append("other")
        turns.release()
        over.set()

    other = threading.Thread(target=wait)
    turns.take()
    other.start()
    while not turns.is_wanted:
        assert not over.is_set()
    turns.release()
    turns.take()
    seen.append("main")
    turns.release()
    other.join(60)
    assert seen == ["other", "main"]


def test_a_turn_that_lasts_is_waited_for_no_longer_than_said() -> None:
    """And is not wanted any more then."""
    turns = FairMutex()
    with turns:
        assert not turns.acquire(timeout=0.01)
        assert not turns.is_wanted
    assert turns.acquire(timeout=0.01)
