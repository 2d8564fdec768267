"""One scheduler process, put together: its schema, its probes, its loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from typing import Final

from queue_workflows.config import current_config
from queue_workflows.db.connections.engine import Database
from queue_workflows.engine.registry.declared import LimitDeclaring
from queue_workflows.engine.schedules.declared import task_options
from queue_workflows.engine.schedules.publish import Declaring
from queue_workflows.errors import ExitCode
from queue_workflows.host.processes.harden import bound_to_launcher
from queue_workflows.host.processes.tree_by_mark import hide_memory
from queue_workflows.roles.heartbeat_pipe import told
from queue_workflows.roles.identity import Identity
from queue_workflows.roles.loop import Halt, Waiter
from queue_workflows.roles.probes.health import HealthReport, judge
from queue_workflows.roles.probes.serve import probed
from queue_workflows.roles.scheduler.scheduler import Scheduler, SchedulerOptions
from queue_workflows.roles.schema_check import wait_for_schema
from queue_workflows.settings import Settings

# The revision that brought the last index which a scheduler's statements cannot do without.
MIN_SCHEMA: Final = 40
ROLE: Final = "scheduler"


def run_scheduler(database: Database, settings: Settings, options: SchedulerOptions) -> ExitCode:
    """Insert ticks until told to stop; the status to end the process with."""
    bound_to_launcher()
    if settings.hook_dirs:
        hide_memory()
    declaring = Declaring(current_config().ingest_schedule, options.app)
    declaring.check()
    report = HealthReport()
    seen_to: list[Callable[[], None]] = []
    with (
        probed(report, options.health, options.health_file),
        told(lambda: report.look().live, lambda: [see_to() for see_to in seen_to]),
        Waiter() as waiter,
    ):
        halt = Halt(waiter.ring)
        with halt.on_signals():
            wait_for_schema(database, MIN_SCHEMA, options.schema_wait_s)
            scheduler = Scheduler(
                lambda: database.connect(autocommit=True, hot=True),
                settings,
                name=Identity.take(settings.host_label, ROLE).worker_id,
                waiter=waiter,
                halt=halt,
                declaring=declaring,
                declare_limits=LimitDeclaring.of(settings, options.app).keep,
                task_options=task_options,
            )
            report.look = lambda: judge(
                scheduler.pulse(),
                now=time.monotonic(),
                patience_s=settings.stale_heartbeat_s,
                poll_s=settings.poll_s,
            )
            seen_to.append(scheduler.cut_if_stuck)
            with closing(scheduler):
                return scheduler.run(once=options.once)
