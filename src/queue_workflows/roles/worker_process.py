"""One worker process, put together: its identity, its schema, its guards, its place to wait, its loop."""

from __future__ import annotations

import logging

from queue_workflows.db import wait_for_schema
from queue_workflows.db.engine import Database
from queue_workflows.db.listen import Listener
from queue_workflows.errors import ExitCode
from queue_workflows.host.deadman import DeadMan
from queue_workflows.host.lifetime import die_with_parent, take_launcher_pid
from queue_workflows.jobs.executor import EventLoop
from queue_workflows.repositories.families import NODE
from queue_workflows.repositories.ingest_jobs import IngestJobRepository
from queue_workflows.repositories.node_jobs import NodeJobRepository
from queue_workflows.roles.guardian import Guardian
from queue_workflows.roles.identity import Identity
from queue_workflows.roles.worker import MIN_SCHEMA, Worker, WorkerOptions, family_of
from queue_workflows.settings import Settings

_log = logging.getLogger(__name__)


def run_worker(database: Database, settings: Settings, options: WorkerOptions) -> ExitCode:
    """Work until told to stop, drained, or done; the status to end the process with."""
    launcher_pid = take_launcher_pid()
    die_with_parent(launcher_pid)
    wait_for_schema(MIN_SCHEMA, options.schema_wait_s, engine=database.engine)
    family = family_of(options.queue)
    repository = NodeJobRepository if family is NODE else IngestJobRepository
    with (
        DeadMan(enabled=settings.deadman) as deadman,
        Listener.on(database, [family.channel], payloads=[options.queue]) as listener,
        EventLoop() as loop,
    ):
        if deadman.reason_off:
            _log.warning("no dead man's timer: %s", deadman.reason_off)
        guardian = Guardian(
            Identity.take(settings.host_label, options.queue),
            settings,
            repository=repository,
            connect=lambda: database.connect(autocommit=True, hot=True),
            deadman=deadman,
            on_news=listener.interrupt,
            absorb=lambda withdraw: listener.absorb(withdraw=withdraw),
            grace_s=settings.grace_s if options.grace_s is None else options.grace_s,
            launcher_pid=launcher_pid,
        )
        guardian.start()
        try:
            return Worker(
                database,
                settings,
                options,
                guardian=guardian,
                listener=listener,
                repository=repository,
                loop=loop,
            ).run()
        finally:
            guardian.close()
