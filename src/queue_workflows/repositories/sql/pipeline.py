"""Several statements in one transaction and one round trip, on a psycopg connection in autocommit.

    Bind Execute (first)   Bind Execute (second)   Sync   ──>   both answers, one commit
         own snapshot           a later snapshot

Past psycopg's own pipeline, in which nothing can be done while the answers are waited for. Only where the
statements are all of the transaction: should the server know one of them no more, nothing has been done.
"""

from __future__ import annotations

import select
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any, Final

import psycopg
from psycopg import generators
from psycopg.abc import PQGen
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.pq.abc import PGresult

from queue_workflows.repositories.sql.prepared import ROWS, PreparedStatement, is_at_rest, is_forgotten

Params = Mapping[str, Any]

# An old libpq knows no pipelines.
_IS_SUPPORTED: Final = psycopg.Pipeline.is_supported()


class OneCommit:
    """Asks statements in one commit; each is in psycopg's `%(name)s` style and prepared at first use."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._pgconn = connection.pgconn
        self._statements: dict[str, PreparedStatement] = {}

    def ask(self, *statements_of: tuple[str, Params]) -> list[Got] | None:
        """What each brought; None if they cannot be asked so now, and nothing has been done."""
        asked = [(self._known(sql), params) for sql, params in statements_of]
        values = [statement.values(params) for statement, params in asked]
        with self._connection.lock:
            if not self._is_usable():
                return None
            statements = [statement for statement, _ in asked]
            results = self._connection.wait(self._asked(statements, values))
        for statement, result in zip(statements, results, strict=False):
            if result.status == ROWS:
                continue
            if is_forgotten(self._connection, result):
                statement.forget()
                return None
            raise error_from_result(result)
        return [
            Got(statement, result, self._connection)
            for statement, result in zip(statements, results, strict=True)
        ]

    def _known(self, sql: str) -> PreparedStatement:
        if (found := self._statements.get(sql)) is None:
            found = self._statements[sql] = PreparedStatement(sql)
        return found

    def _is_usable(self) -> bool:
        connection = self._connection
        return bool(
            _IS_SUPPORTED
            and connection.autocommit
            and connection.prepare_threshold is not None
            and is_at_rest(connection)
            and connection.pgconn.parameter_status(b"client_encoding") == b"UTF8"
        )

    def _asked(
        self, statements: Sequence[PreparedStatement], values: Sequence[Sequence[bytes | None]]
    ) -> PQGen[list[PGresult]]:
        pgconn = self._pgconn
        for statement in statements:
            if not statement.is_prepared:
                refused = yield from statement.prepare(pgconn)
                if refused is not None:
                    return [refused]
        pgconn.enter_pipeline_mode()
        try:
            for statement, given in zip(statements, values, strict=True):
                pgconn.send_query_prepared(statement.name, given)
            pgconn.pipeline_sync()
            results: list[PGresult] = list((yield from generators.execute(pgconn)))
            for _ in statements[1:]:
                results += yield from generators.fetch_many(pgconn)
            yield from generators.fetch_many(pgconn)
        except BaseException:
            # Nobody knows what the server was at; a caller that asks again asks elsewhere.
            pgconn.finish()
            raise
        pgconn.exit_pipeline_mode()
        return results


def send(
    connection: psycopg.Connection[Any], asked: Sequence[tuple[str, Params]], *, within_s: float
) -> None:
    """Have the server do these in one transaction, and read no answer: the last that a process asks.

    It returns when they are on their way, which is before the server has begun with them. Nothing is
    prepared, so nothing has to be waited for in between.
    """
    pgconn = connection.pgconn
    pgconn.enter_pipeline_mode()
    for sql, params in asked:
        statement = PreparedStatement(sql)
        pgconn.send_query_params(statement.sql, statement.values(params))
    pgconn.pipeline_sync()
    until = monotonic() + within_s
    while pgconn.flush() and (left := until - monotonic()) > 0:
        select.select([], [pgconn.socket], [], left)


class Got:
    """The rows of one statement, read when they are called for."""

    def __init__(
        self, statement: PreparedStatement, result: PGresult, connection: psycopg.Connection[Any]
    ) -> None:
        self._statement = statement
        self._result = result
        self._connection = connection

    def number(self) -> int:
        """How many."""
        return self._result.ntuples

    def rows(self) -> list[tuple[Any, ...]]:
        """All of them."""
        statement = self._statement
        is_known = statement.reader is not None
        reader = statement.reader = statement.reader or Transformer(self._connection)
        # Of the same columns as before it knows the types already.
        reader.set_pgresult(self._result, set_loaders=not is_known)
        rows = reader.load_rows(0, self._result.ntuples, tuple)
        # What it knows of the columns stays.
        reader.set_pgresult(None, set_loaders=False)
        return rows
