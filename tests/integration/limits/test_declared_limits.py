"""Limits that host apps declare in code: which holds, how long, and what an operator's word does to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from support.connections.kept import own_connection
from support.stages.declaring import EMPTY_LIMITS, cap, rule

from queue_workflows.engine.registry.declared import LimitDeclaring
from queue_workflows.engine.registry.tasks import TaskRegistry
from queue_workflows.repositories import LimitRepository, RateRepository
from queue_workflows.repositories.limits.overview import LimitLineRepository
from queue_workflows.repositories.limits.rates import Rule
from queue_workflows.settings.declared_limits import Adaptive, Rate, declared_limits


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    """A connection in autocommit; nothing is declared or set."""
    with own_connection(qwf_dsn) as connection:
        connection.execute(EMPTY_LIMITS)
        yield connection


def process(owner: str = "shop", tasks: TaskRegistry | None = None, **limits: Any) -> LimitDeclaring:
    """A process that starts with this version of a host app; `host_a` is the key `host:a`."""
    given = {name.replace("_all", "_*").replace("_", ":"): limit for name, limit in limits.items()}
    return LimitDeclaring(owner, declared_limits(given), tasks or TaskRegistry())


def nobody_vouches(conn: psycopg.Connection) -> None:
    """A minute in which no process of what is in force has run."""
    conn.execute("UPDATE app_declarations SET declared_until = now() - interval '1 second'")


def test_what_is_declared_holds(conn: psycopg.Connection) -> None:
    """A cap and a rate, of a key and of a pattern; a key that nobody declares has none."""
    process(host_all=3, host_slow=1, unpaywall=Rate(10, burst=20), api_all=Rate(60, per="min")).keep(conn)
    assert (cap(conn, "host:a"), cap(conn, "host:slow"), cap(conn, "other")) == (3, 1, None)
    assert rule(conn, "unpaywall", Rule(99, 99)) == (10, 20)
    assert rule(conn, "api:x") == (1, 1)
    assert rule(conn, "other") is None


def test_an_operator_wins_until_it_is_taken_back(conn: psycopg.Connection) -> None:
    """Also with more than is declared; what is declared holds again after `clear`."""
    process(host_all=3, unpaywall=Rate(10)).keep(conn)
    LimitRepository(conn).set("host:*", 7, actor="ann")
    RateRepository(conn).set("unpaywall", 50, actor="ann")
    process(host_all=2, unpaywall=Rate(11)).keep(conn)
    assert (cap(conn, "host:a"), rule(conn, "unpaywall")) == (7, (50, 50))
    LimitRepository(conn).clear("host:*", actor="ann")
    RateRepository(conn).clear("unpaywall", actor="ann")
    assert (cap(conn, "host:a"), rule(conn, "unpaywall")) == (2, (11, 11))


def test_the_default_of_hosts_is_nobodys_word(conn: psycopg.Connection) -> None:
    """What comes with the tables gives way to what is declared, also where that is more."""
    conn.execute("INSERT INTO concurrency_limits VALUES ('host:*', 4, 'the default', 'qwf')")
    process(host_all=9).keep(conn)
    assert cap(conn, "host:a") == 9
    process().keep(conn)
    assert cap(conn, "host:a") == 4


def test_of_two_apps_the_stricter_holds(conn: psycopg.Connection) -> None:
    """Whichever came first; when it is gone, the other's."""
    process("shop", host_a=5, r=Rate(5, burst=50)).keep(conn)
    process("films", host_a=2, r=Rate(7, burst=7)).keep(conn)
    assert (cap(conn, "host:a"), rule(conn, "r")) == (2, (5, 7))
    process("films").keep(conn)
    assert (cap(conn, "host:a"), rule(conn, "r")) == (5, (5, 50))


def test_a_new_version_holds_at_once(conn: psycopg.Connection) -> None:
    """An old process that goes on for a while does not take it back; once it is alone again, it does."""
    old, new = process(host_a=5, gone=1), process(host_a=2)
    old.keep(conn)
    new.keep(conn)
    for one in (old, new, old):
        one.keep(conn)
        assert (cap(conn, "host:a"), cap(conn, "gone")) == (2, None)
    nobody_vouches(conn)
    old.keep(conn)
    assert (cap(conn, "host:a"), cap(conn, "gone")) == (5, 1)


