"""What a repository can be made with, and what it says to anything else."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from psycopg.rows import dict_row
from psycopg.types.json import set_json_loads
from sqlalchemy.orm import Session, sessionmaker

from queue_workflows.errors import ConfigurationError
from queue_workflows.models import IngestJob, WorkflowRun, uuid7
from queue_workflows.repositories import (
    HeartbeatRepository,
    IngestJobRepository,
    NewNodeJob,
    NodeJobRepository,
    RunRepository,
    enqueue_many,
)


def refusal(handle: Any) -> str:
    """What is said to a handle that will not do."""
    with pytest.raises(ConfigurationError) as refused:
        IngestJobRepository(handle)
    return str(refused.value)


@pytest.mark.parametrize("handle", [None, "postgresql://host/db", 7, b"conn"], ids=str)
def test_no_connection_at_all(handle: Any) -> None:
    """Something else entirely is named, with what is wanted."""
    said = refusal(handle)
    assert type(handle).__name__ in said
    assert "SQLAlchemy Session or Connection on postgresql+psycopg, or a psycopg 3 connection" in said


def test_engine_and_factory(qwf_engine: sa.Engine) -> None:
    """An Engine or a sessionmaker is not yet a transaction."""
    assert "sqlalchemy.engine.base.Engine" in refusal(qwf_engine)
    assert "sqlalchemy.orm.session.sessionmaker" in refusal(sessionmaker(qwf_engine))


def test_other_databases() -> None:
    """A Session or Connection on another database is named with its driver, a raw one with its module."""
    engine = sa.create_engine("sqlite://")
    with Session(engine) as session, engine.connect() as connection:
        assert "Session on sqlite+pysqlite" in refusal(session)
        assert "Connection on sqlite+pysqlite" in refusal(connection)
    raw = sqlite3.connect(":memory:")
    assert "sqlite3.Connection" in refusal(raw)
    raw.close()


def test_dialect_of_another_driver(qwf_dsn: str) -> None:
    """Only the dialect tells the drivers apart, so only it is asked; nothing is connected for that."""

    class Dialect(sa.dialects.postgresql.psycopg.PGDialect_psycopg):
        driver = "pg8000"

    engine = sa.create_engine("postgresql+psycopg://", creator=lambda: pytest.fail("connected"))
    engine.dialect = Dialect(dbapi=psycopg)
    with Session(engine) as session:
        assert "Session on postgresql+pg8000" in refusal(session)


def test_closed_ones(qwf_dsn: str, qwf_engine: sa.Engine) -> None:
    """A closed connection is refused, also when it was closed after the repository was made."""
    raw = psycopg.connect(qwf_dsn)
    connection = qwf_engine.connect()
    made = [RunRepository(raw), RunRepository(connection)]
    raw.close()
    connection.close()
    assert "psycopg.Connection, closed" in refusal(raw)
    assert "sqlalchemy.engine.base.Connection, closed" in refusal(connection)
    for repository in made:
        with pytest.raises(ConfigurationError, match="closed"):
            repository.counts()


def test_session_without_the_engines_tables(qwf_engine: sa.Engine) -> None:
    """A Session whose binds do not cover our models is told what to bind."""

    class HostBase(sa.orm.DeclarativeBase):
        pass

    for session in (Session(), Session(binds={HostBase: qwf_engine})):
        assert "queue_workflows.models.Base" in refusal(session)


def test_one_repository_through_many_transactions(qwf_session: Session) -> None:
    """A Session's repository works on in its next transaction, also after a rollback."""
    repository = IngestJobRepository(qwf_session)
    repository.enqueue("t", queue="fetch")
    qwf_session.rollback()
    made = repository.enqueue("t", queue="fetch")
    qwf_session.commit()
    found = repository.fetch(made.id)
    assert found is not None
    assert found.task_name == "t"


def test_driver_errors_pass_as_they_are(qwf_dsn: str, qwf_session: Session) -> None:
    """A foreign key violation is psycopg's own, or SQLAlchemy's around it."""
    from uuid import uuid4

    from queue_workflows.repositories import InputSubmissionRepository

    with psycopg.connect(qwf_dsn) as connection, pytest.raises(psycopg.errors.ForeignKeyViolation):
        InputSubmissionRepository(connection).insert(uuid4(), "n", {})
    with pytest.raises(sa.exc.IntegrityError) as wrapped:
        InputSubmissionRepository(qwf_session).insert(uuid4(), "n", {})
    assert isinstance(wrapped.value.orig, psycopg.errors.ForeignKeyViolation)


def test_callers_row_factory_and_json_loader_change_nothing(qwf_dsn: str) -> None:
    """Rows are the same whatever the connection's owner makes of rows and of JSON."""
    with psycopg.connect(qwf_dsn, row_factory=dict_row) as connection:
        set_json_loads(lambda _text: pytest.fail("the caller's loader was asked"), connection)
        repository = IngestJobRepository(connection)
        made = repository.enqueue("t", queue="load", args={"a": [1, "é"]})
        (claimed,) = repository.claim("load", worker_id="w", lease_s=5)
        repository.complete(claimed, "x")
        found = repository.fetch(made.id)
        assert found is not None
        assert (claimed.args, found.args, found.result, found.errors) == (
            {"a": [1, "é"]},
            {"a": [1, "é"]},
            "x",
            [],
        )


