"""Testing with a real Postgres: what was enqueued, running it here and now, and the pytest plugin's fixtures.

`enqueued` asserts, `local_worker` claims, runs and ends jobs in this process, `task_call` runs one function,
`inline_mode` what is enqueued at once, `workflow_run` takes a document to its end; `tester` has all of it for
one database, which the fixture `qwf_jobs` of `plugin` gives. `servers` and `databases` are where that comes
from. Begin with `tester`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from queue_workflows.testing.databases import configured_database
    from queue_workflows.testing.enqueued import all_enqueued, assert_enqueued, refute_enqueued
    from queue_workflows.testing.inline_mode import inline
    from queue_workflows.testing.local_worker import drain
    from queue_workflows.testing.outcome import JobOutcome, RunOutcome
    from queue_workflows.testing.task_call import perform
    from queue_workflows.testing.tester import AsyncJobTester, JobTester
    from queue_workflows.testing.workflow_run import run_workflow

__all__ = [
    "AsyncJobTester",
    "JobOutcome",
    "JobTester",
    "RunOutcome",
    "all_enqueued",
    "assert_enqueued",
    "configured_database",
    "drain",
    "inline",
    "perform",
    "refute_enqueued",
    "run_workflow",
]

_HOMES: Final = {
    "databases": ("configured_database",),
    "enqueued": ("all_enqueued", "assert_enqueued", "refute_enqueued"),
    "inline_mode": ("inline",),
    "local_worker": ("drain",),
    "outcome": ("JobOutcome", "RunOutcome"),
    "task_call": ("perform",),
    "tester": ("AsyncJobTester", "JobTester"),
    "workflow_run": ("run_workflow",),
}
_HOME_OF: Final = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """On first use: the plugin is loaded in every run of pytest, and must cost nothing there."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
