"""A job wakes about as many workers of its host as there are jobs, and no wake is lost whichever of them die.

The poll is so far away that a wake that got lost once could not be mistaken for anything else.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack
from random import Random

import pytest
from support.processes.workers import until
from support.servers.statement_proxy import StatementProxy
from support.stages.floor import CLAIMS, Floor

FAR_AWAY = {"QWF_POLL_S": "600", "QWF_LEASE_S": "2", "QWF_RENEW_S": "0.5"}
WORKERS = 6
JOBS = 20
LISTENING = """
SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = database
WHERE locktype = 'advisory' AND classid = 7714 AND datname = current_database() AND mode = 'ShareLock'
"""


def are_idle(floor: Floor, count: int) -> bool:
    """Whether so many workers advertise themselves."""
    return floor.connection.execute(LISTENING).fetchone() == (count,)


@pytest.mark.parametrize("concurrency", ["1", "4"])
def test_a_job_costs_few_claims(floor: Floor, proxy: StatementProxy, concurrency: str) -> None:
    """The first in line looks, the next finds nothing left, and the others do without."""
    with ExitStack() as stack:
        for _ in range(WORKERS):
            stack.enter_context(floor.worker("--concurrency", concurrency, dsn=proxy.dsn, **FAR_AWAY))
        until(lambda: are_idle(floor, WORKERS))

        def asked() -> float:
            """Claims for each job; while no other transaction is open, for which all look again."""
            before = proxy.passed(*CLAIMS)
            for _ in range(JOBS):
                floor.until_completed(floor.enqueue())
                time.sleep(0.05)
            return (proxy.passed(*CLAIMS) - before) / JOBS

        # As it was each of the six would look, those with several jobs at once twice: with such a poll from
        # before the wake is no answer to it, so each looks once.
        most = WORKERS if concurrency == "1" else 2 * WORKERS
        until(lambda: asked() < most, within_s=150)


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_burst_begins_at_once_on_all_workers(floor: Floor, concurrency: int) -> None:
    """Each claims what is its own, also the last in line, which a poll from before the wake does not keep."""
    with ExitStack() as stack:
        for _ in range(WORKERS):
            stack.enter_context(floor.worker("--concurrency", str(concurrency), QWF_POLL_S="600"))
        until(lambda: are_idle(floor, WORKERS))
        for _ in range(3):
            with floor.connection.transaction():
                jobs = [floor.enqueue(gated=True) for _ in range(WORKERS * concurrency)]
            # One that was claimed ahead and given back unbegun begins with a later attempt.
            until(lambda: all(floor.ledger.begun(job) for job in jobs))  # noqa: B023 - awaited here
            for begun in floor.ledger.begun():
                floor.ledger.open_gate(begun.job_id, begun.attempt)
            floor.until_completed(*jobs)
            until(lambda: are_idle(floor, WORKERS))


def test_no_wake_is_lost_whichever_worker_dies(floor: Floor) -> None:
    """The first in line is stopped or killed as it is woken: the next look for themselves."""
    random = Random(7)
    with ExitStack() as stack:
        workers = [stack.enter_context(floor.worker(**FAR_AWAY)) for _ in range(WORKERS)]
        until(lambda: are_idle(floor, WORKERS))
        stopped = []
        for worker in workers[:-1]:
            random.shuffle(workers)
            kind = random.choice([signal.SIGSTOP, signal.SIGKILL])
            jobs = [floor.enqueue() for _ in range(random.randint(1, 3))]
            time.sleep(random.uniform(0, 0.003))
            os.kill(worker.pid, kind)
            if kind is signal.SIGSTOP:
                stopped.append(worker)
            floor.until_completed(*jobs)
        for worker in stopped:
            os.kill(worker.pid, signal.SIGKILL)
