"""What a worker of either kind works with, put together once."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final, Self

import psycopg

from queue_workflows.config import GPU_QUEUE, HOOKS_QUEUE
from queue_workflows.db.connections.dsn import secrets_of
from queue_workflows.db.connections.engine import Database
from queue_workflows.db.listen.listener import Listener
from queue_workflows.engine.execution.executor import Loop
from queue_workflows.engine.execution.guards import Budget, budget_of
from queue_workflows.engine.execution.redaction import Redactor
from queue_workflows.engine.limits.wait_loop import DatabaseCalls
from queue_workflows.engine.limits.windows import Windows
from queue_workflows.engine.upkeep.run_files import RUNS
from queue_workflows.errors import HookError
from queue_workflows.host.directories.data import opened
from queue_workflows.host.wake_turns import WakeTurns
from queue_workflows.repositories.sql.families import INGEST, Family
from queue_workflows.repositories.sql.low_water_marks import Marks
from queue_workflows.roles.worker.common.connection import WorkerConnection
from queue_workflows.roles.worker.common.leftover_processes import Leftovers
from queue_workflows.roles.worker.common.lifecycle import WorkerLifecycle, WorkerOptions, family_of
from queue_workflows.roles.worker.common.look_turns import LookTurns
from queue_workflows.roles.worker.common.run_job import JobRunner
from queue_workflows.roles.worker.common.side_connection import SideConnection
from queue_workflows.roles.worker.guardian.guardian import Guardian
from queue_workflows.settings import Settings
from queue_workflows.states import JobFamily

if TYPE_CHECKING:
    from queue_workflows.hooks.attempt.runner import HookRunner

_log = logging.getLogger(__name__)

# How long a hook may take to end once it is told to.
_GRACE_S: Final = 10.0
# Which database it is, and what of it is seen.
_PLACE: Final = (b"host", b"hostaddr", b"port", b"dbname", b"user", b"service", b"options")


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """Shared by the main loop and nobody else, but for the guardian and `side_connection`."""

    settings: Settings
    options: WorkerOptions
    family: Family
    budget: Budget
    guardian: Guardian
    listener: Listener
    side_connection: SideConnection
    windows: Windows
    marks: Marks
    rng: Random
    redactor: Redactor
    worker_connection: WorkerConnection
    job_runner: JobRunner
    lifecycle: WorkerLifecycle
    hooks: HookRunner | None
    turns: LookTurns

    @classmethod
    def of(
        cls,
        database: Database,
        settings: Settings,
        options: WorkerOptions,
        *,
        guardian: Guardian,
        listener: Listener,
        loop: Loop | None,
        side_connection: SideConnection,
    ) -> Self:
        """Everything for a worker of this queue; async jobs of one that has one at a time run on `loop`."""
        family, rng = family_of(options.queue), Random()  # noqa: S311
        marks = Marks(settings.poll_s, passes_by=family is INGEST)
        redactor = Redactor(secrets_of(database.params))
        worker_connection = WorkerConnection(
            lambda: database.connect(autocommit=True, hot=True),
            guardian=guardian,
            listener=listener,
            marks=marks,
            rng=rng,
            redactor=redactor,
        )
        hooks = _hooks_of(database, settings, guardian, side_connection, redactor)
        job_runner = JobRunner(
            settings,
            connected=worker_connection.connected,
            loop=loop,
            limits=guardian.terms.limits,
            redactor=redactor,
            rng=rng,
            models=guardian.terms.models,
            hooks=hooks,
            ask=None if hooks is None else side_connection.ask,
        )
        return cls(
            settings=settings,
            options=options,
            family=family,
            budget=budget_of(options.queue, JobFamily(family.name), settings),
            guardian=guardian,
            listener=listener,
            side_connection=side_connection,
            windows=Windows(
                DatabaseCalls(side_connection.ask, on_failure=guardian.damage.leave_if_at_fault),
                guardian.terms.kept,
                guardian.terms.locks,
                lease_s=guardian.holdings.lease_s,
            ),
            marks=marks,
            rng=rng,
            redactor=redactor,
            worker_connection=worker_connection,
            job_runner=job_runner,
            lifecycle=WorkerLifecycle(
                options,
                guardian=guardian,
                listener=listener,
                job_runner=job_runner,
                worker_connection=worker_connection,
            ),
            hooks=hooks,
            turns=LookTurns(lambda: _turns_of(database, options, guardian, job_runner, worker_connection)),
        )

    def leftovers(self, *, is_concurrent: bool) -> Leftovers:
        """What ends the processes that jobs leave."""
        grace_s = self.settings.cancel_grace_s
        return Leftovers(self.guardian.terms.locks, cancel_grace_s=grace_s, is_concurrent=is_concurrent)


def place_of(connection: psycopg.Connection[Any]) -> list[str]:
    """Which database this is and what of it is seen, also by what libpq takes from the environment."""
    # psycopg's own `get_parameters` asks for a home, which the account of a container may not have.
    used = {each.keyword: each.val for each in connection.pgconn.info}
    return [f"{name.decode()}={(used.get(name) or b'').decode(errors='replace')}" for name in _PLACE]


def _turns_of(
    database: Database,
    options: WorkerOptions,
    guardian: Guardian,
    job_runner: JobRunner,
    worker_connection: WorkerConnection,
) -> WakeTurns | None:
    """The turns of all workers here for which the same jobs are; none where a job is not any worker's."""
    queue = options.queue
    if queue in (GPU_QUEUE, HOOKS_QUEUE) or options.drain or not database.can_listen:
        return None
    place = place_of(worker_connection.connected())
    known = sorted(job_runner.task_names())
    return WakeTurns.among(
        *place, guardian.identity.host_label, queue, str(options.app or guardian.settings.app), *known
    )


def _hooks_of(
    database: Database,
    settings: Settings,
    guardian: Guardian,
    side_connection: SideConnection,
    redactor: Redactor,
) -> HookRunner | None:
    """What runs the hooks of a worker of theirs; imported for it alone, as others start often."""
    if guardian.identity.queue != HOOKS_QUEUE:
        return None
    from queue_workflows.hooks.attempt.runner import HookRunner
    from queue_workflows.hooks.attempt.tools import HookTerms
    from queue_workflows.hooks.plugins.discovery import plugins_in

    if not settings.hook_dirs:
        _log.warning("no directories of hooks: set QWF_HOOK_DIRS, or every hook will wait for another worker")
    dirs = tuple(Path(os.path.expanduser(path)).absolute() for path in settings.hook_dirs)
    try:
        plugins_in(dirs)
    except HookError as unreadable:
        _log.warning("QWF_HOOK_DIRS: %s; until it can be read, every hook waits", unreadable.message)
    with opened(settings.data_dir.absolute(), RUNS):  # if that cannot be, every hook would fail
        pass
    terms = HookTerms(
        dirs=dirs,
        data_dir=settings.data_dir,
        host_label=guardian.identity.host_label,
        environ=dict(os.environ),
        # It is over before its job would be ended together with its worker.
        grace_s=min(_GRACE_S, settings.cancel_grace_s / 2),
        dsns=tuple(dsn for dsn in (database.dsn, database.direct_dsn) if dsn),
        worker_id=guardian.identity.worker_id,
        lease_s=guardian.holdings.lease_s,
        limits=guardian.terms.limits,
    )
    return HookRunner(terms, side_connection.ask, locks=guardian.terms.locks, redactor=redactor)
