"""A real memory cgroup with a limit, for programs that fill it; only root may make one, not everywhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.processes.workers import until

from queue_workflows.host.processes.oom_kills import memory_cgroup


@contextmanager
def limited_to(size: int) -> Iterator[Path]:
    """A cgroup below our own with this limit; the test is skipped where none can be made."""
    try:
        cgroup = _made_below_ours(size)
    except OSError as exc:
        pytest.skip(f"no memory cgroup can be made here: {exc}")
    yield cgroup
    until(lambda: not (cgroup / "cgroup.procs").read_text(encoding="ascii"))
    cgroup.rmdir()


def _made_below_ours(size: int) -> Path:
    parent = memory_cgroup()
    if parent is None:
        raise OSError("we are in none")
    cgroup = Path(parent, f"qwf-test-{os.getpid()}")
    cgroup.mkdir()
    try:
        is_v1 = (cgroup / "memory.limit_in_bytes").exists()
        (cgroup / ("memory.limit_in_bytes" if is_v1 else "memory.max")).write_text(
            str(size), encoding="ascii"
        )
    except OSError:
        cgroup.rmdir()
        raise
    return cgroup