def test_rows_are_detached_and_whole(qwf_session: Session, qwf_engine: sa.Engine) -> None:
    """What is fetched is the model's own row as the ORM loads it, complete and on its own."""
    made = IngestJobRepository(qwf_session).enqueue("t", queue="fetch", args={"a": 1}, dedupe_key="whole")
    run = RunRepository(qwf_session).insert("w", spec={"nodes": []}, spec_hash="h")
    qwf_session.commit()
    pairs = [
        (IngestJobRepository(qwf_session).fetch(made.id), qwf_session.get(IngestJob, made.id)),
        (RunRepository(qwf_session).fetch(run.id), qwf_session.get(WorkflowRun, run.id)),
    ]
    for ours, loaded in pairs:
        assert ours is not None
        assert ours is not loaded
        assert sa.inspect(ours).detached
        assert sa.inspect(ours).unloaded == set()
        for column in type(ours).__table__.columns:
            assert getattr(ours, column.key) == getattr(loaded, column.key), column.key
    ours = pairs[0][0]
    with Session(qwf_engine) as another:
        another.add(ours)
        ours.reason = "taken over"
        another.commit()
    qwf_session.expire_all()
    assert qwf_session.get(IngestJob, made.id).reason == "taken over"


def test_nothing_found(qwf_conn: psycopg.Connection) -> None:
    """What is not there is None, and lists of nothing are empty."""
    assert IngestJobRepository(qwf_conn).fetch(-1) is None
    assert HeartbeatRepository(qwf_conn).fetch("nobody") is None
    assert RunRepository(qwf_conn).list(workflow_name="nothing") == []
    assert IngestJobRepository(qwf_conn).enqueue_many([]) == []
    assert enqueue_many([], conn=qwf_conn) == []


def test_explicit_columns_survive_an_added_one(qwf_dsn: str) -> None:
    """A column that a newer schema adds does not reach a running older process."""
    with psycopg.connect(qwf_dsn) as connection:
        connection.execute("ALTER TABLE ingest_jobs ADD COLUMN brand_new text DEFAULT 'x'")
        connection.execute("ALTER TABLE workflow_runs ADD COLUMN brand_new text DEFAULT 'x'")
        repository = IngestJobRepository(connection)
        made = repository.enqueue("t", queue="fetch", priority=9)
        (claimed,) = repository.claim("fetch", worker_id="w", lease_s=5)
        run = RunRepository(connection).insert("w", spec={}, spec_hash="h")
        assert claimed.id == made.id
        assert repository.fetch(made.id) is not None
        assert RunRepository(connection).fetch(run.id) is not None
        connection.rollback()


def test_json_is_not_reinterpreted(qwf_conn: psycopg.Connection) -> None:
    """Numbers, texts that look like JSON and non-ASCII come back as they went in."""
    args = {
        "n": [0, -1, 2**62, 1.5, True, None],
        "s": json.dumps({"a": 1}),
        "u": "Ünïcødé 🚂",
        "%": "%s %(x)s",
    }
    made = IngestJobRepository(qwf_conn).enqueue("t", queue="fetch", args=args, reason="100% %(sure)s")
    found = IngestJobRepository(qwf_conn).fetch(made.id)
    assert found is not None
    assert (found.args, found.reason) == (args, "100% %(sure)s")


def pending_run() -> WorkflowRun:
    """A run that a Session is to write."""
    return WorkflowRun(id=uuid7(), workflow_name="w", spec={}, spec_hash="h")


def test_what_a_session_has_pending_goes_first(qwf_session: Session) -> None:
    """A node of a run that was only added finds it there."""
    run = pending_run()
    qwf_session.add(run)
    (made,) = NodeJobRepository(qwf_session).insert_many(
        [NewNodeJob(run_id=run.id, node_id="n", queue="cpu")]
    )
    assert made.created
    assert run not in qwf_session.new


def test_a_session_that_does_not_flush_by_itself_is_left_alone(qwf_session: Session) -> None:
    """`no_autoflush` means us too."""
    run = pending_run()
    with qwf_session.no_autoflush:
        qwf_session.add(run)
        with pytest.raises(sa.exc.IntegrityError, match="fk_workflow_node_jobs_run_id"):
            NodeJobRepository(qwf_session).insert_many([NewNodeJob(run_id=run.id, node_id="n", queue="cpu")])
    assert run in qwf_session.new


def test_enqueueing_from_within_a_flush(qwf_session: Session) -> None:
    """An event handler that enqueues when a row is written does not flush once more."""
    enqueued: list[int] = []

    def on_flush(session: Session, _context: object) -> None:
        enqueued.append(IngestJobRepository(session).enqueue("t", queue="fetch").id)

    sa.event.listen(qwf_session, "after_flush", on_flush)
    qwf_session.add(pending_run())
    qwf_session.flush()
    assert IngestJobRepository(qwf_session).fetch(*enqueued) is not None
