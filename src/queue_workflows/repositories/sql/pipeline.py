"""Several statements in one transaction and one round trip, on a psycopg connection in autocommit.

    Bind Execute (first)   Bind Execute (second)   Sync   ──>   both answers, one commit
         own snapshot           a later snapshot

Past psycopg's own pipeline, in which nothing can be done while the answers are waited for. Only where the
statements are all of the transaction: should the server know one of them no more, nothing has been done.
"""

from __future__ import annotations

import re
import select
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any, Final

import psycopg
from psycopg import generators
from psycopg.abc import PQGen
from psycopg.abc import Transformer as Reader
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.pq.abc import PGresult

from queue_workflows.repositories.sql.prepared import (
    DONE,
    IDLE,
    NO_PIPELINE,
    PREPARED_BEFORE,
    ROWS,
    SQLSTATE,
    is_forgotten,
    name_of,
)

Params = Mapping[str, Any]

# An old libpq knows no pipelines.
_IS_SUPPORTED: Final = psycopg.Pipeline.is_supported()


class OneCommit:
    """Asks two statements in one commit; each is in psycopg's `%(name)s` style and prepared at first use."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._pgconn = connection.pgconn
        self._statements: dict[str, _Statement] = {}

    def ask(self, first: tuple[str, Params], second: tuple[str, Params]) -> tuple[Got, Got] | None:
        """What both brought; None if they cannot be asked so now, and nothing has been done."""
        asked = [(self._known(sql), params) for sql, params in (first, second)]
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
        one, other = (
            Got(statement, result, self._connection)
            for statement, result in zip(statements, results, strict=True)
        )
        return one, other

    def _known(self, sql: str) -> _Statement:
        if (found := self._statements.get(sql)) is None:
            found = self._statements[sql] = _Statement(sql)
        return found

    def _is_usable(self) -> bool:
        connection, pgconn = self._connection, self._pgconn
        return bool(
            _IS_SUPPORTED
            and connection.autocommit
            and connection.prepare_threshold is not None
            and pgconn.transaction_status == IDLE
            and pgconn.pipeline_status == NO_PIPELINE
            and pgconn.parameter_status(b"client_encoding") == b"UTF8"
        )

    def _asked(
        self, statements: Sequence[_Statement], values: Sequence[Sequence[bytes | None]]
    ) -> PQGen[list[PGresult]]:
        pgconn = self._pgconn
        for statement in statements:
            if not statement.is_prepared:
                pgconn.send_prepare(statement.name, statement.sql)
                (result,) = yield from generators.execute(pgconn)
                if result.status != DONE and result.error_field(SQLSTATE) != PREPARED_BEFORE:
                    return [result]
                statement.is_prepared = True
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
        statement = _Statement(sql)
        pgconn.send_query_params(statement.sql, statement.values(params))
    pgconn.pipeline_sync()
    until = monotonic() + within_s
    while pgconn.flush() and (left := until - monotonic()) > 0:
        select.select([], [pgconn.socket], [], left)


class _Statement:
    def __init__(self, sql: str) -> None:
        names: dict[str, int] = {}
        text = re.sub(r"%\((\w+)\)s", lambda found: f"${names.setdefault(found[1], len(names) + 1)}", sql)
        self.sql = text.encode()
        self.names = list(names)
        self.name = name_of(self.sql)
        self.is_prepared = False
        self.reader: Reader | None = None

    def forget(self) -> None:
        """The server knows it no more."""
        self.is_prepared, self.reader = False, None

    def values(self, params: Params) -> list[bytes | None]:
        """In the order of their numbers."""
        return [_as_text(params[name]) for name in self.names]


class Got:
    """The rows of one statement, read when they are called for."""

    def __init__(self, statement: _Statement, result: PGresult, connection: psycopg.Connection[Any]) -> None:
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


def _as_text(value: object) -> bytes | None:
    """As the server reads it, which is told the type by a cast."""
    if value is None:
        return None
    if isinstance(value, bool):
        return b"t" if value else b"f"
    return (repr(value) if isinstance(value, float) else str(value)).encode()
