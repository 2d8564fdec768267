"""Fixtures for tests that start and kill embedded servers of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.embedded_users import passable_directory


@pytest.fixture
def passable_dir() -> Iterator[Path]:
    """A short directory that every account can enter; nothing may still run in it when the test ends."""
    with passable_directory() as made:
        yield made


@pytest.fixture
def data_dir(passable_dir: Path) -> Path:
    """Where an embedded server may live."""
    return passable_dir / ".qwf"
