"""The stage of the tests that break real workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.connections.kept import own_connection
from support.rows.jobs import CLEAR_WITH_WORKERS
from support.servers.statement_proxy import StatementProxy
from support.stages.floor import Floor
from support.stages.ledger import Ledger


@pytest.fixture
def floor(qwf_dsn: str, tmp_path: Path) -> Iterator[Floor]:
    """Empty tables, an empty ledger, and a connection whose every statement is seen at once."""
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR_WITH_WORKERS)
        yield Floor(qwf_dsn, connection, Ledger(tmp_path))


@pytest.fixture
def proxy(qwf_dsn: str) -> Iterator[StatementProxy]:
    """A way to the database on which single statements can be held up."""
    with StatementProxy(qwf_dsn) as proxy:
        yield proxy
