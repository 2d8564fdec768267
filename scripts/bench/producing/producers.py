"""What the wake costs those who enqueue, and what a producer in Python reaches."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from statistics import median
from typing import Any, Final

import asyncpg
import psycopg
from psycopg.conninfo import conninfo_to_dict

from bench import peers
from bench.harness import pgbench
from bench.harness.figures import Figure, interleaved, ratio
from bench.harness.measuring import Bench
from bench.harness.servers import said
from bench.harness.workers import ONE_AT_A_TIME, environment, working
from bench.producing.crews import Crew
from bench.producing.orders import take_orders
from queue_workflows import aenqueue_ingest_job, aenqueue_many, enqueue_ingest_job, enqueue_many
from queue_workflows.repositories import NewIngestJob

BUSY: Final = 2
HOLD: Final = """
INSERT INTO ingest_jobs (task_name, queue, priority) SELECT 'hold', 'fetch', 9 FROM generate_series(1, %s)
"""
HELD: Final = "SELECT count(*) FROM ingest_jobs WHERE status = 'running'"
AT_ONCE: Final = {"QWF_GRACE_S": "0"}
_PATIENCE_S: Final = 300.0


def producers(bench: Bench) -> Sequence[Figure]:
    """Ten producers while all workers are busy: bare, through the library, and through other queues."""
    each, rounds, size = bench.much(300, 20), bench.much(11, 1), bench.much(10, 3)
    versions = peers.installed()
    if not versions:
        bench.say("no peer installed: docs/benchmarks.md says how")
    with bench.database() as with_trigger, bench.database() as without, ExitStack() as stack:
        without[1].execute("ALTER TABLE ingest_jobs DISABLE TRIGGER USER")

        def bare(dsn: str) -> float:
            script = pgbench.ENQUEUE
            return pgbench.tps(bench.server.bindir, dsn, script, transactions=each, clients=size)

        stack.enter_context(_busy_workers(*with_trigger))
        stack.enter_context(_busy_workers(*without))
        ours = stack.enter_context(library(with_trigger[0], size))
        others = {name: stack.enter_context(peer(bench, name, size)) for name in versions}
        seen = interleaved(
            rounds,
            {
                "with trigger": lambda: bare(with_trigger[0]),
                "without": lambda: bare(without[0]),
                "Python": lambda: ours.rate("autocommit", each),
                "Python, BEGIN and COMMIT": lambda: ours.rate("transaction", each),
                **{name: partial(crew.rate, "single", each) for name, crew in others.items()},
            },
            bench.say,
        )
    what = f"{size} producers, busy workers"
    return [*_bare_figures(what, seen), *_peer_figures(what, seen, versions)]


def _bare_figures(what: str, seen: Mapping[str, Sequence[float]]) -> Sequence[Figure]:
    with_trigger = seen["with trigger"]
    bare = Figure(
        *("producers", f"{what}: pgbench", median(with_trigger), "jobs/s"),
        *("no trigger", median(seen["without"]), ratio(with_trigger, seen["without"]), 0.75),
    )
    return [
        bare,
        *(
            Figure(
                *("producers", f"{what}: {form}", median(seen[form]), "jobs/s"),
                *("pgbench, with trigger", median(with_trigger), ratio(seen[form], with_trigger)),
            )
            for form in ("Python", "Python, BEGIN and COMMIT")
        ),
    ]


def _peer_figures(
    what: str, seen: Mapping[str, Sequence[float]], versions: Mapping[str, str]
) -> Sequence[Figure]:
    """The peers commit each job by themselves, so they stand beside the library on autocommit."""
    return [
        Figure(
            *("producers", f"{what}: Python", median(seen["Python"]), "jobs/s"),
            *(f"{name} {number}", median(seen[name]), ratio(seen["Python"], seen[name]), 2.5),
        )
        for name, number in versions.items()
    ]


def library(dsn: str, size: int = 1) -> Crew:
    """Processes that enqueue as `produce` has it."""
    command = [sys.executable, "-m", "bench.producing.producers", dsn]
    return Crew(command, environment(dsn), size=size)


@contextmanager
def peer(bench: Bench, name: str, size: int = 1) -> Iterator[Crew]:
    """Processes that enqueue with a peer, on a database of its own."""
    dsn = bench.server.database()
    peers.prepare(name, dsn)
    with Crew(peers.command("produce", name, dsn), peers.environment(), size=size) as crew:
        yield crew


@contextmanager
def _busy_workers(dsn: str, connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Workers that hold a job each, and so advertise nothing; told to stop, they let go of it at once."""
    connection.execute(HOLD, [BUSY])
    with ExitStack() as stack:
        for _ in range(BUSY):
            stack.enter_context(working(dsn, *ONE_AT_A_TIME, settings=AT_ONCE))
        until = time.monotonic() + _PATIENCE_S
        while said(connection, HELD) < BUSY:
            if time.monotonic() > until:
                raise SystemExit("the workers did not begin")
            time.sleep(0.05)
        yield


def produce(dsn: str) -> None:
    """Each job in a transaction of its own, as a host app would: one statement, or BEGIN to COMMIT."""

    def job(number: int, connection: psycopg.Connection[Any]) -> None:
        enqueue_ingest_job("noop", queue="fetch", args={"n": number}, conn=connection)

    with (
        psycopg.connect(dsn, autocommit=True) as each,
        psycopg.connect(dsn) as begun,
        asyncio.Runner() as runner,
    ):

        def autocommit(count: int) -> None:
            for number in range(count):
                job(number, each)

        def transaction(count: int) -> None:
            for number in range(count):
                job(number, begun)
                begun.commit()

        def bulk(count: int, prefix: str | None = None) -> None:
            enqueue_many(_jobs(count, prefix), conn=begun)
            begun.commit()

        def keyed(count: int) -> None:
            bulk(count, f"{time.time_ns()}-")

        forms = {
            "autocommit": autocommit,
            "transaction": transaction,
            "bulk": bulk,
            "keyed": keyed,
            **_by_asyncpg(dsn, runner),
        }
        for form in forms.values():
            form(1)
        take_orders(forms)


def _jobs(count: int, prefix: str | None = None) -> Iterator[NewIngestJob]:
    for number in range(count):
        key = prefix and f"{prefix}{number}"
        yield NewIngestJob(task_name="noop", queue="fetch", args={"n": number}, dedupe_key=key)


def _by_asyncpg(dsn: str, runner: asyncio.Runner) -> dict[str, Callable[[int], None]]:
    """The awaited verbs, each job in a transaction of its own, or all in one."""
    connection = runner.run(_asyncpg(dsn))

    async def single(count: int) -> None:
        for number in range(count):
            await aenqueue_ingest_job("noop", queue="fetch", args={"n": number}, conn=connection)

    async def bulk(count: int) -> None:
        async with connection.transaction():
            await aenqueue_many(_jobs(count), conn=connection)

    return {
        "asyncpg": lambda count: runner.run(single(count)),
        "asyncpg-bulk": lambda count: runner.run(bulk(count)),
    }


async def _asyncpg(dsn: str) -> Any:
    given = conninfo_to_dict(dsn)
    names = {"host": "host", "port": "port", "user": "user", "password": "password", "dbname": "database"}
    return await asyncpg.connect(**{there: given[here] for here, there in names.items() if given.get(here)})


if __name__ == "__main__":
    produce(sys.argv[1])
