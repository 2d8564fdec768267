"""Fixtures for tests that start and kill embedded servers of their own."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.embedded_users import processes_below


@pytest.fixture
def passable_dir() -> Iterator[Path]:
    """A short directory that every account can enter; nothing may still run in it when the test ends."""
    directory = Path(tempfile.mkdtemp(prefix="qwf-e-", dir="/tmp"))
    directory.chmod(0o755)
    yield directory
    deadline = time.monotonic() + 10  # a keeper outlives its server by a moment
    while (left := processes_below(directory)) and time.monotonic() < deadline:
        time.sleep(0.03)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(directory)
    assert left == []


@pytest.fixture
def data_dir(passable_dir: Path) -> Path:
    """Where an embedded server may live."""
    return passable_dir / ".qwf"
