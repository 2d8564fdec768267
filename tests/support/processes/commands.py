"""Command lines of `qwf` in the test's own process: for what they say and return."""

from __future__ import annotations

import contextlib
import io
from typing import NamedTuple

from queue_workflows.cli.main import run


class Said(NamedTuple):
    """What a command line wrote."""

    stdout: str
    stderr: str


def qwf_here(*arguments: str, status: int = 0) -> Said:
    """Run one to its end, which has to be this status."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        ended = run(arguments)
    assert ended == status, err.getvalue()
    return Said(out.getvalue(), err.getvalue())
