"""What a worker does about tasks and node modules that it does not know: it leaves their jobs to others.

    a claim brings one ──> it is put on hold, and the name is lacked: no claim brings another
                             │
             a living worker may know it ──> back into the queue, where that one takes it
                             │
                     nobody alive does ──> all of them are put on hold, for a worker to come

So a name costs each worker that lacks it one claim, and no job goes to and fro. Jobs that are passed by are
still read by each claim that looks at everything: a crowd of a task at the head of the queue is put on hold
as well, and workers that know the task fetch it page by page (`fetch_size`). A crowd of node jobs stays in
the queue, and is read: a worker that knows their module fetches all that is on hold at once, so that they
would go to and fro.

What a job began under may be a version that this worker lacks, as `film@1`. No claim can pass that by, as its
row says `film`. So it stays on hold until a worker fetches it that has the version.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable
from typing import Final

from psycopg import errors

from queue_workflows.db.connections.failures import DATABASE_AWAY
from queue_workflows.engine.registry.published_names import PublishedNames
from queue_workflows.repositories.sql.families import INGEST
from queue_workflows.repositories.sql.table import LONGEST_PAGE
from queue_workflows.repositories.workers.code import WorkerCodeRepository
from queue_workflows.roles.worker.common.connection import WorkerConnection
from queue_workflows.roles.worker.common.run_job import UNKNOWN_DELAY_S

_log = logging.getLogger(__name__)

# So many found at once are a crowd, of which there may be more: what others fetch for themselves is less.
CROWD: Final = 1_000
# How soon it is looked again for what is passed by, and how late at the latest where there was nothing to do.
FIRST_LOOK_S: Final = 5.0
LAST_LOOK_S: Final = 60.0


class UnknownTasks:
    """The tasks or modules of one queue that a worker met and does not know; the main thread's."""

    def __init__(
        self, queue: str, reason: str, published: PublishedNames | None, *, worker_id: str, stale_s: float
    ) -> None:
        """`reason` is that of the holds; a worker is alive that was heard of within `stale_s`."""
        self._queue = queue
        self._reason = reason
        self._published = published
        self._worker_id = worker_id
        self._stale_s = stale_s
        # How many jobs of each name were put on hold by this worker since it looked last.
        self._met: Counter[str] = Counter()
        # Versions that were met; a row does not say of which it is.
        self._versions: set[str] = set()
        # Names of which jobs were put on hold while nobody knew them.
        self._aside: set[str] = set()
        self._due = math.inf
        self._pause = FIRST_LOOK_S

    def is_due(self, now: float) -> bool:
        """Whether to `settle` what becomes of jobs of such names, once all ends are written."""
        return now >= self._due

    def met(self, name: str) -> None:
        """A job of this name was claimed, and is put on hold."""
        if self._published is not None and self._published.lack(name):
            self._met[name] += 1
            self._due, self._pause = -math.inf, FIRST_LOOK_S

    def met_version(self, key: str) -> None:
        """A job is put on hold, as its stored steps are of a version that this process lacks.

        To give it back would be to claim it again.
        """
        if self._published is not None and self._published.lack(key):
            self._versions.add(key)

    def settle(self, worker_connection: WorkerConnection, now: float) -> None:
        """Leave these jobs to those that know them, or put them on hold until somebody does."""
        try:
            did = self._settle(worker_connection)
        except (errors.InsufficientPrivilege, errors.UndefinedTable) as refused:
            _log.error("%s; apply docs/deploy/grants.sql after an upgrade", " ".join(str(refused).split()))
            did = 0
        except DATABASE_AWAY as exc:
            worker_connection.lost(exc)
            worker_connection.recover([])
            return
        if did >= CROWD:
            self._due = -math.inf
            return
        self._pause = FIRST_LOOK_S if did else min(LAST_LOOK_S, self._pause * 2)
        self._due = now + self._pause if self._lacked() else math.inf

    def _settle(self, worker_connection: WorkerConnection) -> int:
        """How many jobs were put on hold or back at once, at the most, so that there may be more."""
        lacked = self._lacked()
        repository = worker_connection.repository()
        known = WorkerCodeRepository(worker_connection.connected()).known_elsewhere(
            self._queue, lacked, worker_id=self._worker_id, stale_s=self._stale_s
        )
        met, self._met = self._met, Counter()
        self._give_back(worker_connection, known & set(met), met.total())
        # A worker that knows them came while they were put on hold, and may not have seen the last of them.
        self._give_back(worker_connection, known & self._aside, LONGEST_PAGE)
        self._aside = (self._aside - known) & lacked
        did = 0
        if nobodys := lacked - known:
            did = repository.put_aside(self._queue, nobodys, reason=self._reason, delay_s=UNKNOWN_DELAY_S)
            self._aside |= nobodys
        if known and repository.family is INGEST:
            # Workers of ingest jobs fetch these as they need them; those of node jobs take all at once.
            crowd = repository.put_aside(
                self._queue, known, reason=self._reason, delay_s=UNKNOWN_DELAY_S, crowd=CROWD
            )
            did = max(did, crowd)
        return did

    def _lacked(self) -> set[str]:
        """The names that claims pass by."""
        return set() if self._published is None else set(self._published.lacked) - self._versions

    def _give_back(self, worker_connection: WorkerConnection, names: Iterable[str], limit: int) -> None:
        if names and limit:
            worker_connection.repository().promote_held(
                self._reason, names, queue=self._queue, limit=min(limit, LONGEST_PAGE)
            )
