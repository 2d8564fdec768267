"""One worker process, put together: its identity, its schema, its guards, its place to wait, its loop."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from queue_workflows import clock as time
from queue_workflows import db
from queue_workflows.config import GPU_QUEUE, HOOKS_QUEUE, current_config, keep_directory
from queue_workflows.db.connections.engine import Database
from queue_workflows.db.listen.listener import Listener
from queue_workflows.engine.execution.executor import EventLoop
from queue_workflows.engine.execution.guards import HeldJob
from queue_workflows.engine.execution.log_fields import bind_child_threads
from queue_workflows.engine.registry.declared import LimitDeclaring
from queue_workflows.errors import DatabaseUnreachable, ExitCode
from queue_workflows.gpu.affinity import Affinity
from queue_workflows.gpu.cache import ModelCache
from queue_workflows.gpu.models import ModelRegistry
from queue_workflows.host.processes.harden import bound_to_launcher
from queue_workflows.host.processes.lease_timer import DeadMan
from queue_workflows.host.processes.standard_streams import share_standard_streams
from queue_workflows.host.processes.tree_by_mark import hide_memory
from queue_workflows.repositories.claims.repository import ClaimableRepository
from queue_workflows.repositories.jobs.hooks import HookJobRepository
from queue_workflows.repositories.jobs.ingest import IngestJobRepository
from queue_workflows.repositories.jobs.nodes import NodeJobRepository
from queue_workflows.repositories.sql.families import NODE
from queue_workflows.roles import exec_inheritance
from queue_workflows.roles.identity import Identity, versions
from queue_workflows.roles.probes.health import HealthReport, judge
from queue_workflows.roles.probes.serve import probed
from queue_workflows.roles.process_exit import bear_mark, leaving_after
from queue_workflows.roles.schema_check import is_as_shipped
from queue_workflows.roles.worker.claims.terms import ClaimTerms
from queue_workflows.roles.worker.common.leftover_processes import end_all
from queue_workflows.roles.worker.common.lifecycle import WorkerOptions, family_of
from queue_workflows.roles.worker.common.parts import WorkerParts
from queue_workflows.roles.worker.common.side_connection import SideConnection
from queue_workflows.roles.worker.concurrent.background_hooks import HookWorker
from queue_workflows.roles.worker.concurrent.event_loop import SharedLoop
from queue_workflows.roles.worker.concurrent.worker import ConcurrentWorker
from queue_workflows.roles.worker.guardian.guardian import Guardian
from queue_workflows.roles.worker.single import MIN_SCHEMA, Worker
from queue_workflows.settings import Settings
from queue_workflows.telemetry.instruments import observe_in_flight
from queue_workflows.telemetry.provider import settle

if TYPE_CHECKING:
    from queue_workflows.db.connections.bounded_wire import ListenWire
    from queue_workflows.roles.agent_link.watch import AgentWatch

_log = logging.getLogger(__name__)

# How long what jobs left on the event loop may take to end, threads of theirs among it.
_LOOP_ENDS_WITHIN_S: Final = 5.0
# And the processes that they left running, before they are killed.
_LEFT_END_WITHIN_S: Final = 2.0


def run_worker(database: Database, settings: Settings, options: WorkerOptions) -> ExitCode:
    """Work until told to stop, drained, or done; the status to end the process with."""
    keep_directory()
    share_standard_streams()
    launcher_pid = bound_to_launcher()
    bear_mark(is_launched=launcher_pid is not None)
    exec_inheritance.own.take()
    # Processes that share a card hand each other its memory through descriptors that they may have to trace.
    if settings.hook_dirs and options.queue != GPU_QUEUE:
        hide_memory()
    report = HealthReport()
    identity = Identity.take(settings.host_label, options.queue)
    if identity.part:
        options = _one_of_several(options, identity.part)
    with probed(report, options.health, options.health_file):
        needed = f"{MIN_SCHEMA} {versions()['queue_workflows']} {database.redacted}"
        # The worker that a part stands in for has looked, but the database may be away since.
        _wait_for_schema(database, options, known=bool(identity.part) or identity.schema == needed)
        identity = replace(identity, schema=needed)
        return _work(database, settings, options, report, identity=identity, launcher_pid=launcher_pid)


def _one_of_several(options: WorkerOptions, part: int) -> WorkerOptions:
    """The options of a process that shares the work of one: it has one job, and the first has the address."""
    if part == 1:
        return replace(options, concurrency=1)
    return replace(options, concurrency=1, health=None, health_file=None)


def _wait_for_schema(database: Database, options: WorkerOptions, *, known: bool) -> None:
    """Wait for the schema, and say so; a worker that drains a queue is to come back later instead.

    A worker that executes itself anew knows the schema as well as if it had not, also one behind the head.
    """
    try:
        connection = database.connect(autocommit=True)
    except DatabaseUnreachable as exc:
        if options.drain:
            raise
        _log.warning("%s; waiting for it for %g s", exc, options.schema_wait_s)
    else:
        with closing(connection):
            if known or is_as_shipped(connection):
                return
    db.wait_for_schema(MIN_SCHEMA, options.schema_wait_s, engine=database.engine)


def _repository_for(queue: str, host_label: str) -> type[ClaimableRepository[Any, Any]]:
    if queue == HOOKS_QUEUE:
        return HookJobRepository.at(host_label)
    return NodeJobRepository if family_of(queue) is NODE else IngestJobRepository


def _models_of(queue: str, settings: Settings) -> ModelCache | None:
    """What a worker of the queue `gpu` keeps loaded; the others load nothing."""
    if queue != GPU_QUEUE:
        return None
    # The others have no device, and would pay for what looks at one.
    from queue_workflows.gpu.device_memory import device_memory

    return ModelCache(
        ModelRegistry(current_config().model_registrar),
        queue=queue,
        budget_mb=settings.model_vram_mb,
        keep_s=settings.model_keep_s,
        clock=time.monotonic,
        memory=device_memory(os.environ) if settings.model_memory_learned else None,
    )


def _worker_of(parts: WorkerParts, loop: SharedLoop | EventLoop) -> ConcurrentWorker | Worker:
    if not isinstance(loop, SharedLoop):
        return Worker(parts)
    return ConcurrentWorker(parts, loop) if parts.hooks is None else HookWorker(parts, loop, parts.hooks)


def _affinity_of(models: ModelCache, settings: Settings, options: WorkerOptions) -> Affinity | None:
    """What it prefers; nothing where no job may pass another."""
    if settings.affinity_max_wait_s == 0:
        return None
    return Affinity(
        models,
        max_wait_s=settings.affinity_max_wait_s,
        # A worker that drains a queue leaves nothing to another: what it leaves would be there when it ends.
        yield_s=0.0 if options.drain else settings.affinity_yield_s,
        fresh_s=settings.stale_heartbeat_s,
        first="low" if settings.host_priority_first == "low" else "high",
    )


def _bar_of(loop: SharedLoop | EventLoop, identity: Identity) -> Callable[[HeldJob], bool] | None:
    """Whether another job keeps one from going on, where jobs are asked first when they overrun.

    So are those of a part: it stands in for a worker of several, and its job is not to fare otherwise.
    """
    if isinstance(loop, SharedLoop):
        return loop.is_barred
    return (lambda _held: False) if identity.part else None


def _nearer(identity: Identity) -> Callable[[], ListenWire | None] | None:
    """What listens for all of this host; imported for a worker that has an agent alone."""
    if not identity.agent:
        return None
    from queue_workflows.roles.agent_link.wire import AgentWire

    return partial(AgentWire.joined, identity.agent)


def _agent_of(identity: Identity) -> AgentWatch | None:
    """What asks for this worker while it rests; imported for a worker that has an agent alone."""
    if not identity.agent:
        return None
    from queue_workflows.roles.agent_link.watch import AgentWatch

    return AgentWatch(identity.agent, host_label=identity.host_label, queue=identity.queue)


def _work(
    database: Database,
    settings: Settings,
    options: WorkerOptions,
    report: HealthReport,
    *,
    identity: Identity,
    launcher_pid: int | None,
) -> ExitCode:
    guardians: list[Guardian] = []

    def at_fault(failure: BaseException) -> None:
        # Before there is one, nothing is claimed, and a failure is raised where it happens.
        for guardian in guardians:
            guardian.damage.leave_if_at_fault(failure)

    family, is_concurrent = family_of(options.queue), options.concurrency > 1 or options.queue == HOOKS_QUEUE
    models = _models_of(options.queue, settings)
    with (
        DeadMan(enabled=settings.deadman) as deadman,
        Listener.on(
            database,
            [family.channel],
            payloads=[options.queue],
            on_failure=at_fault,
            nearer=_nearer(identity),
        ) as listener,
    ):
        if deadman.reason_off:
            _log.warning("no dead man's timer: %s", deadman.reason_off)
        loop = SharedLoop(at_fault) if is_concurrent else EventLoop()
        repository = _repository_for(options.queue, identity.host_label)
        affinity = None if models is None else _affinity_of(models, settings, options)
        guardian = Guardian(
            identity,
            settings,
            ClaimTerms.of(identity, settings, repository, models, affinity),
            connect=lambda: database.connect(autocommit=True, hot=True),
            deadman=deadman,
            listener=listener,
            withdraws=not is_concurrent,
            grace_s=settings.grace_s if options.grace_s is None else options.grace_s,
            launcher_pid=launcher_pid,
            is_barred=_bar_of(loop, identity),
            declare=LimitDeclaring.of(settings, options.app).keep,
            agent=_agent_of(identity),
            slots=options.concurrency,
        )
        guardians.append(guardian)
        side_connection = SideConnection(
            lambda: database.connect(autocommit=True, hot=True),
            guardian.holdings.holds,
            on_failure=guardian.damage.leave_if_at_fault,
        )
        guardian.outage.cuts(side_connection.cut_if_stuck)
        settle()
        observe_in_flight(options.queue, family.name, lambda: len(guardian.holdings.all()))
        guardian.damage.follow_threads()
        bind_child_threads()
        guardian.start()
        report.look = lambda: judge(
            guardian.pulse(),
            now=time.monotonic(),
            patience_s=settings.stale_heartbeat_s,
            poll_s=settings.poll_s,
        )
        parts = WorkerParts.of(
            database,
            settings,
            options,
            guardian=guardian,
            listener=listener,
            loop=loop if isinstance(loop, EventLoop) else None,
            side_connection=side_connection,
        )
        status = ExitCode.FAILED
        try:
            try:
                worker = _worker_of(parts, loop)
                status = worker.run()
                guardian.job_log.say_counted()
            except Exception as exc:
                guardian.damage.leave_if_at_fault(exc)
                raise
            finally:
                guardian.damage.leave_if_closed()
                parts.turns.close()
                if parts.hooks is not None:
                    parts.hooks.close()
        finally:
            # A stop that comes meanwhile must not keep us from ending what jobs left running.
            with closing(guardian.stop_signals):
                grace_s = min(_LEFT_END_WITHIN_S, settings.cancel_grace_s / 2)
                _close(guardian, side_connection, loop, status=status, grace_s=grace_s)
    return status


def _close(
    guardian: Guardian,
    side_connection: SideConnection,
    loop: EventLoop | SharedLoop,
    *,
    status: int,
    grace_s: float,
) -> None:
    """All of it, and at the last what jobs left running, whatever they still raise in this thread."""
    try:
        guardian.close()
    finally:
        try:
            side_connection.close()
        finally:
            try:
                with leaving_after(_LOOP_ENDS_WITHIN_S, status):
                    loop.close()
            finally:
                end_all(grace_s)
