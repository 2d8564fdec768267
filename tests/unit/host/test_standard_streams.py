"""The standard streams of a process in which many jobs run."""

from __future__ import annotations

import os
import subprocess
import sys

# Lines, more than a pipe's buffer holds, and what has no line's end yet.
PRINTS = """
import sys
from queue_workflows.host.processes.standard_streams import share_standard_streams

share_standard_streams()
for text in ("a line\\n", "b" * 100_000 + "\\n", "more", "a line\\n"):
    print(text, end="", flush=text == "more")
print("printed", file=sys.stderr)
"""


def test_what_nobody_reads_any_more_is_dropped() -> None:
    """Whatever prints goes on, again and again, and the process ends well."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ran = subprocess.run(
            [sys.executable, "-c", PRINTS],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )
    finally:
        os.close(writer)
    assert (ran.returncode, ran.stderr) == (0, "printed\n")


def test_what_is_read_is_all_that_is_printed() -> None:
    """In order and whole."""
    ran = subprocess.run([sys.executable, "-c", PRINTS], capture_output=True, timeout=120, check=False)
    assert ran.stdout == b"a line\n" + b"b" * 100_000 + b"\nmorea line\n"
