"""The locks of this machine that the jobs of one worker hold.

    claimed ──try──had──> its body ──> its processes are gone ──> its end is written ──> the lock is freed
               │                              lease lost: its work has stopped ──────────┘      │
               │                                                                               v
               └─held──> on hold, uncounted, `host_lock` and the lock <──────── the next of each queue
                              │                                                   is promoted
                              └── its worker tries the lock again each second; after `HELD_S` every worker may

So a job never waits in a worker, and nobody waits behind it. What frees a lock and is no job (a program of
this machine) tells nobody, which is what the second look is for. A job with a lock name that begins with
`elsewhere:` is also looked for by workers of other hosts, and taken by one that finds the lock free on its
own host: see `offered_host_locks`.

Jobs may have a lock together, as the hooks of a run do that one of them keeps for all of its run. Each has
it until its own end, in whichever process it runs, and nobody else has it until the last has let go of it.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from queue_workflows.db.connections.exhaustion import is_exhausted
from queue_workflows.errors import ConfigurationError, LockUnusable
from queue_workflows.host.locks.flock import lock_directory
from queue_workflows.host.locks.lock import Absent, Free, HostLock, lock_file_name, probe
from queue_workflows.host.locks.lock_share import LockShare
from queue_workflows.repositories.claims.by_host_lock import lock_of
from queue_workflows.repositories.sql.claimed_job import ClaimedJob, Fence

_log = logging.getLogger(__name__)

J = TypeVar("J", bound=ClaimedJob)

# How long a job waits unless it is fetched; the worker that put it aside does so once the lock is free.
HELD_S: Final = 30.0
# How long the jobs behind it wait: the worker that frees the lock or finds it free lets one out at a time.
BEHIND_S: Final = 86_400.0
LOOK_EVERY_S: Final = 1.0


class KeptLocks:
    """Asked by the thread that claims, and by the one that ends jobs in its stead."""

    def __init__(self, chosen: Path | None = None) -> None:
        """In the directory that was `chosen`, or where the locks of this machine are; made when needed."""
        self._chosen = chosen
        self._lock = threading.Lock()
        # Read by anybody, as most workers never see any; written under the lock.
        self.held: dict[Fence, list[HostLock]] = {}
        self._missed: set[str] = set()
        self._unseen: set[HostLock] = set()
        self._directory: Path | None = None

    def take(self, jobs: Iterable[J]) -> list[J]:
        """Try the lock of each job; the jobs that cannot have theirs now."""
        return [job for job in jobs if job.host_lock is not None and not self.take_one(job, job.host_lock)]

    def has_of(self, fences: Iterable[Fence]) -> bool:
        """Whether one of these attempts holds a lock."""
        return bool(self.held) and any(fence in self.held for fence in fences)

    def free(self, fences: Iterable[Fence]) -> list[str]:
        """Let go of what these attempts hold, which are over; the names of what is free by that."""
        with self._lock:
            let_go = [lock for fence in fences for lock in self.held.pop(fence, ())]
            return [lock.name for lock in let_go if _freed(lock)]

    @property
    def missed(self) -> bool:
        """Whether jobs were put aside for a lock that may be free by now."""
        return bool(self._missed)

    def miss(self, keys: Iterable[str]) -> None:
        """Look after these too, for which jobs are on hold."""
        with self._lock:
            self._missed.update(keys)

    def freed(self) -> list[str]:
        """What was missed and is free now; it is looked at no more."""
        with self._lock:
            freed = [key for key in self._missed if self.is_free(key)]
            self._missed.difference_update(freed)
        return freed

    def is_free(self, key: str) -> bool:
        """Whether nobody on this host has the lock that such jobs need."""
        try:
            found = probe(self._place(), lock_file_name(lock_of(key)))
        except (ConfigurationError, LockUnusable, OSError):
            return False
        if isinstance(found, Free):
            found.release()
        return isinstance(found, Free | Absent)

    def lock_for(self, job: ClaimedJob, name: str) -> HostLock:
        """The lock that a job is about to try, with a note that names the job."""
        note = _note(job.family, job.fence)
        return HostLock(name, directory=self._place(), deadline_s=job.timeout_s, note=note)

    def take_one(self, job: ClaimedJob, key: str) -> bool:
        """Try a lock for a job that is at work; whether it has that until its end."""

        def alone() -> HostLock | None:
            lock = self.lock_for(job, lock_of(key))
            return lock if lock.try_acquire() else None

        return self._has(job, key, alone)

    def share(self, job: ClaimedJob, key: str, beside: Iterable[Fence]) -> bool:
        """Have a lock together with these attempts of its family, until its end; False if others have it."""
        notes = {_note(job.family, fence) for fence in beside}

        def shared() -> LockShare | None:
            note = _note(job.family, job.fence)
            share = LockShare(lock_of(key), directory=self._place(), deadline_s=job.timeout_s, note=note)
            return share if share.try_share(notes) else None

        return self._has(job, key, shared)

    def keep(self, fence: Fence, lock: HostLock) -> None:
        """An attempt has it, until it lets go of it or is over."""
        with self._lock:
            self.held.setdefault(fence, []).append(lock)

    def let_go(self, fence: Fence, lock: HostLock) -> bool:
        """The attempt needs it no more; False if it was over before."""
        with self._lock:
            held = self.held.get(fence, [])
            if lock not in held:
                return False
            held.remove(lock)
            if not held:
                del self.held[fence]
            lock.release()
        return True

    def follow(self) -> None:
        """Be seen with all that is held, also where its file or directory was taken away; from any thread."""
        if not self.held:
            return
        with self._lock:
            lost = [lock for locks in self.held.values() for lock in locks if not lock.is_seen]
            for lock in lost:
                if lock.follow():
                    _log.warning("%s was taken away and replaced: its lock is held there again", lock.path)
                elif lock not in self._unseen:
                    _log.error("%s was taken away: nobody sees that its lock is held", lock.path)
            self._unseen = {lock for lock in lost if not lock.is_seen}

    def _has(self, job: ClaimedJob, key: str, taken: Callable[[], HostLock | None]) -> bool:
        """Whether the lock, or a share of it, could be `taken`; it is kept until the job's end."""
        lock = None
        try:
            lock = taken()
        except (ConfigurationError, LockUnusable, OSError) as exc:
            if is_exhausted(exc):
                # No lock is at fault, and this process is not for much longer.
                raise OSError(errno.EMFILE, str(exc)) from exc
            _log.error("job %d waits: %s", job.id, exc)
        if lock is not None:
            self.keep(job.fence, lock)
        else:
            with self._lock:
                self._missed.add(key)
        return lock is not None

    def _place(self) -> Path:
        if self._directory is None:
            self._directory = lock_directory(self._chosen)
        return self._directory


def _freed(lock: HostLock) -> bool:
    """Let go of it; whether the next job can have it now, as nobody else has it too."""
    is_last = True
    with suppress(OSError):
        is_last = lock.is_last
    lock.release()
    return is_last


def _note(family: str, fence: Fence) -> str:
    """What an attempt of a job writes into the file of a lock; one of another database is another's."""
    return f"{family}:{fence.job_id}, attempt {fence.attempt}, worker {fence.claimed_by.rpartition(':')[2]}"
