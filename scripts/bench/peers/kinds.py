"""What a peer has to offer, so that all are measured in one way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

# How its producers enqueue so many jobs: "single", each committed by itself, and "bulk".
Forms = Mapping[str, Callable[[int], None]]


@dataclass(frozen=True)
class Peer:
    """`work` runs a worker in this process for ever and calls what it is given as each job's body."""

    prepare: Callable[[str], None]
    produce: Callable[[str], Forms]
    work: Callable[[str, Callable[[], None]], None]
    # In words, what `work` sets.
    settings: str
    # Where a job is written; a row of each is copied, with another key, to make a long queue.
    tables: tuple[str, ...]
    key: str
    # How many have ended for good; of a peer that deletes them `left` says how many are still there.
    done: str = ""
    left: str = ""
    # Puts so many no-ops on the queue, where a copied row would not do.
    fill: str = ""
    # What else is emptied with them.
    also: tuple[str, ...] = ()
    # Runs a worker for ever with so many jobs at once, each of which sleeps for so many seconds.
    wait: Callable[[str, int, float], None] | None = None
    # What stands in for `prepare`, `produce` and `work` where the peer is not written in Python.
    program: str = ""
