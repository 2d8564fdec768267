"""Which database is the configured one in a test: the one of verbs without `conn`, and of `connect()`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from queue_workflows.config import configure, current_config


@contextmanager
def configured_database(dsn: str) -> Iterator[None]:
    """Within it this process is configured for the database `dsn`, whatever environment and files say.

    What enqueues without a connection would else do so in the database that the settings of the machine name.
    """
    before = current_config().overrides.get("db_url")
    configure(db_url=dsn)
    try:
        yield
    finally:
        configure(db_url=before)
