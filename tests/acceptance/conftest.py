"""Fixtures for tests that run commands as a user does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.servers.places import passable_directory


@pytest.fixture
def directory() -> Iterator[Path]:
    """A short directory that every account may enter; nothing may still run in it when the test ends."""
    with passable_directory() as made:
        yield made
