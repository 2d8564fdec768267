"""`qwf db history --partitioned` and `--plain`: said once, said again, and what there is of months."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner
from support.rows.history import cleared, over, places, settle

from queue_workflows.cli.main import cli


@pytest.fixture
def connection(qwf_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """Empty tables, and a connection whose every statement is seen at once."""
    with cleared(qwf_dsn) as connection:
        yield connection


def test_history_is_switched_on_and_off(connection: psycopg.Connection[Any], qwf_dsn: str) -> None:
    """Each says what moves and what does not, and jobs go where it says."""

    def run(*words: str) -> str:
        done = CliRunner().invoke(cli, ["--db", qwf_dsn, "db", "history", *words])
        assert done.exit_code == 0, done.output
        return done.output

    ids = over(connection, 3)
    assert run("--plain") == "history is plain, as it was\n"
    said = run("--partitioned")
    assert said.startswith(
        "history is by partitions\ningest jobs that are completed, skipped or cancelled move"
    )
    assert "runs with all their jobs stay in their tables" in said
    assert run("--partitioned").startswith("history is by partitions, as it was\n")
    settle(connection)
    assert places(connection) == ([], ids)
    told = json.loads(run("--partitioned", "--json"))
    assert (told["partitioned"], told["changed"], len(told["months"])) == (True, False, 1)
    assert run("--plain").splitlines()[:2] == [
        "history is plain",
        "what had moved comes back, a batch at a time, and each partition is dropped once it is empty",
    ]
    settle(connection)
    assert places(connection) == (ids, [])
