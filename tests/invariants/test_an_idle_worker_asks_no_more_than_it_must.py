"""What an idle worker asks for a job that it was woken for: one claim, and one end that claims as well.

The end's claim looks at everything, because the worker is advertised still: who commits after it wakes the
worker, so there is nothing to look for before the poll.
"""

from __future__ import annotations

from support.floor import CLAIMS, ENDS, Floor
from support.statement_proxy import StatementProxy
from support.workers import until

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
