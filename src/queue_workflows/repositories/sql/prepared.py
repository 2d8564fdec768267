"""Statements prepared on a psycopg connection in autocommit, and one of them sent past psycopg's cursor.

To a job that is enqueued alone a cursor costs more than all else that its producer does. Only where the
statement is a transaction of its own: should the server know it no more, as behind DISCARD ALL, then nothing
is lost, and a cursor does it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final

import psycopg
from psycopg import generators
from psycopg.abc import PQGen
from psycopg.abc import Transformer as Reader
from psycopg.errors import error_from_result
from psycopg.pq import DiagnosticField, ExecStatus, PipelineStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult

from queue_workflows.db.connections.asking_connection import AskingConnection
from queue_workflows.repositories.sql.drivers.placeholders import numbered

# An enum's members are dear to look up on a class.
IDLE: Final = TransactionStatus.IDLE
NO_PIPELINE: Final = PipelineStatus.OFF
ROWS: Final = ExecStatus.TUPLES_OK
DONE: Final = ExecStatus.COMMAND_OK
SQLSTATE: Final = DiagnosticField.SQLSTATE
NOT_PREPARED: Final = b"26000"
PREPARED_BEFORE: Final = b"42P05"


def is_forgotten(connection: psycopg.Connection[Any], result: PGresult) -> bool:
    """Whether the server does not know the statement any more; raises on a connection of our own.

    A caller may have thrown away what was prepared on its connection. On ours nobody does, so there it is the
    sign of a proxy that keeps no sessions.
    """
    if result.error_field(SQLSTATE) != NOT_PREPARED:
        return False
    if isinstance(connection, AskingConnection) and not connection.is_callers:
        error = error_from_result(result)
        raise connection.doubted(error) from error
    return True


def is_at_rest(connection: psycopg.Connection[Any]) -> bool:
    """Whether a statement that is sent now, in autocommit, is a transaction of its own."""
    pgconn = connection.pgconn
    return bool(pgconn.transaction_status == IDLE and pgconn.pipeline_status == NO_PIPELINE)


class PreparedStatement:
    """A statement as the server takes it, made of psycopg's `%(name)s` style; prepared at first use.

    Its parameters are numbered in the order of `names`, and after these as they are met. `reader` has read
    its rows before, and knows the types of their columns.
    """

    def __init__(self, sql: str, names: Sequence[str] = ()) -> None:
        text, self.names = numbered(sql, names)
        self.sql = text.encode()
        # Two of the same on one connection are the same statement to the server.
        self.name = b"qwf_" + blake2b(self.sql, digest_size=8).hexdigest().encode()
        self.is_prepared = False
        self.reader: Reader | None = None

    def values(self, params: Mapping[str, Any]) -> list[bytes | None]:
        """In the order of their numbers."""
        return [_as_text(params[name]) for name in self.names]

    def prepare(self, pgconn: PGconn) -> PQGen[PGresult | None]:
        """Have the server prepare it; what it answers if it does not."""
        pgconn.send_prepare(self.name, self.sql)
        results: list[PGresult] = yield from generators.execute(pgconn)
        result = results[-1]
        if result.status != DONE and result.error_field(SQLSTATE) != PREPARED_BEFORE:
            return result
        self.is_prepared = True
        return None

    def forget(self) -> None:
        """The server knows it no more."""
        self.is_prepared, self.reader = False, None


class Prepared:
    """A statement that returns one column, and is a transaction of its own."""

    def __init__(self, connection: psycopg.Connection[Any], sql: str, names: Sequence[str]) -> None:
        self._connection = connection
        self._pgconn = connection.pgconn
        self._statement = PreparedStatement(sql, names)
        self._uses = 0

    def is_usable(self) -> bool:
        """Whether it may be sent so now: as psycopg prepares, only what is asked again and again."""
        connection, pgconn = self._connection, self._pgconn
        threshold = connection.prepare_threshold
        if threshold is None or not connection.autocommit:
            return False
        self._uses += 1
        return (
            self._uses > threshold
            and is_at_rest(connection)
            and pgconn.parameter_status(b"client_encoding") == b"UTF8"
        )

    def column(self, values: Sequence[bytes]) -> list[bytes | None] | None:
        """What it returns, as text; None if it has to be asked by a cursor, and nothing has been done."""
        with self._connection.lock:
            if not is_at_rest(self._connection):
                # Another of the caller's threads has begun something since.
                return None
            result = self._connection.wait(self._asked(values))
        if result.status == ROWS:
            return [result.get_value(row, 0) for row in range(result.ntuples)]
        self._statement.forget()
        if is_forgotten(self._connection, result):
            return None
        raise error_from_result(result)

    def _asked(self, values: Sequence[bytes]) -> PQGen[PGresult]:
        statement = self._statement
        if not statement.is_prepared:
            refused = yield from statement.prepare(self._pgconn)
            if refused is not None:
                return refused
        self._pgconn.send_query_prepared(statement.name, values)
        results: list[PGresult] = yield from generators.execute(self._pgconn)
        return results[-1]


def _as_text(value: object) -> bytes | None:
    """As the server reads it, which is told the type by a cast."""
    if value is None:
        return None
    if isinstance(value, bool):
        return b"t" if value else b"f"
    return (repr(value) if isinstance(value, float) else str(value)).encode()
