"""One orchestrator process, put together: its schema, its probes, its place to wait, its loop."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, Final

import psycopg

from queue_workflows import db
from queue_workflows.config import current_config
from queue_workflows.db.connections.dsn import secrets_of
from queue_workflows.db.connections.engine import Database
from queue_workflows.db.listen.listener import Listener
from queue_workflows.engine.execution.redaction import Redactor
from queue_workflows.engine.runs.dispatcher import Dispatcher
from queue_workflows.engine.runs.finished_run_hooks import deliver
from queue_workflows.errors import AccessRefused, DatabaseUnreachable, ExitCode
from queue_workflows.host.processes.harden import bound_to_launcher
from queue_workflows.host.processes.standard_streams import share_standard_streams
from queue_workflows.host.processes.tree_by_mark import hide_memory
from queue_workflows.repositories.retention import RetentionTimes
from queue_workflows.roles.heartbeat_pipe import told
from queue_workflows.roles.identity import Identity
from queue_workflows.roles.loop import Halt
from queue_workflows.roles.orchestrator.finished_run_hooks import FinishedRunHooks
from queue_workflows.roles.orchestrator.orchestrator import (
    CHANNEL,
    STALE_TIMES,
    WAKE,
    Orchestrator,
    OrchestratorOptions,
)
from queue_workflows.roles.probes.figures import FigureReader
from queue_workflows.roles.probes.health import STOPPING, HealthReport, judge
from queue_workflows.roles.probes.serve import probed
from queue_workflows.roles.schema_check import is_ready
from queue_workflows.settings import Settings
from queue_workflows.telemetry.instruments import observe_figures
from queue_workflows.telemetry.provider import meter
from queue_workflows.workflow.providing import find_document

_log = logging.getLogger(__name__)

# The revision that brought the last column or index which an orchestrator's statements cannot do without.
MIN_SCHEMA: Final = 48
ROLE: Final = "orchestrator"
# All gauges of one export are of one reading.
_FIGURES_EVERY_S: Final = 10.0


def run_orchestrator(database: Database, settings: Settings, options: OrchestratorOptions) -> ExitCode:
    """Advance runs until told to stop; the status to end the process with."""
    # The host app's hooks of runs that are over print as jobs do.
    share_standard_streams()
    bound_to_launcher()
    if settings.hook_dirs:
        hide_memory()
    report = HealthReport()
    seen_to: list[Callable[[], None]] = []
    with (
        probed(report, options.health, options.health_file),
        told(lambda: report.look().live, lambda: [see_to() for see_to in seen_to]),
        Listener.on(database, [CHANNEL], payloads=[WAKE]) as listener,
    ):
        halt = Halt(listener.interrupt)
        with halt.on_signals():
            _prepare_schema(database, options)
            redactor = Redactor(secrets_of(database.params))
            finished_run_hooks = _finished_run_hooks(database, settings, redactor)
            orchestrator = _orchestrator(
                database,
                settings,
                redactor=redactor,
                listener=listener,
                halt=halt,
                on_news=finished_run_hooks.ring,
            )
            report.look = lambda: judge(
                orchestrator.pulse(),
                now=time.monotonic(),
                patience_s=settings.stale_heartbeat_s,
                poll_s=settings.poll_s,
            )
            seen_to += [orchestrator.cut_if_stuck, finished_run_hooks.cut_if_stuck]
            with finished_run_hooks, closing(orchestrator), _observed(database, settings):
                status = orchestrator.run(once=options.once)
                # A hook may take its time.
                report.look = lambda: STOPPING
                if options.once:
                    finished_run_hooks.tell_all()
                return status


@contextmanager
def _observed(database: Database, settings: Settings) -> Iterator[None]:
    """Tell an SDK the database's figures, if there is one; `qwf metrics` needs no orchestrator."""
    if meter() is None:
        yield
        return
    reader = FigureReader(
        lambda: database.connect(autocommit=True),
        stale_s=settings.stale_heartbeat_s,
        every_s=_FIGURES_EVERY_S,
        kept=RetentionTimes.of(settings),
        waits=settings.wait_causes,
    )
    observe_figures(reader.figures)
    with closing(reader):
        yield


def _prepare_schema(database: Database, options: OrchestratorOptions) -> None:
    """Migrate, or wait for another process to; a server that does not answer yet is waited for too."""
    if current_config().host_migrations is None and is_ready(database):
        return
    try:
        for step in db.bootstrap(engine=database.engine):
            _log.info("migrated: %s %s", step.chain, step.revision)
    except AccessRefused as refused:
        _log.info("%s; waiting for the schema for %g s", refused, options.schema_wait_s)
    except DatabaseUnreachable as exc:
        if options.once:
            raise
        _log.warning("%s; waiting for it for %g s", exc, options.schema_wait_s)
    db.wait_for_schema(MIN_SCHEMA, options.schema_wait_s, engine=database.engine)


def _finished_run_hooks(database: Database, settings: Settings, redactor: Redactor) -> FinishedRunHooks:
    def told(connection: psycopg.Connection[Any]) -> int:
        return deliver(connection, current_config().run_finished_hooks, settings, redactor)

    return FinishedRunHooks(
        lambda: database.connect(autocommit=True),
        told,
        poll_s=settings.poll_s,
        grace_s=settings.grace_s,
        answer_within_s=STALE_TIMES * settings.stale_heartbeat_s,
    )


def _orchestrator(
    database: Database,
    settings: Settings,
    *,
    redactor: Redactor,
    listener: Listener,
    halt: Halt,
    on_news: Callable[[], None],
) -> Orchestrator:
    def dispatcher(connection: psycopg.Connection[Any]) -> Dispatcher:
        return Dispatcher(
            connection,
            settings,
            host=current_config().ref_resolver,
            find_document=find_document,
            redactor=redactor,
        )

    return Orchestrator(
        lambda: database.connect(autocommit=True, hot=True),
        settings,
        name=Identity.take(settings.host_label, ROLE).worker_id,
        listener=listener,
        halt=halt,
        dispatcher=dispatcher,
        on_news=on_news,
    )