def test_two_versions_that_go_on_beside_each_other(conn: psycopg.Connection, caplog: Any) -> None:
    """The one that started last holds; after more than a deploy takes the other says so, once."""
    times = [0.0]
    old = LimitDeclaring("shop", declared_limits({"a": 4}), TaskRegistry(), now=lambda: times[0])
    old.keep(conn)
    new = process(a=2)
    for times[0] in (0, 599, 600, 1200, 1800):
        new.keep(conn)
        old.keep(conn)
        assert cap(conn, "a") == 2
        said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert len(said) == (times[0] >= 600)
    assert "another process of shop declares otherwise, and has run beside this one for 10 minutes" in said[0]
    nobody_vouches(conn)
    old.keep(conn)
    process(a=3).keep(conn)
    for times[0] in (9000, 9600):
        old.keep(conn)
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(said) == 2


def test_a_version_that_declares_nothing_holds_too(conn: psycopg.Connection) -> None:
    """The first process of it takes all away, and an old one does not bring it back."""
    old = process(host_a=5)
    old.keep(conn)
    process().keep(conn)
    old.keep(conn)
    assert cap(conn, "host:a") is None


def test_an_app_that_has_left_is_forgotten(conn: psycopg.Connection) -> None:
    """After a month in which none of its processes vouched for it; not before."""
    from queue_workflows.repositories.limits.declarations import LimitDeclarationRepository

    process(host_a=5).keep(conn)
    declarations = LimitDeclarationRepository(conn)
    nobody_vouches(conn)
    assert (declarations.forget(), cap(conn, "host:a")) == ([], 5)
    conn.execute("UPDATE app_declarations SET declared_until = now() - interval '31 days'")
    assert (declarations.forget(), cap(conn, "host:a")) == (["shop"], None)


def test_what_is_declared_alike_writes_nothing(conn: psycopg.Connection) -> None:
    """A fleet that starts looks, and one process has written; nobody vouches anew before it is time."""
    process(host_a=5).keep(conn)
    before = conn.execute("SELECT xmin, ctid FROM app_declarations").fetchall()
    for _ in range(3):
        process(host_a=5).keep(conn)
    assert conn.execute("SELECT xmin, ctid FROM app_declarations").fetchall() == before


def test_another_process_that_declares_is_not_waited_for(conn: psycopg.Connection, qwf_dsn: str) -> None:
    """It is tried again a moment later."""
    one = process(host_a=5)
    with psycopg.connect(qwf_dsn) as other:
        other.execute("SELECT pg_advisory_xact_lock(7715, 4)")
        assert one.keep(conn) == 1
        assert cap(conn, "host:a") is None
    one.keep(conn)
    assert cap(conn, "host:a") == 5


def test_adaptive_words_are_kept(conn: psycopg.Connection) -> None:
    """The row has all that the declaration says."""
    process(a=Adaptive(16, floor=2), b=Adaptive(Rate(60, per="min"), floor=6, down=0.5, doubles_s=30)).keep(
        conn
    )
    rows = conn.execute("SELECT * FROM limit_declarations ORDER BY key_pattern").fetchall()
    assert rows == [
        ("a", "shop", 16, None, None, 2, None, 0.7, 60),
        ("b", "shop", None, 1, 1, None, 0.1, 0.5, 30),
    ]


def test_the_list_says_whose_word_it_is(conn: psycopg.Connection) -> None:
    """Declared by which apps, also where they differ, and what is declared under an operator's word."""
    lines = LimitLineRepository(conn)
    process("shop", host_all=5, host_a=3).keep(conn)
    process("films", host_all=2).keep(conn)
    LimitRepository(conn).set("host:a", 9, actor="ann", reason="tonight")
    shown = {line.key: (line.max_slots, line.source, line.said_by, line.said_of_it) for line in lines.page()}
    assert shown == {
        "host:*": (2, "declared", "declared by films, shop", "films: 2, shop: 5"),
        "host:a": (9, "operator", "ann", "tonight; declared: 3"),
    }
    other = lines.of("host:b")
    assert (other.max_slots, other.is_own, other.source) == (2, False, "declared")
