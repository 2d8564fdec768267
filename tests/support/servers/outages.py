"""A way to the database that is cut as a test needs it, and a way to see that a lease is long over."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
from support.processes.workers import until
from support.servers.statement_proxy import StatementProxy


def stop(proxy: StatementProxy) -> None:
    """As when the server is stopped: every line is closed, and no other is taken."""
    proxy.refuse()
    proxy.recover()


def swallow(proxy: StatementProxy) -> None:
    """As when the network takes every byte and passes none on."""
    proxy.swallow()


def restore(proxy: StatementProxy) -> None:
    """The end of either."""
    proxy.refuse(False)
    if proxy.swallowing:
        proxy.recover()


CUTS: dict[str, Callable[[StatementProxy], None]] = {"stopped": stop, "swallowed": swallow}

_OVER = """
SELECT lease_expires_at + make_interval(secs => %s) < clock_timestamp() FROM {table} WHERE id = %s
"""


def until_over(
    connection: psycopg.Connection, job_id: int, *, for_s: float, table: str = "ingest_jobs"
) -> None:
    """Wait until the lease of a running job has been over for so long, as the server's clock has it."""

    def is_over() -> bool:
        row = connection.execute(_OVER.format(table=table), [for_s, job_id]).fetchone()
        return row == (True,)

    until(is_over)
