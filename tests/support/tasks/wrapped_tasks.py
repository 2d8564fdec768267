"""The wiring of a host app that puts a context around its jobs, which needs the run of a node."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import support.tasks.worker_tasks  # noqa: F401 - the same tasks

from queue_workflows import set_invoke_context


@contextmanager
def named_after_its_run(job: Any, run: Any) -> Iterator[Any]:
    """Writes the workflow's name into each result."""
    yield lambda delta: {**delta, "workflow": run.workflow_name}


set_invoke_context(named_after_its_run)
