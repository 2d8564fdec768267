"""Work that is committed at the very moment a worker goes idle is begun at once, not by the poll.

The poll is so far away that a wake that got lost once could not be mistaken for anything else. Jobs come in
pairs: between two jobs a worker takes back its advertisement, so that it goes idle anew after each pair.
"""

from __future__ import annotations

import time
from random import Random

import psycopg
import pytest
from support.processes.workers import until
from support.stages.floor import Floor

FAR_AWAY = {"QWF_POLL_S": "600"}
INSERT = "INSERT INTO ingest_jobs (task_name, queue) VALUES ('note', 'fetch'), ('note', 'fetch') RETURNING id"
LEFT = "SELECT FROM ingest_jobs WHERE id = ANY (%s) AND status <> 'completed'"
LISTENING = """
SELECT pid FROM pg_locks JOIN pg_database ON pg_database.oid = database
WHERE locktype = 'advisory' AND classid = 7714 AND datname = current_database() AND mode = 'ShareLock'
"""


def listening(floor: Floor) -> list[int]:
    """The backends of the workers that advertise themselves."""
    return [pid for (pid,) in floor.connection.execute(LISTENING)]


def insert(producer: psycopg.Connection) -> list[int]:
    return [job for (job,) in producer.execute(INSERT)]


def until_over(floor: Floor, pair: list[int]) -> None:
    """Wait for both jobs, and be there the moment that they are over."""
    deadline = time.monotonic() + 150
    while floor.connection.execute(LEFT, [pair]).fetchone() is not None:
        assert time.monotonic() < deadline, "a wake was lost"
        time.sleep(0.0005)


@pytest.mark.parametrize(
    "rounds", [200, pytest.param(2_000, marks=[pytest.mark.nightly, pytest.mark.timeout(900)])]
)
def test_committed_at_the_moment_of_going_idle(floor: Floor, rounds: int) -> None:
    """Half of the pairs are inserted while the worker is busy, so that their transactions send no wake."""
    random = Random(rounds)
    with floor.worker(**FAR_AWAY), psycopg.connect(floor.dsn) as producer:
        until(lambda: listening(floor))
        pair = insert(producer)
        producer.commit()
        for _ in range(rounds):
            following = insert(producer) if random.random() < 0.5 else []
            until_over(floor, pair)
            time.sleep(random.choice([0.0, random.uniform(0, 0.003)]))
            pair = following or insert(producer)
            producer.commit()
        until_over(floor, pair)


@pytest.mark.parametrize("poll_s", ["0.5", "1"])
def test_without_the_trigger_the_poll_finds_it(floor: Floor, poll_s: str) -> None:
    """NOTIFY is a hint: with nobody to send it, an idle worker begins the job at its next poll."""
    with floor.worker(QWF_POLL_S=poll_s):
        until(lambda: listening(floor))
        floor.connection.execute("ALTER TABLE ingest_jobs DISABLE TRIGGER USER")
        try:
            floor.until_completed(floor.enqueue())
        finally:
            floor.connection.execute("ALTER TABLE ingest_jobs ENABLE TRIGGER USER")


def test_a_listener_that_lost_its_connection_listens_again(floor: Floor) -> None:
    """Its backend is terminated while it waits: it joins again by itself, and is woken as before."""
    with floor.worker(**FAR_AWAY):
        (pid,) = until(lambda: listening(floor))
        floor.connection.execute("SELECT pg_terminate_backend(%s)", [pid])
        until(lambda: [each for each in listening(floor) if each != pid])
        floor.until_completed(floor.enqueue())
