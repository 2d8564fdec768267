"""What becomes of a node when its time has come: skipped, broken, or opened with the jobs that execute it.

Its conditions are resolved here, its inputs when it executes. An element of a list is a job, and a long list
is opened in parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from queue_workflows.config import HOOKS_QUEUE
from queue_workflows.engine.runs.named_locks import Names, names_of
from queue_workflows.errors import QwfError, RefError
from queue_workflows.repositories.jobs.hooks import ANY_HOST, SHARED_DIRECTORY
from queue_workflows.repositories.jobs.nodes import NewNodeJob
from queue_workflows.repositories.runs.outbox import LockedRun
from queue_workflows.states import JobStatus
from queue_workflows.workflow.document.linking import moment
from queue_workflows.workflow.document.load import (
    BaseNode,
    DescendantsNode,
    InputNode,
    TaskNode,
    WaitNode,
    WorkflowNode,
)
from queue_workflows.workflow.planning.progress import NodeError
from queue_workflows.workflow.references.paths import Path
from queue_workflows.workflow.references.references import (
    HostRefs,
    paths_in,
    paths_to_read,
    resolve,
    resolve_condition,
    resolve_elements,
)

# What no worker claims still has a queue, as every job has.
PARKED_QUEUE: Final = "cpu"
ELEMENTS_AT_ONCE: Final = 5_000
_OF_AN_ELEMENT: Final = frozenset({"item", "index"})
# Known without a look at the rows.
_AT_HAND: Final = _OF_AN_ELEMENT | {"it"}


@dataclass(frozen=True, slots=True)
class Opening:
    """A node that gets jobs: one, or those of `elements` from `start` on, of which `skipped` need no work.

    `due` is when a wait is over, `names` is what the jobs hold. It `is_again` where it works with a session
    that was lost.
    """

    node: BaseNode
    elements: Sequence[Any] | None = None
    start: int = 0
    skipped: frozenset[int] = frozenset()
    due: datetime | None = None
    names: Mapping[int | None, Names] = field(default_factory=dict)
    is_again: bool = False

    @property
    def jobs(self) -> int:
        """How many jobs the node has, in all parts."""
        return 1 if self.elements is None else len(self.elements)

    @property
    def part(self) -> Sequence[int | None]:
        """The indexes of the elements that get their jobs now; of a plain node, the one job it has."""
        if self.elements is None:
            return (None,)
        return range(self.start, min(self.start + ELEMENTS_AT_ONCE, len(self.elements)))


@dataclass(frozen=True, slots=True)
class NotOpened:
    """A node that gets no jobs: skipped, or broken by this error."""

    node: BaseNode
    error: NodeError | None = None


def needed_to_open(node: BaseNode, host: HostRefs | None) -> list[Path]:
    """The paths that deciding about a node needs, without those that are known without a look."""
    return [
        path
        for value in (
            node.skip_if,
            *(getattr(node, name, None) for name in ("for_each", "until", "host_lock", "exclusive")),
        )
        if value is not None
        for path in paths_to_read(paths_in(value), host)
        if path.root not in _AT_HAND
    ]


def decided(
    node: BaseNode, scope: Mapping[str, Any], host: HostRefs | None, *, start: int = 0
) -> Opening | NotOpened:
    """Decide about a node that is ready; from `start` on, of a list that was opened in part before."""
    per_element = _is_per_element(node)
    try:
        if start == 0 and not per_element and _holds(node, scope, host):
            return NotOpened(node)
        elements = _elements(node, scope, host)
        opening = Opening(node, elements, start, due=_due(node, scope, host))
        # All of them the first time, so that an error is found before any of them runs.
        looked_at = opening.part if start or elements is None else range(len(elements))
        opening = replace(opening, names=names_of(node, elements, looked_at, scope, host))
        if not per_element or elements is None:
            return opening
        skipped = {at for at in looked_at if at is not None and _skips(node, scope, elements[at], at, host)}
        return replace(opening, skipped=frozenset(skipped.intersection(opening.part)))
    except QwfError as wrong:
        return NotOpened(node, broken_by(wrong))


def broken_by(wrong: QwfError) -> NodeError:
    """What a node says that could not be opened."""
    return {"kind": "ref" if isinstance(wrong, RefError) else "node", "message": str(wrong)}


def _is_per_element(node: BaseNode) -> bool:
    mapped = getattr(node, "for_each", None) is not None
    return mapped and any(path.root in _OF_AN_ELEMENT for path in paths_in(node.skip_if))


def _skips(node: BaseNode, scope: Mapping[str, Any], item: Any, index: int, host: HostRefs | None) -> bool:
    return _holds(node, {**scope, "item": item, "index": index}, host)


def _holds(node: BaseNode, scope: Mapping[str, Any], host: HostRefs | None) -> bool:
    if node.skip_if is None:
        return False
    return resolve_condition(node.skip_if, scope, where=f"{node.id}.skip_if", host=host)


def _elements(node: BaseNode, scope: Mapping[str, Any], host: HostRefs | None) -> list[Any] | None:
    for_each = getattr(node, "for_each", None)
    if for_each is None:
        return None
    return resolve_elements(for_each, scope, where=f"{node.id}.for_each", host=host)


def _due(node: BaseNode, scope: Mapping[str, Any], host: HostRefs | None) -> datetime | None:
    if not isinstance(node, WaitNode) or node.until is None:
        return None
    where = f"{node.id}.until"
    until = resolve(node.until, scope, where=where, host=host)
    due = moment(until)
    if due is None:
        advice = "give it as in 2030-01-31T09:00:00Z"
        raise RefError("it is no moment with a time zone", where=where, advice=advice)
    return due


def new_jobs(run: LockedRun, opening: Opening, *, max_attempts: int) -> list[NewNodeJob]:
    """The rows of a node, or of a part of its list."""
    return [_new_job(run, opening, index, max_attempts) for index in opening.part]


def _new_job(run: LockedRun, opening: Opening, index: int | None, max_attempts: int) -> NewNodeJob:
    node = opening.node
    common: dict[str, Any] = {
        "run_id": run.id,
        "node_id": node.id,
        "kind": node.type,  # type: ignore[attr-defined]
        "priority": run.priority,
        "traceparent": run.traceparent,
    }
    if index is not None and opening.elements is not None:
        common |= {"map_index": index, "item": opening.elements[index]}
    if index in opening.skipped:
        common["status"] = JobStatus.SKIPPED
    if isinstance(node, TaskNode):
        return _task(run, node, common, max_attempts, opening.names.get(index, Names()))
    parked = {"queue": PARKED_QUEUE, "status": JobStatus.AWAITING_INPUT, **common}
    if isinstance(node, DescendantsNode):
        return NewNodeJob(**parked)
    if isinstance(node, WorkflowNode):
        priority = run.priority if node.priority is None else node.priority
        return NewNodeJob(**parked | {"priority": priority, "inputs": node.inputs})
    if isinstance(node, InputNode):
        return NewNodeJob(**parked, expires_s=node.expires_s)
    seconds = node.seconds if isinstance(node, WaitNode) else None
    if opening.due is not None:
        return NewNodeJob(**parked, expires_at=opening.due)
    return NewNodeJob(**parked, expires_s=seconds or 0.0)


def _host(run: LockedRun, node: TaskNode) -> str | None:
    """Which host may claim a node's jobs; None where the first claim says."""
    if node.queue != HOOKS_QUEUE:
        return None
    return ANY_HOST if node.inputs.get(SHARED_DIRECTORY) is True else run.pinned_host


def _task(
    run: LockedRun, node: TaskNode, common: dict[str, Any], max_attempts: int, names: Names
) -> NewNodeJob:
    retry = node.retry
    attempts = None if retry is None else retry.max_attempts
    if attempts is None and not node.at_most_once:
        attempts = max_attempts
    return NewNodeJob(
        **common | ({} if node.priority is None else {"priority": node.priority}),
        queue=node.queue,
        node_module=node.module,
        plugin=node.plugin,
        inputs=node.inputs,
        host_priority=node.host_priority,
        required_model=node.model,
        step=node.step,
        background=node.background,
        pinned_host=_host(run, node),
        limit_key=names.limit_key or node.limit_key,
        max_attempts=attempts,
        backoff_s=None if retry is None else retry.backoff_s,
        timeout_s=node.timeout_s,
        stall_timeout_s=node.stall_timeout_s,
        host_lock=names.host_lock,
        survives_outage=node.survives_outage,
        max_crashes=node.max_crashes,
        at_most_once=node.at_most_once,
    )
