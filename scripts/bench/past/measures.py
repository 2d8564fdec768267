"""Reads beside a history beside the same of one that is a hundredth as long; and parts of retention."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

import psycopg

from bench.harness.figures import Figure
from bench.harness.measuring import Bench
from bench.operator_page.history import RARE, put_history
from bench.operator_page.history import WAITING as WAITING_JOBS
from queue_workflows.db.connections.engine import Database
from queue_workflows.engine.upkeep.history import HistoryMoving
from queue_workflows.engine.upkeep.retention import EVERY_S, Pruning
from queue_workflows.repositories import IngestJobRepository
from queue_workflows.repositories.history import HistoryRepository
from queue_workflows.repositories.reports.job_listing import JobFilter, SelectingRepository
from queue_workflows.repositories.reports.job_search import JobSearch
from queue_workflows.repositories.reports.queue_statistics import StatisticsRepository
from queue_workflows.roles.probes.figures import read_figures
from queue_workflows.settings import Settings

# The options that the script has beside those of the others: full, and in a quick look.
AMOUNTS: Final = {
    "rows": (1_000_000, 4_000, "jobs that are over, half of each family"),
    "looks": (10, 2, "how often each thing is read"),
}
_SHARE: Final = 100
# What looks at more in a longer history, up to a bound of its own: of the same month more ended in each hour.
GROWS: Final = frozenset({"job list, a rare task", "failures", "failures, 3,000", "queue stats"})
WAITING: Final = 1_000
BY_ID: Final = "one job by its id"
# What looks into each month, so that their number is its bound.
OF_EACH_MONTH: Final = frozenset({BY_ID, "job list"})
# Jobs that were emptied and stay for their keys, and behind them some that are to go or to be emptied.
OLD: Final = 20_000
KEPT: Final = """
INSERT INTO ingest_jobs (task_name, queue, status, args, dedupe_key, finished_at)
SELECT 'fetch', 'fetch', 'completed', '{}', 'https://site.example/page/' || n,
    now() - interval '36 days' + interval '4 days' * n / %(kept)s
FROM generate_series(1, %(kept)s::int) AS n
"""
MARK: Final = """
INSERT INTO retention_marks (family, seen_before) SELECT 'ingest', max(finished_at) FROM ingest_jobs
"""
LATER: Final = """
INSERT INTO ingest_jobs (task_name, queue, status, args, result, dedupe_key, finished_at)
SELECT 'fetch', 'fetch', 'completed', jsonb_build_object('url', 'https://site.example/page/' || n),
    '{"bytes": 12345}', CASE WHEN %(keyed)s::boolean THEN 'https://site.example/later/' || n END,
    now() - interval '31 days' + interval '1 s' * n
FROM generate_series(1, %(old)s::int) AS n
"""
BLOCKS: Final = """
SELECT sum(COALESCE(heap_blks_read, 0) + COALESCE(heap_blks_hit, 0) + COALESCE(idx_blks_read, 0)
    + COALESCE(idx_blks_hit, 0) + COALESCE(toast_blks_read, 0) + COALESCE(toast_blks_hit, 0))::bigint
FROM pg_statio_user_tables
"""
# A year of jobs that moved long ago, the last of them a month ago, with ids below those in the table.
MOVED_MONTHS: Final = """
SELECT qwf_history_make_months(ARRAY(
    SELECT date_trunc('month', now(), 'UTC') - interval '1 month' * n FROM generate_series(0, 14) AS n
))
"""
MOVED: Final = """
INSERT INTO ingest_jobs_history (
    id, position, task_name, queue, status, args, result, priority, run_at, generation, attempt, failures,
    max_attempts, crash_count, suspect, at_most_once, errors, claimed_by, created_at, started_at, finished_at
)
SELECT n, n, (ARRAY['fetch', 'parse', 'index'])[1 + n %% 3],
    (ARRAY['fetch', 'parse', 'index', 'mail'])[1 + n %% 4], 'completed',
    jsonb_build_object('url', 'https://site-' || n %% 1000 || '.example/page/' || n),
    jsonb_build_object('bytes', n * 37 %% 100000), 5, at, 1, 1, 0, 3, 0, false, false, '[]',
    'host' || 1 + n %% 5 || ':fetch:' || 1 + n %% 10, at, at + interval '2 s', at + interval '5 s'
FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n,
    LATERAL (
        SELECT now() - interval '31 days' - interval '365 days' * ((%(rows)s - n)::float8 / %(rows)s)
    ) AS one (at)
