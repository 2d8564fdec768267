"""A spare worker: started ahead of need, with everything imported, waiting to be told whose place it takes.

    supervisor ──starts──> imports, the host app's wiring ──waits at a pipe──┬──name──> a worker
                                                                             └──its end──> ends

It waits before it opens anything: no connection, no thread, no job's memory. The pipe's other end is the
supervisor's alone, so a spare ends with its supervisor, however that ends.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from typing import Final

from queue_workflows.roles.identity import INCARNATION

PIPE: Final = "_QWF_SPARE"
_LONGEST_NAME: Final = 64


def is_called(environ: MutableMapping[str, str] = os.environ) -> bool:
    """Whether to work: at once for who is no spare, for a spare when it has been given a name."""
    told = environ.pop(PIPE, "")
    if not told.isdecimal():
        return True
    pipe = int(told)
    try:
        name = os.read(pipe, _LONGEST_NAME).decode("ascii")
    finally:
        os.close(pipe)
    environ[INCARNATION] = name
    return name != ""
