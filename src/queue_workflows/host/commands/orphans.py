"""Commands without a spawner: the worker, its spawner and its keepers were killed at one moment.

A command bears `{spawner's mark}/command-{its own}`, and its spawner and keepers bear the first part, for as
long as one of them lives. So a command is nobody's when nobody bears that any more.
"""

from __future__ import annotations

import os
from typing import Final

from queue_workflows.host.processes.tree_by_mark import SHORTEST_MARK, kill_trees, marks

COMMAND: Final = "/command-"


def end_orphans() -> list[str]:
    """End what dead spawners of this machine left behind, as far as this user sees it; their marks."""
    left = _orphaned(marks())
    # A spawner may have been passed over that started while the list was made; it is older than its commands.
    left = left and left & _orphaned(marks())
    for mark in left:
        kill_trees((), mark=mark + COMMAND, grace_s=0)
    return sorted(left)


def _orphaned(borne: dict[int, str]) -> set[str]:
    """The marks of spawners that only commands bear."""
    alive = {mark for mark in borne.values() if COMMAND not in mark}
    commands = {mark for pid, mark in borne.items() if COMMAND in mark and pid != os.getpid()}
    spawners = {mark.partition(COMMAND)[0] for mark in commands} - alive
    return {mark for mark in spawners if len(mark) >= SHORTEST_MARK}
