"""One statement, prepared on a psycopg connection in autocommit, and sent past psycopg's cursor.

To a job that is enqueued alone a cursor costs more than all else that its producer does. Only where the
statement is a transaction of its own: should the server know it no more, as behind DISCARD ALL, then nothing
is lost, and a cursor does it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final

import psycopg
from psycopg import generators
from psycopg.abc import PQGen
from psycopg.errors import error_from_result
from psycopg.pq import DiagnosticField, ExecStatus, PipelineStatus, TransactionStatus
from psycopg.pq.abc import PGresult

from queue_workflows.db.connections.asking_connection import AskingConnection

# An enum's members are dear to look up on a class.
IDLE: Final = TransactionStatus.IDLE
NO_PIPELINE: Final = PipelineStatus.OFF
ROWS: Final = ExecStatus.TUPLES_OK
DONE: Final = ExecStatus.COMMAND_OK
SQLSTATE: Final = DiagnosticField.SQLSTATE
NOT_PREPARED: Final = b"26000"
PREPARED_BEFORE: Final = b"42P05"


def name_of(sql: bytes) -> bytes:
    """What the server calls it: two of the same on one connection are the same statement."""
    return b"qwf_" + blake2b(sql, digest_size=8).hexdigest().encode()


def is_forgotten(connection: psycopg.Connection[Any], result: PGresult) -> bool:
    """Whether the server does not know the statement any more; raises on a connection of our own.

    The owner of another may have thrown away what was prepared. On ours nobody does, so there it is the sign
    of a proxy that keeps no sessions.
    """
    if result.error_field(SQLSTATE) != NOT_PREPARED:
        return False
    if isinstance(connection, AskingConnection):
        error = error_from_result(result)
        raise connection.doubted(error) from error
    return True


class Prepared:
    """A statement that returns one column, with its parameters in psycopg's `%(name)s` style."""

    def __init__(self, connection: psycopg.Connection[Any], sql: str, names: Sequence[str]) -> None:
        self._connection = connection
        self._pgconn = connection.pgconn
        numbers = {name: number for number, name in enumerate(names, 1)}
        self._sql = re.sub(r"%\((\w+)\)s", lambda found: f"${numbers[found[1]]}", sql).encode()
        self._name = name_of(self._sql)
        self._uses = 0
        self._is_prepared = False

    def is_usable(self) -> bool:
        """Whether it may be sent so now: as psycopg prepares, only what is asked again and again."""
        connection, pgconn = self._connection, self._pgconn
        threshold = connection.prepare_threshold
        if threshold is None or not connection.autocommit:
            return False
        self._uses += 1
        return (
            self._uses > threshold
            and self._is_at_rest()
            and pgconn.parameter_status(b"client_encoding") == b"UTF8"
        )

    def column(self, values: Sequence[bytes]) -> list[bytes | None] | None:
        """What it returns, as text; None if it has to be asked by a cursor, and nothing has been done."""
        with self._connection.lock:
            if not self._is_at_rest():
                # Another of the caller's threads has begun something since.
                return None
            result = self._connection.wait(self._asked(values))
        if result.status == ROWS:
            return [result.get_value(row, 0) for row in range(result.ntuples)]
        self._is_prepared = False
        if is_forgotten(self._connection, result):
            return None
        raise error_from_result(result)

    def _is_at_rest(self) -> bool:
        """Whether a statement that is sent now is a transaction of its own."""
        pgconn = self._pgconn
        return bool(pgconn.transaction_status == IDLE and pgconn.pipeline_status == NO_PIPELINE)

    def _asked(self, values: Sequence[bytes]) -> PQGen[PGresult]:
        if not self._is_prepared:
            self._pgconn.send_prepare(self._name, self._sql)
            result = yield from self._answer()
            if result.status != DONE and result.error_field(SQLSTATE) != PREPARED_BEFORE:
                return result
            self._is_prepared = True
        self._pgconn.send_query_prepared(self._name, values)
        return (yield from self._answer())

    def _answer(self) -> PQGen[PGresult]:
        results: list[PGresult] = yield from generators.execute(self._pgconn)
        return results[-1]