"""
OLDEST: Final = "SELECT min(id) FROM ingest_jobs_and_history"
ROWS: Final = """
SELECT sum(COALESCE(seq_tup_read, 0) + COALESCE(idx_tup_fetch, 0))::bigint FROM pg_stat_user_tables
"""
WAL: Final = "SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint"


@dataclass
class Cost:
    """What something took, each time that it was done."""

    blocks: list[int] = field(default_factory=list)
    ms: list[float] = field(default_factory=list)


def reads(bench: Bench) -> Sequence[Figure]:
    """What workers, operators and scrapers ask, beside a long history and beside a short one."""
    rows, looks = bench.amounts["rows"], bench.amounts["looks"]
    long, short = (_read_beside(bench, much, looks) for much in (rows, max(rows // _SHARE, 1_000)))
    figures = []
    for name, cost in long.items():
        blocks, base = median(cost.blocks), median(short[name].blocks)
        said = f"{name}, {median(cost.ms):,.1f} ms"
        target = None if name in GROWS else 2.0
        figures.append(
            Figure(
                *("reads", said, blocks, "blocks", f"1/{_SHARE} of the rows", base),
                *(blocks / max(base, 1), target, True),
            )
        )
    return figures


def beside(bench: Bench) -> Sequence[Figure]:
    """What is read beside so many jobs in a history by months, and the same beside none."""
    rows, looks = bench.amounts["rows"], bench.amounts["looks"]
    with _database(bench) as (dsn, connection):
        connection.execute("SELECT setval(pg_get_serial_sequence('ingest_jobs', 'id'), %s)", [rows])
        put_history(
            dsn, ended=max(rows // _SHARE, 1_000), waiting=WAITING, nodes=20, elements=20, say=bench.say
        )
        plain = _costs(connection, looks, lambda name: bench.say(f"plain: {name}"))
        connection.execute(WAITING_JOBS, {"waiting": WAITING})
        HistoryRepository(connection).set_by_months(True)
        connection.execute(MOVED_MONTHS)
        part = 500_000
        for first in range(1, rows + 1, part):
            bench.say(f"filling: a history by months, {first - 1:,}")
            last = min(first + part - 1, rows)
            connection.execute(MOVED, {"first": first, "last": last, "rows": rows})
        connection.execute("VACUUM (ANALYZE) ingest_jobs_history")
        by_months = _costs(connection, looks, lambda name: bench.say(f"by months: {name}"))
        return [*_compared("beside", by_months, plain), *_dropped(connection, "beside")]


def _compared(measure: str, costs: Mapping[str, Cost], plain: Mapping[str, Cost]) -> Iterator[Figure]:
    for name, cost in costs.items():
        blocks, base = median(cost.blocks), median(plain[name].blocks)
        said = f"{name}, {median(cost.ms):,.1f} ms"
        target = None if name in GROWS | OF_EACH_MONTH else 2.0
        yield Figure(measure, said, blocks, "blocks", "plain", base, blocks / max(base, 1), target, True)


def months(bench: Bench) -> Sequence[Figure]:
    """The reads of `reads` once history is by months, beside the same before; what moving a job costs."""
    rows, looks = bench.amounts["rows"], bench.amounts["looks"]
    with _database(bench) as (dsn, connection):
        put_history(dsn, ended=rows, waiting=WAITING, nodes=20, elements=20, say=bench.say)
        plain = _costs(connection, looks, lambda name: bench.say(f"plain: {name}"))
        connection.execute(WAITING_JOBS, {"waiting": WAITING})
        bench.say("moving")
        HistoryRepository(connection).set_by_months(True)
        connection.execute("CHECKPOINT")
        wal, begun = _count(connection, WAL), time.perf_counter()
        moving = HistoryMoving(Settings(retention_days=3650))
        while moving.move(connection):
            pass
        took = (time.perf_counter() - begun) * 1000
        wal = _count(connection, WAL) - wal
        ((moved,),) = connection.execute("SELECT count(*) FROM ingest_jobs_history")
        connection.execute("VACUUM (ANALYZE)")
        by_months = _costs(connection, looks, lambda name: bench.say(f"by months: {name}"))
        return [
            *_compared("months", by_months, plain),
            Figure("months", f"WAL of each that moves, {took / moved:,.3f} ms", wal / moved, "bytes"),
            *_dropped(connection, "months"),
        ]


def _dropped(connection: psycopg.Connection[Any], measure: str) -> Iterator[Figure]:
    """What it writes to drop a month, by the rows that it had."""
    months_there = HistoryRepository(connection).months()
    for month in sorted(months_there, key=lambda one: one.jobs)[-1:]:
        wal, begun = _count(connection, WAL), time.perf_counter()
        connection.execute(f"DROP TABLE ingest_jobs_history_{month.name}")
        took = (time.perf_counter() - begun) * 1000
        wal = _count(connection, WAL) - wal
        yield Figure(measure, f"WAL of dropping a month of {month.jobs:,} jobs, {took:,.0f} ms", wal, "bytes")


def prune(bench: Bench) -> Sequence[Figure]:
    """What a part of retention reads behind many jobs that stay for their keys, and what it writes."""
    kept, old = bench.amounts["rows"], min(OLD, bench.amounts["rows"])
    figures = []
    written: dict[bool, float] = {}
    for keyed in (False, True):
        with _database(bench) as (_, connection):
            bench.say(f"filling: {kept:,} jobs that stay for their keys")
            connection.execute("SET session_replication_role = replica")
            connection.execute(KEPT, {"kept": kept})
            connection.execute(MARK)
            connection.execute(LATER, {"old": old, "keyed": keyed})
            connection.execute("RESET session_replication_role")
            connection.execute("VACUUM ANALYZE ingest_jobs")
            connection.execute("CHECKPOINT")
            what = "emptied" if keyed else "deleted"
            read, wal, ms = _pruned(connection, pruning := Pruning(Settings()))
            written[keyed] = wal / old
            figures += [
                _within(f"rows read for each that is {what}, {ms / old:,.3f} ms", read / old, 4.0),
                Figure("prune", f"WAL of each that is {what}", wal / old, "bytes"),
            ]
            read, _, ms = _pruned(connection, pruning)
            figures.append(_within(f"rows read where nothing is to go, {ms:,.1f} ms", read, 100.0))
    ratio = written[True] / written[False]
    figures.append(
        Figure(
            *("prune", "WAL of emptying beside deleting", written[True], "bytes", "deleted", written[False]),
            *(ratio, 2.0, True),
        )
    )
    return figures


def _within(what: str, rows: float, bound: float) -> Figure:
    return Figure("prune", what, rows, "rows", "the bound", bound, rows / bound, 1.0, at_most=True)


@contextmanager
def _database(bench: Bench) -> Iterator[tuple[str, psycopg.Connection[Any]]]:
    """A new database, and a connection as the engine has it."""
    dsn = bench.server.database()
    with Database.open(dsn, role="bench", creates=False) as database:
        yield dsn, database.connect(autocommit=True)


def _read_beside(bench: Bench, rows: int, looks: int) -> Mapping[str, Cost]:
    with _database(bench) as (dsn, connection):
        put_history(dsn, ended=rows, waiting=WAITING, nodes=20, elements=20, say=bench.say)
        return _costs(connection, looks, lambda name: bench.say(f"{rows:,} rows: {name}"))


def _costs(connection: psycopg.Connection[Any], looks: int, say: Callable[[str], None]) -> Mapping[str, Cost]:
    costs: dict[str, Cost] = {}
    for name, act in _acts(connection).items():
        say(name)
        # Once before it counts: what the server has never planned or cached costs more.
        act()
        costs[name] = Cost()
        for _ in range(looks):
            before, begun = _count(connection, BLOCKS), time.perf_counter()
            act()
            costs[name].ms.append((time.perf_counter() - begun) * 1000)
            costs[name].blocks.append(_count(connection, BLOCKS) - before)
    return costs


def _acts(connection: psycopg.Connection[Any]) -> Mapping[str, Callable[[], object]]:
    jobs = IngestJobRepository(connection)
    search, selecting = JobSearch(connection), SelectingRepository(connection)
    stats = StatisticsRepository(connection)
    failed = JobFilter(status=("failed",))
    ((oldest,),) = connection.execute(OLDEST)
    return {
        "claim of one": lambda: jobs.claim("fetch", worker_id="host1:fetch:1", lease_s=30, limit=1),
        "claim of sixteen": lambda: jobs.claim("fetch", worker_id="host1:fetch:1", lease_s=30, limit=16),
        "job list": lambda: search.page(JobFilter()),
        "job list, failed": lambda: search.page(failed),
        "job list, a rare task": lambda: search.page(JobFilter(task=RARE)),
        "failures": lambda: selecting.failures(since_s=7 * 86_400.0),
        "failures, 3,000": lambda: selecting.failures(since_s=7 * 86_400.0, most=3_000),
        "queue stats": lambda: stats.read(stale_s=30.0),
        BY_ID: lambda: jobs.fetch(oldest),
        "metrics": lambda: read_figures(connection, stale_s=30.0),
    }


def _pruned(connection: psycopg.Connection[Any], pruning: Pruning) -> tuple[int, int, float]:
    """Until there is nothing more to do: rows read, bytes of WAL, milliseconds."""
    read, wal, begun = _count(connection, ROWS), _count(connection, WAL), time.perf_counter()
    while pruning.prune(connection) < EVERY_S:
        pass
    took = (time.perf_counter() - begun) * 1000
    return _count(connection, ROWS) - read, _count(connection, WAL) - wal, took


def _count(connection: psycopg.Connection[Any], sql: str) -> int:
    connection.execute("SELECT pg_stat_force_next_flush()")
    ((count,),) = connection.execute(sql)
    return int(count)
