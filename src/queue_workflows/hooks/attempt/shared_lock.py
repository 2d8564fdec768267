"""The host lock of a hook in a run that has a listener with the same lock.

A listener holds its lock until the seal, which waits for the foreground: what needs that lock in the
foreground of the same run would wait for ever. So the hooks of such a run have the lock together, whichever
process of the host they run in, and what is not of the run waits for the last of them. With the lock of a
listener that is there for a whole tree it is the hooks of all its runs. Of those in the
foreground one runs at a time, by a lock of their own. The locks' files say which attempts have it, and the
database whether those are at work for this run: a file that says something else makes a hook wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg

from queue_workflows.engine.limits.held_host_locks import HELD_S, KeptLocks
from queue_workflows.engine.outcomes import PutAside
from queue_workflows.repositories.claims.by_host_lock import HOST_LOCK
from queue_workflows.repositories.jobs.hooks import HookJobRepository
from queue_workflows.repositories.sql.claimed_job import ClaimedNodeJob


def share_or_take(
    job: ClaimedNodeJob,
    key: str,
    locks: KeptLocks,
    ask: Callable[[Callable[[psycopg.Connection[Any]], Any]], Any],
) -> None:
    """Have the lock until the job's end, alone or beside hooks of its run; else `PutAside`."""
    if locks.take_one(job, key):
        return
    sharers = ask(lambda conn: HookJobRepository(conn).sharers(job.run_id, key))
    if not locks.share(job, key, sharers):
        raise PutAside(HOST_LOCK, key, HELD_S)
