"""What is stored of an error: no secret, no byte that Postgres refuses, never more than its share."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queue_workflows.db.connections.dsn import parse_dsn, secrets_of
from queue_workflows.engine.execution.redaction import Redactor

plain = Redactor()


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("postgresql://u:s3cret@h:5432/d?x=1", "postgresql://u:***@h:5432/d?x=1"),
        ("redis://:s3cret@h", "redis://:***@h"),
        ("https://u:p@ss@h/x", "https://u:***@h/x"),
        ("host=h password=s3cret dbname=d", "host=h password=*** dbname=d"),
        ("password='two words' user=u", "password=*** user=u"),
        ('{"password": "s3\\u00e9", "user": "u"}', '{"password": ***, "user": "u"}'),
        ('"{\\"db_password\\": \\"a b\\"}"', '"{\\"db_password\\": ***}"'),
        ("{'PGPASSWORD': 'abc'}", "{'PGPASSWORD': ***}"),
        ("connect(password='abc", "connect(password=***"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
        ("Authorization: Basic dTpw", "Authorization: Basic ***"),
        ("{'Authorization': 'Token abcdef'}", "{'Authorization': 'Token ***'}"),
        ("{b'authorization': b'Bearer abc123456'}", "{b'authorization': b'Bearer ***'}"),
        ("(b'x', b'Bearer abc1234567')", "(b'x', b'Bearer ***')"),
        ("Cookie: sid=1; csrf=2", "Cookie: ***"),
        ("X-Api-Key: 12345678abc", "X-Api-Key: ***"),
        ("GET /a?access_token=abc&b=1", "GET /a?access_token=***&b=1"),
        ("/blob?sv=1&sig=a%2Fb&se=2", "/blob?sv=1&sig=***&se=2"),
        ("?X-Amz-Signature=ab12&X-Amz-Credential=cd/e", "?X-Amz-Signature=***&X-Amz-Credential=***"),
        ("aws_secret_access_key = wJalr/bPx", "aws_secret_access_key = ***"),
        ("key AKIAIOSFODNN7EXAMPLE is bad", "key *** is bad"),
        ("ghp_" + "a1B2" * 9, "***"),
        ("sk-proj-abcdefghij0123456789", "***"),
        ("xoxb-1234567890-abc", "***"),
        ("eyJhbGciOiJI.eyJzdWIiOiIx.sig-_1", "***"),
        ("curl --password hunter2 --token abc x", "curl --password *** --token *** x"),
        ("token: 0123456789abcdef", "token: ***"),
        ("LINE 1: ALTER ROLE u PASSWORD 'it is' VALID", "LINE 1: ALTER ROLE u PASSWORD *** VALID"),
        (
            "a\n-----BEGIN RSA PRIVATE KEY-----\nMII\nEvQ\n-----END RSA PRIVATE KEY-----\nb",
            "a\n-----BEGIN RSA PRIVATE KEY-----***-----END RSA PRIVATE KEY-----\nb",
        ),
        ("-----BEGIN PRIVATE KEY-----\nMIIEvQ (cut off", "-----BEGIN PRIVATE KEY-----***"),
    ],
)
def test_secrets_are_masked_by_their_shape(text: str, masked: str):
    """Whoever put it there: a driver's message, a header, a command line, a line of source."""
    assert plain.mask(text) == masked
    assert plain.mask(masked) == masked


@pytest.mark.parametrize(
    "text",
    [
        "Unexpected token: } at 1:3",
        "max_tokens=512 num_tokens: 8",
        "bearer authentication failed",
        "password authentication failed for user u",
        "https://example.org:8443/users/me and a@b.org",
        "no such task-list-of-things-to-do",
        "KeyError: 'secretary'",
        "line 3, in fetch_token",
        "123 rows, 2026-01-01T00:00:00Z",
    ],
)
def test_ordinary_text_stays(text: str):
    """An error that is masked away helps nobody."""
    assert plain.mask(text) == text


def test_the_secrets_of_the_process_are_masked_wherever_they_stand():
    """As they are and percent-encoded, in no shape at all; too short a one would mask ordinary words."""
    dsn = "postgresql://shop:p%2Fw%40rd@h/d"
    told = Redactor(secrets_of(parse_dsn(dsn)))
    assert told.mask("with p/w@rd, p%2Fw%40rd") == "with ***, ***"
    assert Redactor(["", "ab"]).mask("absolutely") == "absolutely"
    assert Redactor(["long-one", "long-one-more"]).mask("long-one-more") == "***"


def test_a_password_equal_to_the_user_is_no_secret():
    """Masking it would only hide what went wrong."""
    assert secrets_of(parse_dsn("postgresql://shop:shop@h/d")) == []


@given(st.text(st.characters(codec=None)), st.integers(10, 100))
def test_what_is_kept_is_bounded_and_storable(text: str, longest: int):
    """Of any text whatever."""
    for kept in (plain.head(text, longest), plain.tail(text, longest)):
        assert len(kept) <= longest
        assert "\x00" not in kept
        kept.encode()


def test_short_text_is_kept_whole():
    """Only what is too long is cut, and the cut shows."""
    assert plain.head("äöü", 3) == plain.tail("äöü", 3) == "äöü"
    assert plain.head("abcdef", 4) == "abc…"
    assert plain.tail("first\nsecond\nthird", 10) == "…\nthird"
    assert plain.head("a\x00b\udc80", 9) == "ab?"


def test_no_cut_leaves_a_piece_of_a_secret():
    """Text is masked before it is cut, and where the masking itself begins a word is dropped."""
    secret = "x1" * 40
    for padding in range(200):
        assert "x1" not in plain.head("a" * padding + f" password={secret}", 100)
        assert "x1" not in plain.tail(f"password={secret}" + " b" * padding, 100)
    long = ("password=" + "x1" * 2000 + " ") * 40
    assert "x1" not in plain.tail(long, 8000)
    assert "x1" not in plain.head(long, 8000)


@pytest.mark.parametrize(
    "hostile",
    [
        "a" * 1_000_000,
        "a-" * 500_000,
        "eyJ" * 300_000,
        "://" * 300_000,
        "://a:" * 200_000,
        "password" * 100_000,
        "password=" * 100_000,
        "password='" * 100_000,
        "password=\\\"'" * 80_000,
        "--" * 500_000,
        "--a" * 300_000,
        "authorization: a " * 60_000,
        "authorization:" * 60_000,
        "x-" * 500_000,
        "token" + " " * 1_000_000,
        "bearer " * 100_000,
        "-----BEGIN PRIVATE KEY-----" * 30_000,
        "sk-" * 300_000,
        "\n" * 1_000_000,
    ],
)
def test_hostile_text_costs_little(hostile: str):
    """An error message is chosen by whoever is at the other end; masking it must not hang a worker."""
    began = time.process_time()
    plain.head(hostile, 2000)
    plain.tail(hostile, 8000)
    assert time.process_time() - began < 1.0
