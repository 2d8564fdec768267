"""Fixtures for tests that run commands as a user does."""

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
def directory() -> Iterator[Path]:
    """A short directory that every account may enter; nothing may still run in it when the test ends."""
    path = Path(tempfile.mkdtemp(prefix="qwf-demo-", dir="/tmp"))
    path.chmod(0o755)
    yield path
    deadline = time.monotonic() + 10  # a keeper outlives its server by a moment
    while (left := processes_below(path)) and time.monotonic() < deadline:
        time.sleep(0.03)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(path)
    assert left == []
