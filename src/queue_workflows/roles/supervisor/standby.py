"""A spare worker: started ahead of need, with everything imported, waiting for what it is to be.

    supervisor ──starts──> imports, the host app's wiring ──says so──┬──fork──> a worker, and it waits again
                                                                     ├──become──> a worker itself
                                                                     └──the end of the socket──> ends

It waits before it opens anything: no connection, no thread, no job's memory. So it can be forked from (see
`fork_server`), as often as workers die. Where a host app's imports have opened or started something that
a fork cannot copy, it becomes the next worker itself.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping
from typing import Final

from queue_workflows.host.processes.fork_server import serve
from queue_workflows.roles.identity import versions

SOCKET: Final = "_QWF_SPARE"


def is_called(environ: MutableMapping[str, str] = os.environ) -> bool:
    """Whether to work: at once for what is no spare, for a spare when it has been given a name."""
    told = environ.pop(SOCKET, "")
    if not told.isdecimal():
        return True
    # Asked for by every worker, and slow to find.
    versions()
    return serve(socket.socket(fileno=int(told)), environ)
