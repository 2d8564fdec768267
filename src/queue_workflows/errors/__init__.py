"""Every error of the package: one tree, each leaf with its exit code and the data a caller may branch on.

The exit codes are a contract with supervisors and shells; the table in docs/exit-codes.md lists them.
"""

from __future__ import annotations

from queue_workflows.errors.base import (
    ConfigurationError,
    ExitCode,
    IllegalTransition,
    PayloadError,
    QwfError,
)
from queue_workflows.errors.database import (
    AccessRefused,
    DatabaseError,
    DatabaseUnreachable,
    EmbeddedServerError,
    EmbeddedSetupError,
    MigrationBlocked,
    MigrationRefused,
    ReadOnlyServer,
    RevisionOutOfReach,
    SchemaAhead,
    SchemaBehind,
    SchemaDrift,
    SchemaError,
    UnknownRevision,
    UnsupportedServer,
)
from queue_workflows.errors.jobs import (
    CostAboveBurst,
    ImportStopped,
    JobCancelled,
    JobFailed,
    JobNotCompleted,
    LeaseLost,
    LineRefused,
    RunCancelled,
    RunFailed,
    RunNotCompleted,
    UnknownJob,
    UnknownRate,
    UnknownSchedule,
    WaitTimeout,
    WindowOrder,
)
from queue_workflows.errors.processes import (
    NoDevices,
    Orphaned,
    ProcessLost,
    SpawnRefused,
)
from queue_workflows.errors.workflows import (
    DocumentError,
    HookError,
    HookFailed,
    InvokeContextError,
    ModelLoadFailed,
    NodeModuleError,
    PluginConfigError,
    Problem,
    RefError,
    RunRefused,
    UnknownNode,
    UnknownRun,
    UnknownWorkflow,
)

__all__ = [
    "AccessRefused",
    "ConfigurationError",
    "CostAboveBurst",
    "DatabaseError",
    "DatabaseUnreachable",
    "DocumentError",
    "EmbeddedServerError",
    "EmbeddedSetupError",
    "ExitCode",
    "HookError",
    "HookFailed",
    "IllegalTransition",
    "ImportStopped",
    "InvokeContextError",
    "JobCancelled",
    "JobFailed",
    "JobNotCompleted",
    "LeaseLost",
    "LineRefused",
    "MigrationBlocked",
    "MigrationRefused",
    "ModelLoadFailed",
    "NoDevices",
    "NodeModuleError",
    "Orphaned",
    "PayloadError",
    "PluginConfigError",
    "Problem",
    "ProcessLost",
    "QwfError",
    "ReadOnlyServer",
    "RefError",
    "RevisionOutOfReach",
    "RunCancelled",
    "RunFailed",
    "RunNotCompleted",
    "RunRefused",
    "SchemaAhead",
    "SchemaBehind",
    "SchemaDrift",
    "SchemaError",
    "SpawnRefused",
    "UnknownJob",
    "UnknownNode",
    "UnknownRate",
    "UnknownRevision",
    "UnknownRun",
    "UnknownSchedule",
    "UnknownWorkflow",
    "UnsupportedServer",
    "WaitTimeout",
    "WindowOrder",
]

# Jobs store the type of what failed them, and users look for it where they import it from.
for _name in __all__:
    globals()[_name].__module__ = __name__
del _name
