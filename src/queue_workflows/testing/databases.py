"""The databases of one test run on a server: a template migrated once, clones of it, and what dead runs left.

Every name holds the run's number and ends in `_test`; nothing else on the server is ever touched. A process
of a run holds that number as a shared advisory lock for as long as it uses the server, so a run with a free
lock is dead, and its databases and roles may go.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg import sql
from sqlalchemy import NullPool, create_engine

from queue_workflows.config import configure, current_config
from queue_workflows.db import bootstrap
from queue_workflows.repositories.sql.configured_database import allow_database

# Classes of advisory locks in the maintenance database: "this run lives" and "I make its template".
_ALIVE, _TEMPLATE = 1_903_655_540, 1_903_655_541
_MARK = "qwft"
_NAME = re.compile(rf"_{_MARK}_(?P<run>[0-9a-f]{{7}})_\w+_test$")
_ROLE = re.compile(rf"_{_MARK}_(?P<run>[0-9a-f]{{7}})_\w+$")
_STEM_LENGTH = 16
_CREATE = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
_COPY = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY")


class Databases:
    """Makes and drops the databases of one process of a run; `dsn_of` names a database of the server.

    `copies_files` clones without the write-ahead log, with two checkpoints instead: quicker where these write
    to no disk.
    """

    def __init__(
        self,
        admin: psycopg.Connection[Any],
        dsn_of: Callable[[str], str],
        *,
        stem: str,
        run_id: str,
        worker: str,
        copies_files: bool = False,
    ) -> None:
        self._admin = admin
        self._dsn_of = dsn_of
        self._stem = re.sub(r"[^a-z0-9_]", "_", stem.lower())[:_STEM_LENGTH]
        self._run = run_id
        self._worker = worker
        self._create_sql = _COPY if copies_files else _CREATE
        self._count = 0
        self._admin.execute("SELECT pg_advisory_lock_shared(%s, %s)", (_ALIVE, int(run_id, 16)))

    @property
    def role_suffix(self) -> str:
        """Ends the name of every role that a test makes: roles belong to the server, not to a database."""
        return f"{_MARK}_{self._run}_{self._worker}"

    def template(self) -> str:
        """The run's migrated template; made by the first process that asks, while the others wait.

        A template that takes no connections is finished: nobody can get between it and a clone.
        """
        name = f"{self._stem}_{_MARK}_{self._run}_template_test"
        key = (_TEMPLATE, int(self._run, 16))
        self._admin.execute("SELECT pg_advisory_lock(%s, %s)", key)
        try:
            finished = self._admin.execute(
                "SELECT NOT datallowconn FROM pg_database WHERE datname = %s", (name,)
            ).fetchone()
            if finished != (True,):
                self.drop(name)
                self._create(name, None)
                self._migrate(name)
                self._admin.execute(
                    sql.SQL("ALTER DATABASE {} WITH ALLOW_CONNECTIONS false").format(sql.Identifier(name))
                )
        finally:
            self._admin.execute("SELECT pg_advisory_unlock(%s, %s)", key)
        return name

    @contextmanager
    def database(self, template: bool = True) -> Iterator[str]:
        """The DSN of a database of its own, a clone of the template or empty, dropped at the end."""
        self._count += 1
        name = f"{self._stem}_{_MARK}_{self._run}_{self._worker}_{self._count}_test"
        self._create(name, self.template() if template else None)
        allow_database(name)
        try:
            yield self._dsn_of(name)
        finally:
            self.drop(name)

    def _migrate(self, name: str) -> None:
        """By an engine of our own: settings that a test run has for a proxy do not change what this is."""
        engine = create_engine(
            "postgresql+psycopg://", creator=lambda: psycopg.connect(self._dsn_of(name)), poolclass=NullPool
        )
        bootstrap(engine=engine)

    def _create(self, name: str, template: str | None) -> None:
        parts = (sql.Identifier(name), sql.Identifier(template or "template0"))
        self._admin.execute(self._create_sql.format(*parts))

    def drop(self, name: str) -> None:
        """Drop a database, with all connections to it that are left."""
        self._admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def drop_roles(self) -> None:
        """Drop the roles that this process's tests made; one that owns something is left to the next run."""
        self._drop_roles(lambda name: name.endswith(f"_{self.role_suffix}"))

    def sweep(self) -> None:
        """Drop what runs that are dead left behind."""
        for run in sorted(self._runs() - {self._run}):
            key = (_ALIVE, int(run, 16))
            if self._admin.execute("SELECT pg_try_advisory_lock(%s, %s)", key).fetchone() != (True,):
                continue
            try:
                # A shared server may hold what another user's run left: that is for them to drop.
                with suppress(psycopg.errors.InsufficientPrivilege):
                    self.drop_run(run)
            finally:
                self._admin.execute("SELECT pg_advisory_unlock(%s, %s)", key)

    def drop_run(self, run: str) -> None:
        """Drop all databases and roles of a run."""
        for name in self._names("SELECT datname FROM pg_database"):
            if (match := _NAME.search(name)) and match["run"] == run:
                self.drop(name)
        self._drop_roles(lambda name: (match := _ROLE.search(name)) is not None and match["run"] == run)

    def _runs(self) -> set[str]:
        databases = (_NAME.search(name) for name in self._names("SELECT datname FROM pg_database"))
        roles = (_ROLE.search(name) for name in self._names("SELECT rolname FROM pg_roles"))
        return {match["run"] for match in (*databases, *roles) if match}

    def _names(self, query: str) -> list[str]:
        return [name for (name,) in self._admin.execute(query)]

    def _drop_roles(self, ours: Callable[[str], bool]) -> None:
        for name in filter(ours, self._names("SELECT rolname FROM pg_roles")):
            with suppress(psycopg.errors.DependentObjectsStillExist):
                self._admin.execute(sql.SQL("DROP ROLE IF EXISTS {}").format(sql.Identifier(name)))


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
