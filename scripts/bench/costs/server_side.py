"""What the server did between two moments: statements from pg_stat_statements, WAL from pg_walinspect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from bench.harness.servers import said

# Exact counts: nothing of a checkpoint or of autovacuum falls into one measure and not into the other.
SETTINGS: Final[Mapping[str, str]] = {
    "shared_preload_libraries": "pg_stat_statements",
    "pg_stat_statements.track": "all",
    "autovacuum": "off",
    "checkpoint_timeout": "1h",
    "max_wal_size": "8GB",
    "compute_query_id": "on",
    "pg_stat_statements.track_utility": "on",
}
_STATEMENTS: Final = """
SELECT toplevel, regexp_replace(query, E'\\\\s+', ' ', 'g'), calls, rows, total_exec_time,
    shared_blks_hit + shared_blks_read, shared_blks_dirtied, wal_records, wal_bytes::bigint
FROM pg_stat_statements
WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND query !~ 'pg_stat_statements|pg_current_wal|pg_logical_emit|pg_get_wal'
ORDER BY total_exec_time DESC
"""
# blocks: of each record how much are full pages, and the relation of its first block. Only this database's
# count, and what has no block: commits, and marks that others leave seldom.
_WAL: Final = """
WITH blocks AS MATERIALIZED (
    SELECT start_lsn, min(relfilenode) FILTER (WHERE block_id = 0) AS file, sum(block_fpi_length) AS pages,
        bool_and(reldatabase = (SELECT oid FROM pg_database WHERE datname = current_database())) AS is_ours
    FROM pg_get_wal_block_info(%(since)s, %(until)s) GROUP BY start_lsn
)
SELECT CASE WHEN blocks.file IS NULL THEN '' ELSE COALESCE(class.relname, 'catalog') END,
    resource_manager || ' ' || record_type, count(*), sum(record_length - COALESCE(pages, 0))::bigint,
    sum(COALESCE(pages, 0))::bigint
FROM pg_get_wal_records_info(%(since)s, %(until)s) AS record
LEFT JOIN blocks USING (start_lsn)
LEFT JOIN pg_class AS class ON class.relfilenode = blocks.file AND class.relnamespace = 'public'::regnamespace
WHERE (is_ours OR is_ours IS NULL) AND resource_manager NOT IN ('XLOG', 'Standby', 'LogicalMessage')
GROUP BY 1, 2 ORDER BY 4 DESC
"""


@dataclass(frozen=True)
class Statement:
    """A statement, or one within a function that a trigger calls (`nested`), with what all its calls took."""

    nested: bool
    query: str
    calls: int
    rows: int
    ms: float
    buffers: int
    dirtied: int
    wal_records: int
    wal_bytes: int


@dataclass(frozen=True)
class Records:
    """Records of one kind for one table or index; bytes of full page images stand apart."""

    relation: str
    kind: str
    count: int
    bytes: int
    page_bytes: int


@dataclass(frozen=True)
class ServerSide:
    """All that the server did."""

    statements: list[Statement]
    wal: list[Records]


class Watch:
    """Watches one database: `begin`, then `end` with what was done since."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        for extension in ("pg_stat_statements", "pg_walinspect"):
            connection.execute(f"CREATE EXTENSION IF NOT EXISTS {extension}".encode())
        self._since = ""

    def begin(self) -> None:
        """Forget what was before."""
        self._since = self._here()
        self._connection.execute("SELECT pg_stat_statements_reset()")

    def end(self) -> ServerSide:
        """What was done since `begin`."""
        statements = [
            Statement(not top, query, *more) for top, query, *more in self._connection.execute(_STATEMENTS)
        ]
        span = {"since": self._since, "until": self._here()}
        return ServerSide(statements, [Records(*row) for row in self._connection.execute(_WAL, span)])

    def _here(self) -> str:
        """Where the WAL is; all of it is on disk up to there, asynchronous commits too."""
        self._connection.execute("SELECT pg_logical_emit_message(true, 'bench', 'here')")
        return str(said(self._connection, "SELECT pg_current_wal_flush_lsn()"))
