"""The demo's own tables: films, each with the run that makes it.

They lie in a schema of their own, so that no host app's autogenerate ever meets them, and so that one
statement removes them.
"""

from __future__ import annotations

import uuid
from typing import Final

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from queue_workflows.demo.ticking import QUEUE
from queue_workflows.errors import ConfigurationError

SCHEMA: Final = "qwf_demo"
LABEL: Final = "qwf-demo"

# The lock keeps two demos that start together from racing for the same CREATE; it ends with the transaction.
PREPARE: Final = (
    "SELECT pg_advisory_xact_lock(hashtext('qwf_demo'))",
    "CREATE SCHEMA IF NOT EXISTS qwf_demo",
    """
    CREATE TABLE IF NOT EXISTS qwf_demo.films (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        brief text NOT NULL,
        run_id uuid NOT NULL
    )
    """,
)
IS_MIGRATED: Final = (
    "SELECT to_regclass('workflow_runs') IS NOT NULL AND to_regclass('ingest_jobs') IS NOT NULL"
)
# What has moved to a history is of others as well: the demo asks for none.
IS_OF_OTHERS: Final = """
SELECT EXISTS (SELECT FROM workflow_runs WHERE labels ->> 'app' IS DISTINCT FROM :label)
    OR EXISTS (SELECT FROM ingest_jobs WHERE queue <> :queue)
    OR EXISTS (SELECT FROM pg_inherits WHERE inhparent = to_regclass('ingest_jobs_history'))
"""
HAS_SCHEDULES: Final = "SELECT to_regclass('schedules') IS NOT NULL"
HAS_SCHEDULES_OF_OTHERS: Final = "SELECT EXISTS (SELECT FROM schedules WHERE queue <> :queue)"


class Base(DeclarativeBase):
    """Not the engine's: this is a host app's."""


class Film(Base):
    """A row of the application, stored in the transaction that starts its run."""

    __tablename__ = "films"
    __table_args__ = {"schema": SCHEMA}

    id: Mapped[int] = mapped_column(sa.BigInteger, sa.Identity(always=True), primary_key=True)
    brief: Mapped[str]
    run_id: Mapped[uuid.UUID]


def prepare(connection: sa.Connection) -> None:
    """Make the demo's table where it is missing."""
    for statement in PREPARE:
        connection.execute(sa.text(statement))


def check_ours(connection: sa.Connection) -> None:
    """Refuse a database in which others work: the demo's processes would take part, with its settings."""
    if not connection.execute(sa.text(IS_MIGRATED)).scalar_one():
        return
    given = {"label": LABEL, "queue": QUEUE}
    is_of_others = connection.execute(sa.text(IS_OF_OTHERS), given).scalar_one()
    if not is_of_others and connection.execute(sa.text(HAS_SCHEDULES)).scalar_one():
        theirs = sa.text(HAS_SCHEDULES_OF_OTHERS)
        is_of_others = connection.execute(theirs, {"queue": QUEUE}).scalar_one()
    if is_of_others:
        raise ConfigurationError(
            "this database has runs, jobs or schedules of others, and the demo's processes would take part",
            advice="name an empty one with --db, or none, in an empty directory, for an embedded one",
        )
