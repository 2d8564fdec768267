"""Behind a proxy that hands out another backend for each transaction, no migration believes in its lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from typing import Any

import psycopg
import psycopg2
import pytest
import sqlalchemy as sa
from support.rows.revisions import HEAD
from support.rows.schemas import catalog, query, sa_engine
from support.servers.pgbouncer import PgBouncer
from support.servers.transaction_pooler import TransactionPooler

from queue_workflows.db import bootstrap, downgrade, wait_for_schema
from queue_workflows.db.connections.proxies import find_proxy
from queue_workflows.errors import ConfigurationError

LOCKS = """
    SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database
    WHERE locktype = 'advisory' AND datname = current_database()
"""


@pytest.fixture(params=[1, 2])
def pooled(request: pytest.FixtureRequest, empty: str) -> Iterator[str]:
    """A DSN through such a proxy, with one backend or a few."""
    with TransactionPooler(empty, backends=request.param) as proxy:
        yield proxy.dsn()


def engine_to(dsn: str, driver: Any) -> sa.Engine:
    """A host app's own engine, as it would be behind such a proxy."""
    if driver is psycopg2:
        return sa.create_engine("postgresql+psycopg2://", creator=lambda: psycopg2.connect(dsn))
    return sa.create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(dsn, prepare_threshold=None)
    )


def test_the_stand_in_is_what_it_stands_for(pooled: str) -> None:
    """The proxy of these tests looks like a transaction-pooling one to the doctor."""
    with psycopg.connect(pooled, autocommit=True) as connection:
        proxy = find_proxy({}, connection, lambda: psycopg.connect(pooled, autocommit=True))
    assert proxy.pooling == "transaction"


@pytest.mark.parametrize("driver", [psycopg, psycopg2], ids=["psycopg", "psycopg2"])
@pytest.mark.parametrize("form", ["engine", "conn"])
def test_an_engine_or_a_connection_through_the_proxy_is_refused(
    empty: str, pooled: str, form: str, driver: Any
) -> None:
    """The lock of a session would be another's: upgrade and downgrade stop before they take it."""
    engine = engine_to(pooled, driver)
    verbs: list[Callable[..., Any]] = [
        bootstrap,
        lambda **where: downgrade(chain="engine", revision="base", **where),
    ]
    for verb in verbs:
        with engine.connect() if form == "conn" else nullcontext(engine) as target:
            refused = pytest.raises(ConfigurationError, match=r"transaction-pooling proxy.*QWF_DIRECT_DB_URL")
            with refused:
                verb(**{form: target})
    engine.dispose()
    assert catalog(empty) == {}
    assert query(empty, LOCKS) == [(0,)]


def test_a_dsn_through_the_proxy_is_refused_whatever_the_settings_say(empty: str, pooled: str) -> None:
    """Nobody set QWF_LISTEN=off, and the proxy took our startup options: it is seen all the same."""
    with pytest.raises(ConfigurationError, match="transaction-pooling proxy"):
        bootstrap(pooled)
    assert catalog(empty) == {}


@pytest.mark.parametrize("between", ["session", "transaction", "nothing"])
def test_the_proxy_is_judged_and_not_the_setting(
    empty: str, between: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With QWF_LISTEN=off an upgrade goes on wherever its lock holds, and is refused elsewhere."""
    monkeypatch.setenv("QWF_LISTEN", "off")
    with ExitStack() as stack:
        dsn = empty if between == "nothing" else stack.enter_context(PgBouncer(empty, between)).dsn()
        if between == "transaction":
            with pytest.raises(ConfigurationError, match=r"transaction-pooling proxy.*QWF_DIRECT_DB_URL"):
                bootstrap(dsn)
            assert catalog(empty) == {}
        else:
            assert bootstrap(dsn)[-1].revision == HEAD
            assert query(empty, LOCKS) == [(0,)]


@pytest.mark.parametrize("driver", [psycopg, psycopg2], ids=["psycopg", "psycopg2"])
def test_without_a_proxy_each_driver_migrates(empty: str, driver: Any) -> None:
    """What refuses the proxy refuses no plain connection."""
    engine = engine_to(empty, driver)
    assert bootstrap(engine=engine)[-1].revision == HEAD
    with engine.connect() as connection:
        assert bootstrap(conn=connection) == []
    engine.dispose()


def test_waiting_works_through_the_proxy(empty: str, pooled: str) -> None:
    """To wait is only to look, which needs no lock."""
    bootstrap(empty)
    engine = engine_to(pooled, psycopg)
    assert wait_for_schema(HEAD, 0, engine=engine) == HEAD
    engine.dispose()
    assert bootstrap(engine=sa_engine(empty)) == []
