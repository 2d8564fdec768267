"""Real workers, forked from a process that has imported all: hundreds of new interpreters take minutes, and
memory that a production machine would have. Each line on stdin is a worker: its options and its environment.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import NoReturn

_READY = (
    "queue_workflows.cli.main",
    "queue_workflows.cli.log.logs",
    "queue_workflows.cli.roles.worker",
    "queue_workflows.roles.worker.process",
    "queue_workflows.roles.worker.single",
    "queue_workflows.roles.agent_link.watch",
    "queue_workflows.roles.agent_link.wire",
)


def main() -> None:
    """Fork until the end of stdin, then end what was forked and wait for it."""
    for module in _READY:
        import_module(module)
    gc.freeze()
    children = []
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if child == 0:
            _become(asked["options"], asked["environment"])
        children.append(child)
    for child in children:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGTERM)
    for child in children:
        os.waitpid(child, 0)


def _become(options: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    status = 1
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = ["qwf", *options]
        runpy.run_module("queue_workflows", run_name="__main__", alter_sys=True)
    except SystemExit as over:
        status = over.code if isinstance(over.code, int) else 1
    finally:
        os._exit(status)


if __name__ == "__main__":
    main()
