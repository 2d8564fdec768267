"""The end of a process tree, which takes too long for a thread that has others to watch."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from queue_workflows.host.processes.launcher import Started
from queue_workflows.host.processes.tree_by_mark import kill_trees

_log = logging.getLogger(__name__)


class Sweep(threading.Thread):
    """Ends one child's tree; `over` is set, and its starter rung, when it is through.

    Nobody waits for the child before that, so that its pid stays its own.
    """

    def __init__(self, child: Started, ring: Callable[[], None]) -> None:
        super().__init__(name="qwf-sweep", daemon=True)
        self._ring = ring
        self.child = child
        self.left: list[int] = []
        self.over = False

    def run(self) -> None:
        """Kill the tree; a failure must not leave anybody waiting for ever."""
        try:
            # A pid that nobody keeps may be a stranger's by now.
            roots = [] if self.child.is_lost else [self.child.pid]
            self.left = kill_trees(roots, grace_s=0, mark=self.child.mark)
        except Exception:
            _log.exception("the process tree of %d could not be swept", self.child.pid)
        finally:
            self.over = True
            self._ring()
