"""The database of the project as a DSN: the one of Django's settings, as they are at that moment.

Django's test runner puts the name of the test's database into them, so a test and what it starts are there.
"""

from __future__ import annotations

from typing import Final

from django.conf import settings
from django.db import connections
from psycopg import pq

from queue_workflows.db.connections.dsn import as_url
from queue_workflows.errors import ConfigurationError

# Which of DATABASES has the jobs.
SETTING: Final = "QWF_DATABASE"
_OF_LIBPQ: Final = frozenset(option.keyword.decode() for option in pq.Conninfo.get_defaults())
# Both sides set it for themselves.
_NOT_PASSED_ON: Final = frozenset({"client_encoding"})


def alias() -> str:
    """The name in DATABASES of the database that has the jobs."""
    return str(getattr(settings, SETTING, "default"))


def url() -> str:
    """Where that is."""
    name = alias()
    if name not in connections:
        raise ConfigurationError(
            f"Django's setting {SETTING} is {name!r}, and DATABASES has no such database",
            advice=f"name one of {', '.join(sorted(connections))}",
        )
    connection = connections[name]
    if connection.vendor != "postgresql":
        raise ConfigurationError(
            f"Django's database {name!r} is {connection.vendor}, and jobs need PostgreSQL",
            advice=f"add one of django.db.backends.postgresql to DATABASES, and name it as {SETTING}",
        )
    return as_url(
        {
            word: str(value)
            for word, value in connection.get_connection_params().items()
            if word in _OF_LIBPQ - _NOT_PASSED_ON and value is not None
        }
    )
