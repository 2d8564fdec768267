"""What `check_payload` accepts, Postgres stores."""

from __future__ import annotations

import json

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from support.reference.examples import examples
from support.reference.json_values import anything, as_json, documents

from queue_workflows.errors import PayloadError
from queue_workflows.payload import check_payload


def stored(connection: psycopg.Connection, text: str) -> object:
    row = connection.execute("SELECT %s::jsonb::text", [text]).fetchone()
    assert row is not None
    return json.loads(row[0])


def same(sent: object, came_back: object) -> bool:
    """Equal, with the same types, but that jsonb writes a large float as the integer it stands for."""
    if isinstance(sent, float):
        return float(came_back) == sent
    if isinstance(sent, dict):
        return sent.keys() == came_back.keys() and all(same(sent[key], came_back[key]) for key in sent)
    if isinstance(sent, list):
        return len(sent) == len(came_back) and all(map(same, sent, came_back))
    return sent == came_back and type(sent) is type(came_back)


@settings(
    max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(value=anything | documents)
def test_what_is_accepted_is_stored_and_comes_back(qwf_conn: psycopg.Connection, value: object):
    """No payload that passed fails in the database, breaking the transaction of the caller."""
    try:
        text = check_payload(value)
    except PayloadError:
        return
    assert same(as_json(value), stored(qwf_conn, text))


@pytest.mark.parametrize(
    "value",
    [{"a": "x" * 16_000_000}, {"k" * 100_000: 1}, 10**4300 - 1, json.loads("[" * 500 + "]" * 500)],
    ids=["large", "long key", "long integer", "deep"],
)
def test_the_limits_are_within_those_of_postgres(qwf_conn: psycopg.Connection, value: object):
    """The largest, deepest and longest that the settings allow by default can be stored."""
    assert stored(qwf_conn, check_payload(value, max_depth=500)) == value
