"""What the Django app tells the engine of a project: its database, and connections that are alive."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import django
import psycopg
import pytest
from django.conf import settings
from django.db import connection, connections, transaction
from psycopg.conninfo import conninfo_to_dict

from queue_workflows.db.connections.dsn import parse_dsn
from queue_workflows.errors import ConfigurationError

POSTGRES = "django.db.backends.postgresql"


@pytest.fixture(autouse=True)
def _set_up() -> Iterator[None]:
    """Django with settings; what a test has put into them is taken out again."""
    if not settings.configured:
        settings.configure(DATABASES={}, USE_TZ=True)
        django.setup()
    yield
    connections.close_all()
    for name in ("QWF_DATABASE",):
        if hasattr(settings, name):
            delattr(settings, name)


def databases(**named: dict[str, Any]) -> None:
    """These are the project's DATABASES."""
    connections.close_all()
    connections.settings = connections.configure_settings(named)
    for alias in named:
        if hasattr(connections._connections, alias):
            del connections[alias]


def on(dsn: str, **options: Any) -> dict[str, Any]:
    """A database as Django's settings name it."""
    given = conninfo_to_dict(dsn)
    return {
        "ENGINE": POSTGRES,
        "NAME": given["dbname"],
        "USER": given["user"],
        "PASSWORD": given.get("password") or "",
        "HOST": given["host"],
        "PORT": given["port"],
        **options,
    }


def test_the_project_s_database_as_a_dsn() -> None:
    """All that libpq knows of it, whatever is in the password, and nothing that is Django's own."""
    from queue_workflows.django.database import url

    options = {"sslmode": "require", "isolation_level": psycopg.IsolationLevel.SERIALIZABLE, "pool": False}
    databases(
        default={
            "ENGINE": POSTGRES,
            "NAME": "shop",
            "USER": "sh op",
            "PASSWORD": "tr!cky p@ss/wörd%",
            "HOST": "db.example",
            "PORT": 6543,
            "OPTIONS": options,
        }
    )
    assert parse_dsn(url()) == {
        "host": "db.example",
        "port": "6543",
        "user": "sh op",
        "password": "tr!cky p@ss/wörd%",
        "dbname": "shop",
        "sslmode": "require",
    }
    databases(default={"ENGINE": POSTGRES, "NAME": "shop", "HOST": "/run/postgres"})
    assert parse_dsn(url()) == {"host": "/run/postgres", "dbname": "shop"}


def test_another_of_its_databases() -> None:
    """QWF_DATABASE names it; one that is not there, and one that is no Postgres, are named."""
    from queue_workflows.django.database import url

    lite = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    databases(default=lite, jobs={"ENGINE": POSTGRES, "NAME": "jobs", "HOST": "db.example"})
    with pytest.raises(
        ConfigurationError, match=r"'default' is sqlite, and jobs need PostgreSQL.*QWF_DATABASE"
    ):
        url()
    settings.QWF_DATABASE = "jobs"
    assert parse_dsn(url())["dbname"] == "jobs"
    settings.QWF_DATABASE = "jbos"
    with pytest.raises(ConfigurationError, match="no such database — name one of default, jobs"):
        url()


def test_a_test_s_own_database() -> None:
    """Django's test runner changes the settings under way; so does what we are told."""
    from queue_workflows.django.database import url

    databases(default={"ENGINE": POSTGRES, "NAME": "shop", "HOST": "db.example"})
    assert parse_dsn(url())["dbname"] == "shop"
    connection.settings_dict["NAME"] = "test_shop"
    assert parse_dsn(url())["dbname"] == "test_shop"


def test_a_connection_that_was_lost_between_two_jobs(qwf_dsn: str) -> None:
    """It is replaced, where Django is to look at connections that it keeps."""
    from queue_workflows.django.apps import living_connections

    databases(default=on(qwf_dsn, CONN_MAX_AGE=None, CONN_HEALTH_CHECKS=True))
    pids = []
    for _ in range(2):
        with living_connections(), connection.cursor() as cursor:
            pids.append(cursor.execute("SELECT pg_backend_pid()").fetchone()[0])
        with psycopg.connect(qwf_dsn, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s)", [pids[-1]])
    assert len(set(pids)) == 2


def test_a_connection_is_not_kept_longer_than_django_keeps_it(qwf_dsn: str) -> None:
    """By default Django keeps none after a request, and so none after a job; nor does a job that fails."""
    from queue_workflows.django.apps import living_connections

    databases(default=on(qwf_dsn))
    with suppress(LookupError), living_connections():
        connection.ensure_connection()
        raise LookupError
    assert connection.connection is None


def test_a_transaction_that_is_open_goes_on(qwf_dsn: str) -> None:
    """As in Django's TestCase, in which jobs run in the transaction of the test."""
    from queue_workflows.django.apps import living_connections

    databases(default=on(qwf_dsn))
    with transaction.atomic():
        kept = connection.connection
        with living_connections(), connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        assert connection.connection is kept
