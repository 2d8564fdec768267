"""Errors and exit codes: what supervisors, shells and library callers may rely on."""

from __future__ import annotations

import pickle

import pytest

from queue_workflows.errors import (
    ConfigurationError,
    ExitCode,
    IllegalTransition,
    LeaseLost,
    PayloadError,
    QwfError,
    SchemaAhead,
    SchemaBehind,
)

CONTRACT = {
    "DONE": 0,
    "FAILED": 1,
    "USAGE": 2,
    "UNREACHABLE": 69,
    "DEADLINE": 73,
    "WALL_CLOCK": 75,
    "STALL": 76,
    "STOPPED": 77,
    "CONFIGURATION": 78,
    "SCHEMA": 79,
    "LEASE_LOST": 80,
    "INTERRUPTED": 130,
    "PIPE_CLOSED": 141,
    "TERMINATED": 143,
}


def test_the_exit_codes_are_a_contract() -> None:
    """No code is renumbered, renamed or added without this list saying so."""
    assert {code.name: code.value for code in ExitCode} == CONTRACT


def test_each_exit_code_says_what_it_means_in_one_line() -> None:
    """The docs print this sentence in a table: one line, no cell separator."""
    for code in ExitCode:
        assert code.meaning.endswith(".")
        assert not set("|\n") & set(code.meaning)


def test_an_exit_code_is_a_plain_integer_for_the_shell() -> None:
    """`sys.exit(ExitCode.SCHEMA)` ends a process with 79."""
    assert ExitCode(79) is ExitCode.SCHEMA
    assert ExitCode.SCHEMA + 0 == 79
    assert pickle.loads(pickle.dumps(ExitCode.SCHEMA)) is ExitCode.SCHEMA


def test_an_error_reads_as_message_then_advice() -> None:
    """One line tells what is wrong and what to do; without advice there is no dangling dash."""
    assert str(ConfigurationError("no such queue", advice="add it")) == "no such queue — add it"
    assert str(ConfigurationError("no such queue")) == "no such queue"


@pytest.mark.parametrize(
    ("error", "data", "code"),
    [
        (PayloadError("NUL", path="$.a[2]"), {"path": "$.a[2]"}, 2),
        (IllegalTransition("run", "queued", "completed"), {"old": "queued", "new": "completed"}, 1),
        (SchemaBehind(None, "0008"), {"current": None, "needed": "0008"}, 79),
        (SchemaAhead("0099", "0013"), {"current": "0099", "newest_known": "0013"}, 79),
        (LeaseLost("ingest job", 7, 3), {"family": "ingest job", "job_id": 7, "attempt": 3}, 80),
    ],
)
def test_an_error_carries_its_data_and_its_code(error: QwfError, data: dict[str, object], code: int) -> None:
    """A library caller branches on attributes, never on the text."""
    assert {name: getattr(error, name) for name in data} == data
    assert error.exit_code == code


def test_a_payload_error_is_a_value_error_too() -> None:
    """Callers that validate input catch ValueError, and need not know our tree."""
    assert issubclass(PayloadError, ValueError)


def test_schema_behind_tells_what_to_run_unless_told_better() -> None:
    """The usual advice is the default, and the caller may know better."""
    assert "qwf db upgrade" in str(SchemaBehind("0003", "0008"))
    assert str(SchemaBehind("0003", "0008", advice="ask the operator")).endswith("— ask the operator")
