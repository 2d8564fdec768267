"""A run's directory that several hosts share: found by its mark, before a hook works in it.

    {data}/runs/{run}/.shared -> {mark}        a link that leads nowhere: made with its content, or not at all

The first attempt of the run leaves a mark in the directory and has the run's row go by it. Where two do so at
once, they find one mark if they share the directory, and else the row takes the mark of one. An attempt that
does not find there what the row says is on another disk: it is put on hold, and works in no directory.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import psycopg

from queue_workflows.engine.explain.hosts import NOT_SHARED
from queue_workflows.engine.outcomes import PutAside
from queue_workflows.errors import HookError
from queue_workflows.hooks.attempt.directories import HookPlaces
from queue_workflows.host.directories.below import directory_beneath
from queue_workflows.repositories.jobs.hooks import HookJobRepository
from queue_workflows.repositories.sql.claimed_job import ClaimedNodeJob

MARK_FILE: Final = ".shared"
# A host may see another's files this much later: what a network file system keeps in mind of a directory.
_LOOK_AGAIN_S: Final = 5.0
Ask = Callable[[Callable[[psycopg.Connection[Any]], Any]], Any]


def find_shared_directory(places: HookPlaces, *, job: ClaimedNodeJob, host_label: str, ask: Ask) -> None:
    """See to it that the run's directory is the one in which its first hook worked; raises `PutAside`."""
    mark = ask(lambda conn: HookJobRepository(conn).directory_mark(job.run_id))
    if mark is None:
        left = _leave_mark(places)
        mark = ask(lambda conn: HookJobRepository(conn).mark_directory(job, left))
    if mark is None or mark != _mark_in(places):
        raise PutAside(NOT_SHARED, host_label, _LOOK_AGAIN_S)


def _leave_mark(places: HookPlaces) -> str:
    """The mark of the directory, which is made with one if it has none."""
    held = places.hold_beside(places.run)
    try:
        with suppress(FileExistsError):
            os.symlink(uuid.uuid4().hex, MARK_FILE, dir_fd=held.descriptor)
        return os.readlink(MARK_FILE, dir_fd=held.descriptor)
    except OSError as wrong:
        raise HookError(
            f"{places.run}: its file system cannot be shared by hosts: {wrong.strerror}",
            advice="it has to have symbolic links; see to it, or start the run without --shared-directory",
        ) from None
    finally:
        os.close(held.descriptor)


def _mark_in(places: HookPlaces) -> str | None:
    # Opened anew: a network file system asks its server then what is in a directory.
    with suppress(OSError), directory_beneath(places.run, beneath=places.beneath) as run:
        return os.readlink(MARK_FILE, dir_fd=run)
    return None
