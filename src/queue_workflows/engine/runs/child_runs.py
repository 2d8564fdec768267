"""Child runs: a node of type `workflow` is parked, and its run says how it ended.

A child that cannot be started fails its node's job, as a task that raises does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import psycopg
from pydantic import ValidationError

from queue_workflows.engine.node_inputs.references import load_scope
from queue_workflows.engine.runs.open_nodes import Opening
from queue_workflows.engine.runs.repositories import DispatchTools
from queue_workflows.engine.runs.retry import go_on_with
from queue_workflows.errors import PayloadError, QwfError
from queue_workflows.repositories.runs.labels import labels_below, labels_of_tree
from queue_workflows.repositories.runs.operator_verbs import ChildRun, SteeringRepository
from queue_workflows.repositories.runs.outbox import LockedRun
from queue_workflows.workflow.document.load import Document, WorkflowNode
from queue_workflows.workflow.references.references import paths_in, paths_to_read, resolve_inputs

DEEPEST: Final = 16


class ChildRuns:
    """Starts the children of one locked run."""

    def __init__(self, tools: DispatchTools, run: LockedRun) -> None:
        self._tools = tools
        self._run = run

    def start(self, opening: Opening, jobs: Mapping[int, int]) -> None:
        """Start a run for each parked job, given by the index of its element."""
        node = opening.node
        assert isinstance(node, WorkflowNode)  # noqa: S101 - it is asked for those only
        if node.tree is not None:
            for job_id in jobs.values():
                self._begin_tree(node, node.tree, job_id)
            return
        waiting = {index: job_id for index, job_id in jobs.items() if index not in opening.skipped}
        try:
            document = self._document(node)
            needed = paths_to_read(paths_in(node.inputs), self._tools.host)
            paths = [path for path in needed if path.root not in ("item", "index")]
            scope = load_scope(self._tools.connection, self._run.id, paths) if paths else {}
        except psycopg.Error:
            raise
        except Exception as wrong:
            for job_id in waiting.values():
                self._fail(job_id, wrong)
            return
        before = SteeringRepository(self._tools.connection).children(self._run.id, waiting.values())
        fresh: dict[int, str] = {}
        for index, job_id in waiting.items():
            element = {} if opening.elements is None else {"item": opening.elements[index], "index": index}
            try:
                inputs = self._inputs(node, document, {**scope, **element})
                if not self._goes_on(before.get(job_id), document, inputs):
                    fresh[job_id] = self._tools.limits.json_object("inputs", inputs)
            except QwfError as wrong:
                self._fail(job_id, wrong)
        self._insert(node, document, fresh)

    def _begin_tree(self, node: WorkflowNode, tree: Mapping[str, Any], job_id: int) -> None:
        """Begin the first run of the tree that this run has set up, or go on with the one of a time before.

        From here on this run waits for those below it, and is not open to the cap of its tree.
        """
        before = SteeringRepository(self._tools.connection).children(self._run.id, [job_id]).get(job_id)
        self._tools.tree.send_awaits(self._run.id)
        if before is not None and go_on_with(before.id, conn=self._tools.connection):
            return
        root = self._tools.runs.fetch(self._run.id)
        try:
            if root is None:
                raise QwfError(f"run {self._run.id} is gone")
            document = Document.model_validate(tree)
            document.checked_inputs(root.inputs)
            self._tools.runs.insert_first(
                document.name,
                spec=document.snapshot(),
                spec_hash=document.hash,
                priority=self._run.priority if node.priority is None else node.priority,
                labels={**document.labels, **labels_below(root.labels), **labels_of_tree(root.id, 0)},
                set_up_by=self._run.id,
                parent_node_job_id=job_id,
            )
        except (QwfError, ValidationError) as wrong:
            self._fail(job_id, wrong)

    def _inputs(self, node: WorkflowNode, document: Document, scope: Mapping[str, Any]) -> dict[str, Any]:
        inputs = resolve_inputs(node.inputs, scope, where=f"{node.id}.inputs", host=self._tools.host)
        return document.checked_inputs(inputs)

    def _goes_on(self, before: ChildRun | None, document: Document, inputs: dict[str, Any]) -> bool:
        """Whether it is a retry, and the run of the time before goes on: what that has done is done."""
        if before is None or (before.workflow, before.inputs) != (document.name, inputs):
            return False
        return go_on_with(before.id, conn=self._tools.connection)

    def _insert(self, node: WorkflowNode, document: Document, inputs: Mapping[int, str]) -> None:
        if not inputs:
            return
        try:
            self._tools.runs.insert_children(
                document.name,
                spec=document.snapshot(),
                spec_hash=document.hash,
                priority=self._run.priority if node.priority is None else node.priority,
                labels=dict(document.labels),
                traceparent=self._run.traceparent,
                parent_run_id=self._run.id,
                depth=self._run.depth + 1,
                inputs=inputs,
                sets_up=document.tree is not None,
            )
        except PayloadError as wrong:
            # Their document is more than a row takes; none is stored then.
            for job_id in inputs:
                self._fail(job_id, wrong)

    def _document(self, node: WorkflowNode) -> Document:
        if self._run.depth >= DEEPEST:
            raise QwfError(
                f"workflows are nested {DEEPEST} deep, and this would be one more",
                advice="see whether one of them starts itself",
            )
        return self._tools.find_document(node.workflow)

    def _fail(self, job_id: int, wrong: Exception) -> None:
        said = str(wrong) if isinstance(wrong, QwfError) else f"{type(wrong).__name__}: {wrong}"
        self._tools.jobs.mark_failed(job_id, said[:2000] or type(wrong).__name__)
