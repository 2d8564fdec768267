"""A spare worker: started ahead of need, with everything imported, waiting to be told whose place it takes.

    supervisor ──starts──> imports, the host app's wiring ──says so, waits at a pipe──┬──name──> a worker
                                                                                      └──its end──> ends

It waits before it opens anything: no connection, no thread, no job's memory. The pipe's other end is the
supervisor's alone, so a spare ends with its supervisor, however that ends. A second pipe says that it waits.
"""

from __future__ import annotations

import os
import re
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Final

from queue_workflows.roles.identity import INCARNATION

PIPES: Final = "_QWF_SPARE"
WAITS: Final = b"."
_PIPES: Final = re.compile(r"(\d+),(\d+)")
_LONGEST_NAME: Final = 64


def is_called(environ: MutableMapping[str, str] = os.environ) -> bool:
    """Whether to work: at once for who is no spare, for a spare when it has been given a name."""
    told = _PIPES.fullmatch(environ.pop(PIPES, ""))
    if told is None:
        return True
    pipe, waits = int(told[1]), int(told[2])
    # Who is called before it waits is told of no longer.
    with suppress(BrokenPipeError), open(waits, "wb", buffering=0) as line:
        line.write(WAITS)
    with open(pipe, "rb", buffering=0) as line:
        name = line.read(_LONGEST_NAME).decode("ascii")
    environ[INCARNATION] = name
    return name != ""
