"""What is shown of a host app's own values: secrets masked, and never more than a page can carry."""

from __future__ import annotations

from typing import Any

import pytest

from queue_workflows.web.access.redaction import LONGEST_SHOWN, Redaction


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"password": "hunter2", "user": "ann"}, {"password": "***", "user": "ann"}),
        ({"headers": {"Authorization": "Bearer abc"}}, {"headers": {"Authorization": "***"}}),
        ({"api-key": 17, "api_key_set": True}, {"api-key": "***", "api_key_set": True}),
        ("postgresql://u:pw@h/db", "postgresql://u:***@h/db"),
        ([1, None, {"secret": None}], [1, None, {"secret": None}]),
    ],
)
def test_secrets_are_masked(value: Any, shown: Any) -> None:
    """By the names that they have, and by the shapes in which they travel."""
    assert Redaction().value("payload", value) == shown


def test_the_host_app_goes_first() -> None:
    """Its function sees the whole value, and what kind of value it is."""
    seen: list[str] = []

    def redact(kind: str, value: Any) -> Any:
        seen.append(kind)
        return {name: "gone" if name == "name" else inner for name, inner in value.items()}

    row = {"id": 7, "args": {"name": "Ann"}, "result": {"name": "Bob"}, "queue": "fetch"}
    shown = Redaction(redact).document([row])
    assert shown == [{"id": 7, "args": {"name": "gone"}, "result": {"name": "gone"}, "queue": "fetch"}]
    assert seen == ["payload", "result"]


def test_a_warning_quotes_a_payload() -> None:
    """What a hook has printed that is no record is its own, as the record would be."""
    record = {"record": 1, "type": None, "payload": None, "warning": "not JSON: card 4111"}
    told = Redaction(lambda kind, _value: f"a {kind}").document(record)
    assert told == {"record": 1, "type": None, "payload": None, "warning": "a payload"}


def test_a_redact_that_raises_shows_nothing() -> None:
    """What could not be redacted is not shown as it is."""

    def redact(_kind: str, _value: Any) -> Any:
        raise RuntimeError("no")

    assert Redaction(redact).value("payload", {"name": "Ann"}) == "(not shown: the host app's redact raised)"


def test_what_is_too_much_is_cut() -> None:
    """Ten megabytes, ten thousand entries and a hundred levels are shown within bounds."""
    text = Redaction().shown("payload", "x" * 10_000_000)
    assert len(text) < LONGEST_SHOWN + 100
    assert text.endswith(("characters more", "cut here"))
    many = Redaction().value("payload", {"all": list(range(10_000)), **{f"k{n}": n for n in range(10_000)}})
    assert len(many) == 2_001
    assert many["all"][-1] == "… and 8,000 more"
    deep: Any = "bottom"
    for _ in range(100):
        deep = [deep]
    assert "nested deeper" in Redaction().shown("payload", deep)
