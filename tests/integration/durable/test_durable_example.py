"""The example of the documentation runs as it stands."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import psycopg
import pytest

from queue_workflows.testing import drain

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "apps" / "onboarding.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    """The module, imported as an application would."""
    spec = importlib.util.spec_from_file_location("onboarding", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["onboarding"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def conn(qwf_configured: str) -> Iterator[psycopg.Connection]:
    """An empty queue."""
    with psycopg.connect(qwf_configured, autocommit=True) as connection:
        connection.execute("TRUNCATE ingest_jobs, durable_steps, durable_events; DROP TABLE IF EXISTS users")
        yield connection


def test_a_user_that_answers(conn: psycopg.Connection, example: ModuleType):
    """Over a day and a wait, with the package rendered by other jobs."""
    example.onboard.enqueue({"email": "ada@example.org", "pages": 3}, conn=conn)
    drain(conn=conn, raises=True)
    example.confirm(1, "yes", conn=conn)
    outcomes = drain(conn=conn, with_scheduled=True, raises=True)
    assert outcomes[-1].result == {
        "user": 1,
        "state": "done",
        "pages": ["page 0", "page 1", "page 2"],
        "answer": "yes",
    }
    assert conn.execute("SELECT id, email FROM users").fetchall() == [(1, "ada@example.org")]
    assert example.SENT == ["ada@example.org: is this you?"]


@pytest.mark.parametrize(("email", "state"), [("bob@example.org", "silent"), ("eve@invalid", "unreachable")])
def test_users_that_do_not(conn: psycopg.Connection, example: ModuleType, email: str, state: str):
    """A week of silence, and an address that does not exist."""
    example.onboard.enqueue({"email": email, "pages": 3}, conn=conn)
    outcomes = drain(conn=conn, with_scheduled=True)
    assert outcomes[-1].result == {"user": 1, "state": state}
