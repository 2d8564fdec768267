"""The commands that a command advises are of its own database and app."""

from __future__ import annotations

import pytest

from queue_workflows.cli import Invocation
from queue_workflows.cli.shared.root_options import typed_again


@pytest.mark.parametrize(
    ("invocation", "begins"),
    [
        (Invocation(), "qwf"),
        (Invocation(app="shop.wiring"), "qwf --app shop.wiring"),
        (Invocation(db_url="postgresql://h/d", app="shop"), "qwf --db postgresql://h/d --app shop"),
        (Invocation(db_url="postgresql://u:s3cret@h/d"), "qwf --db 'postgresql://u:***@h/d'"),
        (Invocation(db_url="host=h dbname=d"), "qwf --db 'dbname=d host=h'"),
    ],
)
def test_what_was_named_here_is_named_there(invocation: Invocation, begins: str) -> None:
    """Else a role would be started for another database; a password is not repeated."""
    assert typed_again(invocation) == begins
