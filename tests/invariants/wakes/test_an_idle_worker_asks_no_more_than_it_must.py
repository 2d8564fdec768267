"""What an idle worker asks: one look a second for what there is to sweep, less beside many others; and for a
job that it was woken for one claim, and one end that claims as well.

The end's claim looks at everything, because the worker is advertised still: who commits after it wakes the
worker, so there is nothing to look for before the poll.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from support.processes.workers import until
from support.servers.statement_proxy import StatementProxy
from support.stages.floor import CLAIMS, ENDS, WATCHES, Floor

from queue_workflows.repositories import HeartbeatRepository
from queue_workflows.repositories.claims.sweep import PROMOTE, RECLAIM
from queue_workflows.repositories.claims.sweep_look import LOOK
from queue_workflows.repositories.limits.lanes import LANES

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
