"""What the tests of pure code share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from queue_workflows.config import reset_config


@pytest.fixture
def clean_config() -> Iterator[None]:
    """A configuration as of a fresh process, before and after."""
    reset_config()
    yield
    reset_config()
