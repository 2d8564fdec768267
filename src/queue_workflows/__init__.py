"""A workflow engine for Python services in which one Postgres is the queue, the message bus and the record.

The public names, resolved on first use: importing the package costs nothing and loads no database driver.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from queue_workflows import db
    from queue_workflows.config import (
        HostMigrations,
        configure,
        on_run_finished,
        set_invoke_context,
        set_model_registrar,
        set_node_module_package,
        set_node_resolver,
        set_ref_resolver,
        set_workflow_dir,
        set_workflow_provider,
    )
    from queue_workflows.db.connections.own import aconnect, connect
    from queue_workflows.engine.durable.async_context import AsyncDurableContext
    from queue_workflows.engine.durable.sync_context import DurableContext
    from queue_workflows.engine.execution.context import JobContext
    from queue_workflows.engine.execution.log_fields import JobLogFilter
    from queue_workflows.engine.limits.web_host_key import host_key
    from queue_workflows.engine.outcomes import Cancelled, Discard, RetryAfter, Skip
    from queue_workflows.engine.registry.ingest_task import IngestTask
    from queue_workflows.engine.registry.tasks import ingest_task, register_ingest_task
    from queue_workflows.engine.runs.awaitable import (
        acancel_node,
        acancel_run,
        acancel_runs,
        aretry_run,
        astart_run,
        asubmit_input,
    )
    from queue_workflows.engine.runs.retry import RunRetry, retry_run
    from queue_workflows.engine.runs.verbs import (
        cancel_node,
        cancel_run,
        cancel_runs,
        start_run,
        submit_input,
    )
    from queue_workflows.engine.schedules.declared import IngestSchedule, set_ingest_schedule
    from queue_workflows.engine.watch.awaitable import await_for, awatch
    from queue_workflows.engine.watch.follow import watch
    from queue_workflows.engine.watch.queue_snapshot import QueueSnapshot, aingest_snapshot, ingest_snapshot
    from queue_workflows.engine.watch.run_view import RunOverview
    from queue_workflows.engine.watch.wait_for import wait_for
    from queue_workflows.errors import (
        ChildFailed,
        ConfigurationError,
        CostAboveBurst,
        DatabaseError,
        DocumentError,
        EventTimeout,
        HookError,
        JobCancelled,
        JobFailed,
        JobNotCompleted,
        LeaseLost,
        LockHeld,
        LockUnusable,
        ModelLoadFailed,
        NonDeterminism,
        PayloadError,
        QwfError,
        RefError,
        RunCancelled,
        RunFailed,
        RunNotCompleted,
        RunRefused,
        SchemaError,
        StepFailed,
        StepTimeout,
        UnknownJob,
        UnknownNode,
        UnknownRate,
        UnknownRun,
        UnknownSchedule,
        UnknownWorkflow,
        UnusableConnection,
        WaitTimeout,
        WindowOrder,
    )
    from queue_workflows.gpu.models import ModelSpec
    from queue_workflows.hooks.output.record_types import RecordContext, register_record_type
    from queue_workflows.hooks.output.store import process_hook_records
    from queue_workflows.hooks.plugins.compile import compile_hooks
    from queue_workflows.hooks.plugins.discovery import Hook, discover_hooks, extract_step, is_background_hook
    from queue_workflows.host.directories.workspaces import Workspace, workspace
    from queue_workflows.host.janitor.resources import ResourceKind, register_resource_kind
    from queue_workflows.host.locks.lock import HostLock
    from queue_workflows.host.processes.harden import Hardened, TornDown, harden
    from queue_workflows.repositories import (
        BinaryRepository,
        DispatchEventRepository,
        Enqueued,
        FinishedRun,
        HeartbeatRepository,
        HookRecordRepository,
        IngestJobRepository,
        InputSubmissionRepository,
        LimitRepository,
        MachineRepository,
        NewIngestJob,
        NewNodeJob,
        NodeJobRepository,
        ParentNode,
        RateRepository,
        RunRepository,
        ScheduleRepository,
        StartedRun,
        Unique,
        WorkerControlRepository,
        aenqueue_ingest_job,
        aenqueue_many,
        enqueue_ingest_job,
        enqueue_many,
    )
    from queue_workflows.repositories.durable.events import aemit_event, emit_event
    from queue_workflows.settings.declared_limits import Adaptive, Rate
    from queue_workflows.workflow.document.load import Document, load_document

    __version__: str

__all__ = [
    "Adaptive",
    "AsyncDurableContext",
    "BinaryRepository",
    "Cancelled",
    "ChildFailed",
    "ConfigurationError",
    "CostAboveBurst",
    "DatabaseError",
    "Discard",
    "DispatchEventRepository",
    "Document",
    "DocumentError",
    "DurableContext",
    "Enqueued",
    "EventTimeout",
    "FinishedRun",
    "Hardened",
    "HeartbeatRepository",
    "Hook",
    "HookError",
    "HookRecordRepository",
    "HostLock",
    "HostMigrations",
    "IngestJobRepository",
    "IngestSchedule",
    "IngestTask",
    "InputSubmissionRepository",
    "JobCancelled",
    "JobContext",
    "JobFailed",
    "JobLogFilter",
    "JobNotCompleted",
    "LeaseLost",
    "LimitRepository",
    "LockHeld",
    "LockUnusable",
    "MachineRepository",
    "ModelLoadFailed",
    "ModelSpec",
    "NewIngestJob",
    "NewNodeJob",
    "NodeJobRepository",
    "NonDeterminism",
    "ParentNode",
    "PayloadError",
    "QueueSnapshot",
    "QwfError",
    "Rate",
    "RateRepository",
    "RecordContext",
    "RefError",
    "ResourceKind",
    "RetryAfter",
    "RunCancelled",
    "RunFailed",
    "RunNotCompleted",
    "RunOverview",
    "RunRefused",
    "RunRepository",
    "RunRetry",
    "ScheduleRepository",
    "SchemaError",
    "Skip",
    "StartedRun",
    "StepFailed",
    "StepTimeout",
    "TornDown",
    "Unique",
    "UnknownJob",
    "UnknownNode",
    "UnknownRate",
    "UnknownRun",
    "UnknownSchedule",
    "UnknownWorkflow",
    "UnusableConnection",
    "WaitTimeout",
    "WindowOrder",
    "WorkerControlRepository",
    "Workspace",
    "__version__",
    "acancel_node",
    "acancel_run",
    "acancel_runs",
    "aconnect",
    "aemit_event",
    "aenqueue_ingest_job",
    "aenqueue_many",
    "aingest_snapshot",
    "aretry_run",
    "astart_run",
    "asubmit_input",
    "await_for",
    "awatch",
    "cancel_node",
    "cancel_run",
    "cancel_runs",
    "compile_hooks",
    "configure",
    "connect",
    "db",
    "discover_hooks",
    "emit_event",
    "enqueue_ingest_job",
    "enqueue_many",
    "extract_step",
    "harden",
    "host_key",
    "ingest_snapshot",
    "ingest_task",
    "is_background_hook",
    "load_document",
    "on_run_finished",
    "process_hook_records",
    "register_ingest_task",
    "register_record_type",
    "register_resource_kind",
    "retry_run",
    "set_ingest_schedule",
    "set_invoke_context",
    "set_model_registrar",
    "set_node_module_package",
    "set_node_resolver",
    "set_ref_resolver",
    "set_workflow_dir",
    "set_workflow_provider",
    "start_run",
    "submit_input",
    "wait_for",
    "watch",
    "workspace",
]

_HOMES: Final = {
    "config": (
        "HostMigrations",
        "configure",
        "on_run_finished",
        "set_invoke_context",
        "set_model_registrar",
        "set_node_module_package",
        "set_node_resolver",
        "set_ref_resolver",
        "set_workflow_dir",
        "set_workflow_provider",
    ),
    "errors": (
        "ChildFailed",
        "ConfigurationError",
        "CostAboveBurst",
        "DatabaseError",
        "DocumentError",
        "EventTimeout",
        "HookError",
        "JobCancelled",
        "JobFailed",
        "JobNotCompleted",
        "LeaseLost",
        "LockHeld",
        "LockUnusable",
        "ModelLoadFailed",
        "NonDeterminism",
        "PayloadError",
        "QwfError",
        "RefError",
        "RunCancelled",
        "RunFailed",
        "RunNotCompleted",
        "RunRefused",
        "SchemaError",
        "StepFailed",
        "StepTimeout",
        "UnknownJob",
        "UnknownNode",
        "UnknownRate",
        "UnknownRun",
        "UnknownSchedule",
        "UnknownWorkflow",
        "UnusableConnection",
        "WaitTimeout",
        "WindowOrder",
    ),
    "gpu.models": ("ModelSpec",),
    "hooks.plugins.compile": ("compile_hooks",),
    "hooks.plugins.discovery": ("Hook", "discover_hooks", "extract_step", "is_background_hook"),
    "hooks.output.record_types": ("RecordContext", "register_record_type"),
    "hooks.output.store": ("process_hook_records",),
    "host.processes.harden": ("Hardened", "TornDown", "harden"),
    "host.locks.lock": ("HostLock",),
    "host.janitor.resources": ("ResourceKind", "register_resource_kind"),
    "host.directories.workspaces": ("Workspace", "workspace"),
    "db.connections.own": ("aconnect", "connect"),
    "engine.durable.async_context": ("AsyncDurableContext",),
    "engine.durable.sync_context": ("DurableContext",),
    "engine.execution.context": ("JobContext",),
    "engine.execution.log_fields": ("JobLogFilter",),
    "engine.limits.web_host_key": ("host_key",),
    "engine.outcomes": ("Cancelled", "Discard", "RetryAfter", "Skip"),
    "engine.runs.awaitable": (
        "acancel_node",
        "acancel_run",
        "acancel_runs",
        "aretry_run",
        "astart_run",
        "asubmit_input",
    ),
    "engine.runs.retry": ("RunRetry", "retry_run"),
    "engine.runs.verbs": ("cancel_node", "cancel_run", "cancel_runs", "start_run", "submit_input"),
    "engine.schedules.declared": ("IngestSchedule", "set_ingest_schedule"),
    "engine.watch.awaitable": ("await_for", "awatch"),
    "engine.watch.follow": ("watch",),
    "engine.watch.queue_snapshot": ("QueueSnapshot", "aingest_snapshot", "ingest_snapshot"),
    "engine.registry.ingest_task": ("IngestTask",),
    "engine.registry.tasks": ("ingest_task", "register_ingest_task"),
    "engine.watch.run_view": ("RunOverview",),
    "engine.watch.wait_for": ("wait_for",),
    "repositories": (
        "BinaryRepository",
        "DispatchEventRepository",
        "Enqueued",
        "FinishedRun",
        "HeartbeatRepository",
        "HookRecordRepository",
        "IngestJobRepository",
        "InputSubmissionRepository",
        "LimitRepository",
        "MachineRepository",
        "NewIngestJob",
        "NewNodeJob",
        "NodeJobRepository",
        "ParentNode",
        "RateRepository",
        "RunRepository",
        "ScheduleRepository",
        "StartedRun",
        "Unique",
        "WorkerControlRepository",
        "aenqueue_ingest_job",
        "aenqueue_many",
        "enqueue_ingest_job",
        "enqueue_many",
    ),
    "repositories.durable.events": ("aemit_event", "emit_event"),
    "settings.declared_limits": ("Adaptive", "Rate"),
    "workflow.document.load": ("Document", "load_document"),
}
_HOME_OF: Final = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        value = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    elif name == "db":
        return import_module(f"{__name__}.db")
    elif name == "__version__":
        value = _version()
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _version() -> str:
    """The installed distribution's version; a checkout on the path without an installation has none."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("queue-workflows")
    except PackageNotFoundError:
        return "0+not.installed"
