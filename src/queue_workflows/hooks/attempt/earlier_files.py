"""What an attempt of a hook left is kept before the next one begins, which may write over it.

    {data}/runs/{run}/.attempts/{plugin}/{hook}.{attempt}/    the plugin's directory, after that attempt

A later attempt works where the earlier one did, as other hooks look there, and a download is gone on with.
The directory belongs to all hooks of the plugin, so all of it is copied; nobody knows which file is of which.
What cannot be read is left out, and a line of the worker's log names it.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from queue_workflows.errors import HookError
from queue_workflows.hooks.attempt.directories import HookPlaces
from queue_workflows.host.directories.below import DIRECTORY, OpenDirectory, directory_beneath
from queue_workflows.host.directories.copies import copy_tree
from queue_workflows.host.directories.data import empty, make_usable

_log = logging.getLogger(__name__)

ATTEMPTS: Final = ".attempts"
_STDOUT: Final = ".stdout.jsonl"


def keep_earlier_files(
    places: HookPlaces,
    hook: str,
    attempt: int,
    *,
    beneath: OpenDirectory,
    look: Callable[[], None] = lambda: None,
) -> None:
    """Keep what the last attempt before this one left, once; `HookError` where there is no room for it.

    An attempt that never began has left nothing. `look` is called again and again, and may break it off.
    """
    if attempt == 1:
        return
    kept = places.run / ATTEMPTS / places.directory.name
    try:
        ran = attempts_that_ran(places, hook, attempt, beneath=beneath)
        with directory_beneath(places.directory, beneath=beneath) as source:
            if not ran or not os.listdir(source):
                return
            make_usable(kept, beneath=beneath)
            with directory_beneath(kept, beneath=beneath) as into:
                _keep(source, into, f"{hook}.{ran[-1]}", draft=f".{hook}.{attempt}", look=look)
    except OSError as wrong:
        raise HookError(
            f"what an earlier attempt left cannot be kept in {kept}: {wrong.strerror}",
            advice="see to it, as to room on the disk, then retry",
        ) from None


def attempts_that_ran(places: HookPlaces, hook: str, attempt: int, *, beneath: OpenDirectory) -> list[int]:
    """Which attempts before this one began to run here, in their order, by what is there of their output.

    A job that was claimed and given back has an attempt more, too, which never began.
    """
    pattern = re.compile(re.escape(hook) + r"\.([0-9]{1,9})" + re.escape(_STDOUT))
    with directory_beneath(places.stdout.parent, beneath=beneath) as printed:
        found = [int(name[1]) for name in map(pattern.fullmatch, os.listdir(printed)) if name]
    return sorted(number for number in found if number < attempt)


def _keep(source: int, into: int, name: str, *, draft: str, look: Callable[[], None]) -> None:
    """A copy gets its name when it is whole; what a killed worker left of one is made anew."""
    if name in os.listdir(into):
        return
    with suppress(FileNotFoundError):
        _remove(into, draft)
    os.mkdir(draft, 0o700, dir_fd=into)
    made = os.open(draft, DIRECTORY, dir_fd=into)
    try:
        for left_out in copy_tree(source, made, look=look):
            _log.warning("of what an earlier attempt left, %s is without %s", name, left_out)
        os.rename(draft, name, src_dir_fd=into, dst_dir_fd=into)
    except BaseException:
        _remove(into, draft)
        raise
    finally:
        os.close(made)


def _remove(into: int, name: str) -> None:
    opened = os.open(name, DIRECTORY, dir_fd=into)
    try:
        empty(opened)
    finally:
        os.close(opened)
    os.rmdir(name, dir_fd=into)
