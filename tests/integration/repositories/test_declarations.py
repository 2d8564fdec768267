"""Two versions of a host app, and two host apps, declare their schedules to one database."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from support.connections.kept import own_connection

from queue_workflows.engine.schedules.declared import DeclaredSchedules
from queue_workflows.engine.schedules.publish import Declaring
from queue_workflows.repositories import ScheduleRepository
from queue_workflows.repositories.schedules.schedules import checked_words, state_of


@pytest.fixture
def connection(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    """A scheduler's connection, and no schedule."""
    with own_connection(qwf_dsn) as connection:
        connection.execute("TRUNCATE schedules")
        yield connection


def version(owner: str = "shop", **crons: str) -> Declaring:
    """A scheduler that starts with this version of a host app: its schedules and their times."""
    words = [
        checked_words(
            name=name,
            cron=cron,
            task_name="tidy",
            queue="load",
            timezone="UTC",
            catch_up="latest",
            catch_up_cap=100,
            jitter_s=0,
            priority=5,
            limit_key=None,
            host_lock=None,
        )
        | {"args": {"from": cron}}
        for name, cron in sorted(crons.items())
    ]
    return Declaring(DeclaredSchedules(owner, tuple(words)))


def there(connection: psycopg.Connection) -> dict[str, tuple[Any, ...]]:
    """What ticks when, or why not."""
    return {
        one.name: (one.cron, state_of(one), one.args["from"]) for one in ScheduleRepository(connection).list()
    }


def nobody_vouches(connection: psycopg.Connection) -> None:
    """A minute in which no scheduler of what is in force has run."""
    connection.execute("UPDATE schedules SET declared_until = now() - interval '1 second'")


def test_a_new_version_is_in_force_at_once(connection: psycopg.Connection) -> None:
    """What it changes is changed, what it has not does not tick, what it brings is there."""
    version(x="0 1 * * *", y="0 2 * * *").keep(connection)
    assert there(connection) == {"x": ("0 1 * * *", "on", "0 1 * * *"), "y": ("0 2 * * *", "on", "0 2 * * *")}
    version(y="0 3 * * *", z="0 4 * * *").keep(connection)
    assert there(connection) == {
        "x": ("0 1 * * *", "not declared", "0 1 * * *"),
        "y": ("0 3 * * *", "on", "0 3 * * *"),
        "z": ("0 4 * * *", "on", "0 4 * * *"),
    }


def test_what_an_operator_paused_stays_paused(connection: psycopg.Connection) -> None:
    """Through a new version, and through one that forgets it and one that has it again."""
    version(x="0 1 * * *").keep(connection)
    ScheduleRepository(connection).set_enabled("x", False, actor="ann")
    for crons in ({"x": "0 2 * * *"}, {}, {"x": "0 2 * * *"}):
        version(**crons).keep(connection)
        assert there(connection)["x"][1] == "paused"
    ScheduleRepository(connection).set_enabled("x", True, actor="ann")
    assert there(connection)["x"][1] == "on"


def test_an_old_version_that_runs_on_takes_nothing_back(connection: psycopg.Connection) -> None:
    """However often it looks, while the new one is vouched for; when that is gone for good, it does."""
    old, new = version(x="0 1 * * *"), version(x="0 2 * * *", y="0 3 * * *")
    old.keep(connection)
    new.keep(connection)
    for _ in range(3):
        old.keep(connection)
        new.keep(connection)
        assert there(connection)["x"][0] == "0 2 * * *"
    nobody_vouches(connection)
    new.keep(connection)
    old.keep(connection)
    assert there(connection)["x"][0] == "0 2 * * *"
    nobody_vouches(connection)
    old.keep(connection)
    assert {name: told[:2] for name, told in there(connection).items()} == {
        "x": ("0 1 * * *", "on"),
        "y": ("0 3 * * *", "not declared"),
    }


def test_an_old_version_that_starts_again_does_not_win_for_good(connection: psycopg.Connection) -> None:
    """It is the last to start; when it is gone, the new one puts its own into force again."""
    new = version(x="0 2 * * *")
    new.keep(connection)
    version(x="0 1 * * *").keep(connection)
    new.keep(connection)
    assert there(connection)["x"][0] == "0 1 * * *"
    nobody_vouches(connection)
    new.keep(connection)
    assert there(connection)["x"][0] == "0 2 * * *"


def test_the_same_version_twice_changes_nothing(connection: psycopg.Connection) -> None:
    """A second scheduler of it leaves the rows, and with them the next ticks, as they are."""
    version(x="0 1 * * *").keep(connection)
    connection.execute("UPDATE schedules SET next_tick_at = '2200-01-01 01:00Z'")
    ((before,),) = connection.execute("SELECT updated_at FROM schedules")
    version(x="0 1 * * *").keep(connection)
    version(x="0 1 * * *", y="0 2 * * *").keep(connection)
    next_ticks = dict(connection.execute("SELECT name, next_tick_at FROM schedules").fetchall())
    assert next_ticks == {"x": datetime(2200, 1, 1, 1, tzinfo=UTC), "y": None}
    version(x="0 5 * * *").keep(connection)
    assert connection.execute("SELECT next_tick_at FROM schedules WHERE name = 'x'").fetchone() == (None,)
    assert connection.execute(
        "SELECT updated_at > %s FROM schedules WHERE name = 'x'", [before]
    ).fetchone() == (True,)


def test_host_apps_leave_each_other_alone(connection: psycopg.Connection, caplog) -> None:
    """Neither ends the other's schedules; of one name it is the first one's while that is alive."""
    shop, film = version(x="0 1 * * *"), version("film", x="0 2 * * *", y="0 3 * * *")
    shop.keep(connection)
    film.keep(connection)
    assert {name: told[0] for name, told in there(connection).items()} == {"x": "0 1 * * *", "y": "0 3 * * *"}
    assert "schedule x is another host app's" in caplog.text
    nobody_vouches(connection)
    film.keep(connection)
    assert there(connection)["x"][0] == "0 2 * * *"


def test_a_row_that_somebody_holds_keeps_nobody(connection: psycopg.Connection, qwf_dsn: str) -> None:
    """An operator's open transaction: the others are declared at once, that one when it is free."""
    declaring = version(x="0 1 * * *", y="0 2 * * *")
    version(x="0 4 * * *", y="0 5 * * *").keep(connection)
    connection.execute("SET lock_timeout = '1ms'")
    with psycopg.connect(qwf_dsn) as operator:
        operator.execute("SELECT FROM schedules WHERE name = 'x' FOR UPDATE")
        declaring.keep(connection)
        assert {name: told[0] for name, told in there(connection).items()} == {
            "x": "0 4 * * *",
            "y": "0 2 * * *",
        }
    nobody_vouches(connection)
    declaring.keep(connection)
    assert there(connection)["x"][0] == "0 1 * * *"


def test_who_declares_nothing_changes_nothing(connection: psycopg.Connection) -> None:
    """A host app that was never asked; one that has none any more ends its own."""
    version(x="0 1 * * *").keep(connection)
    ScheduleRepository(connection).upsert(
        "by hand", cron="0 1 * * *", task_name="tidy", queue="load", args={"from": "psql"}
    )
    Declaring(None).keep(connection)
    assert {name: told[1] for name, told in there(connection).items()} == {"by hand": "on", "x": "on"}
    version().keep(connection)
    assert {name: told[1] for name, told in there(connection).items()} == {
        "by hand": "on",
        "x": "not declared",
    }
