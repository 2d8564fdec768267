"""The host lock of a hook in a run that has a listener with the same lock.

A listener holds its lock until the seal, which waits for the foreground: what needs that lock in the
foreground of the same run would wait for ever. So a hook of such a run shares the lock with a listener of
the run that has it; only while none has, it takes the lock itself, or waits for it as any other. Of those
that share it one runs at a time, by a lock of their own. The lock's file says which job has it, and the
database whether that is a listener of this run: a file that says something else makes a hook wait.
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
    """Have the lock until the job's end, or share that of a listener of its run; else `PutAside`."""
    if locks.take_one(job, key):
        return
    held_by = locks.holder(key)
    listener = held_by and ask(lambda conn: HookJobRepository(conn).listener(job.run_id, *held_by))
    if not listener:
        raise PutAside(HOST_LOCK, key, HELD_S)
    locks.share(job.fence, key, listener)
