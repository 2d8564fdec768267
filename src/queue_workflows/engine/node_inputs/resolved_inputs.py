"""A node's inputs, resolved when it executes: its references see what upstream has stored by then.

What they can see is read before the function begins, because a database that is away is the worker's affair.
Resolving them is the job's: a reference that leads nowhere is its failure, for good, and the host app's own
references are asked for inside the context that the host app puts around its jobs.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from json import dumps
from typing import Any, Final, TypeAlias

import psycopg

from queue_workflows.engine.execution.callable import Work
from queue_workflows.engine.execution.context import JobContext
from queue_workflows.engine.node_inputs.references import load_scope
from queue_workflows.errors import RefError
from queue_workflows.repositories.sql.claimed_job import ClaimedNodeJob
from queue_workflows.workflow.references.paths import Path
from queue_workflows.workflow.references.references import HostRefs, paths_in, paths_to_read, resolve_inputs

# Puts a question to the database, on a connection that is the asking thread's for so long.
Ask: TypeAlias = Callable[[Callable[[psycopg.Connection[Any]], Any]], Any]
_ALL_INPUTS: Final = Path("inputs")
_RUNS_KEPT: Final = 64
_LONGEST_KEPT: Final = 65_536


class KeptInputs:
    """What the last few runs were started with, which never changes; for jobs that change nothing in it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._scopes: dict[uuid.UUID, Mapping[str, Any]] = {}

    def scope(
        self, run_id: uuid.UUID, paths: list[Path], read: Callable[[], Mapping[str, Any]]
    ) -> Mapping[str, Any]:
        """The scope for these paths, read if it is not kept."""
        if paths != [_ALL_INPUTS]:
            return read()
        kept = self._scopes.get(run_id)
        if kept is None:
            kept = read()
            if len(dumps(kept)) <= _LONGEST_KEPT:
                with self._lock:
                    self._scopes[run_id] = kept
                    if len(self._scopes) > _RUNS_KEPT:
                        del self._scopes[next(iter(self._scopes))]
        return kept


def on_resolved_inputs(
    work: Work, job: ClaimedNodeJob, ask: Ask, host: HostRefs | None, kept: KeptInputs | None = None
) -> Work:
    """The work, which then gets the job with its references resolved; reads only if they need rows."""
    if not job.inputs:
        return work
    index = None if job.map_index < 0 else job.map_index
    paths = _paths(job)

    def read() -> Mapping[str, Any]:
        def load(connection: psycopg.Connection[Any]) -> Mapping[str, Any]:
            needed = paths_to_read(paths, host)
            return load_scope(connection, job.run_id, needed, item=job.item, index=index)

        scope: Mapping[str, Any] = ask(load)
        return scope

    scope = read() if kept is None or index is not None else kept.scope(job.run_id, paths, read)
    where = f"{job.node_id}{'' if index is None else f'[{index}]'}.inputs"

    def call(claimed: Any, ctx: JobContext) -> Any:
        inputs = resolve_inputs(job.inputs, scope, where=where, host=host)
        return work.call(replace(claimed, inputs=inputs), ctx)

    return replace(work, call=call)


def _paths(job: ClaimedNodeJob) -> list[Path]:
    """Where the references lead; what is no sound one is told by resolving it."""
    try:
        return paths_in(job.inputs)
    except RefError:
        return []
