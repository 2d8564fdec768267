"""What an idle worker asks: one look a second for what there is to sweep, less beside many others; and for a
job that it was woken for one claim, and one end that claims as well.

The end's claim looks at everything, because the worker is advertised still: who commits after it wakes the
worker, so there is nothing to look for before the poll.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from support.processes.workers import until
from support.servers.statement_proxy import StatementProxy
from support.stages.floor import CLAIMS, ENDS, POLLS, WATCHES, Floor

from queue_workflows.engine.upkeep.tick import Seen, look_with
from queue_workflows.repositories import HeartbeatRepository, IngestJobRepository
from queue_workflows.repositories.claims.hold_lease import Found
from queue_workflows.repositories.claims.sweep import PROMOTE, RECLAIM
from queue_workflows.repositories.claims.sweep_look import LOOK, Sweepable
from queue_workflows.repositories.limits.lanes import LANES
from queue_workflows.repositories.sql.connection import Questions
from queue_workflows.repositories.workers.heartbeats import Others
from queue_workflows.settings import Settings

JOBS = 5


def test_a_wake_costs_one_claim_and_one_end(floor: Floor, proxy: StatementProxy) -> None:
    """Tried until no other session has a transaction open meanwhile, for which a worker looks again."""
    with floor.worker(dsn=proxy.dsn, QWF_POLL_S="600"):
        floor.until_completed(floor.enqueue())

        def told() -> tuple[int, int]:
            """How much it has asked, once it asks no more."""
            seen: list[tuple[int, int]] = []

            def is_calm() -> bool:
                seen.append((proxy.passed(*CLAIMS), proxy.passed(*ENDS)))
                return seen[-10:].count(seen[-1]) == 10

            until(is_calm)
            return seen[-1]

        def asked() -> tuple[int, int]:
            claims, ends = told()
            for _ in range(JOBS):
                floor.until_completed(floor.enqueue())
                now = told()
            return now[0] - claims, now[1] - ends

        until(lambda: asked() == (JOBS, JOBS))


def test_a_tick_with_nothing_to_do_is_one_look(floor: Floor, proxy: StatementProxy) -> None:
    """And what falls due after many of those is promoted none the later."""
    sweeps = [sql for each in (PROMOTE, RECLAIM, LANES) for sql in each.values()]
    with floor.worker(dsn=proxy.dsn):
        until(lambda: proxy.passed(LOOK) >= 3)
        assert proxy.passed(*sweeps) == 0
        floor.until_completed(floor.enqueue(run_at=datetime.now(UTC) + timedelta(seconds=0.2)))
        assert proxy.passed(PROMOTE["ingest"]) == 1
        assert proxy.passed(*sweeps) == 1


@pytest.mark.parametrize("concurrency", ["1", "4"])
def test_an_idle_worker_has_one_poll(floor: Floor, proxy: StatementProxy, concurrency: str) -> None:
    """It goes with what its guardian asks each second: the worker claims only what that has found."""
    with floor.worker("--concurrency", concurrency, dsn=proxy.dsn):
        floor.until_completed(floor.enqueue())

        def is_calm() -> bool:
            """Whether it polled three times and claimed nothing; no other transaction was open."""
            claimed, polled = proxy.passed(*CLAIMS), proxy.passed(*POLLS)
            until(lambda: proxy.passed(*POLLS) >= polled + 3)
            return proxy.passed(*CLAIMS) == claimed

        until(is_calm, within_s=150)


TRANSACTION = "SELECT pg_current_xact_id()::text::bigint"
# The transaction that asks, and the one that reads the number.
TWO = 2


def test_what_an_idle_worker_asks_is_one_transaction(floor: Floor) -> None:
    """Whatever the guardian has to say and to look at."""
    connection = floor.connection
    questions = Questions(connection)
    heartbeats, jobs = HeartbeatRepository(connection), IngestJobRepository(connection)
    others = questions.add(heartbeats.beating("w", host_label="h", queue="fetch", pid=7, state="idle"))
    watched = questions.add(jobs.watching([], host_label="h", queue="fetch"))
    seen = look_with(questions, Settings(), chance=lambda: 0.0)
    found = questions.add(jobs.finding("fetch", holds=["host_lock"]))
    began = connection.execute(TRANSACTION).fetchone()
    questions.ask()
    ended = connection.execute(TRANSACTION).fetchone()
    nothing = Sweepable(due=False, lapsed=False, lanes=False, news=False)
    assert (others(), watched().control) == (Others(0, 0), None)
    assert found() == Found(queued=False, held=frozenset())
    assert seen() == Seen({"node": nothing, "ingest": nothing}, is_anybody_silent=False)
    assert began is not None
    assert ended is not None
    # Numbers are the server's, and others of this run take some: tried until none has.
    fewest = ended[0] - began[0]
    for _ in range(200):
        if fewest <= TWO:
            break
        (began,) = connection.execute(TRANSACTION).fetchall()
        questions.add(heartbeats.beating("w", host_label="h", queue="fetch", pid=7, state="idle"))
        questions.add(jobs.watching([], host_label="h", queue="fetch"))
        look_with(questions, Settings(), chance=lambda: 0.0)
        questions.add(jobs.finding("fetch", holds=["host_lock"]))
        questions.ask()
        (ended,) = connection.execute(TRANSACTION).fetchall()
        fewest = min(fewest, ended[0] - began[0])
    assert fewest == TWO


def test_many_workers_take_turns_to_look(floor: Floor, proxy: StatementProxy) -> None:
    """Each less often, whatever else it asks each second; together they look often enough."""
    workers = HeartbeatRepository(floor.connection)
    for number in range(100):
        workers.beat(f"w{number}", host_label="h", queue="fetch", pid=7, state="idle")
    with floor.worker(dsn=proxy.dsn):
        until(lambda: proxy.passed(LOOK))
        watched = proxy.passed(*WATCHES)
        # Counted and not timed: who is kept from both for a while asks each once after it.
        until(lambda: proxy.passed(*WATCHES) >= watched + 4)
        assert proxy.passed(LOOK) <= 2
