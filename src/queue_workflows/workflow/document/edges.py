"""Which node waits for which: the nodes that a node names, in `depends_on` or by a reference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from queue_workflows.workflow.document.nodes import BaseNode, TaskNode, WaitNode, WorkflowNode
from queue_workflows.workflow.references.references import ROOTS, references_in


def expressions_of(node: BaseNode) -> Iterator[tuple[str, Any]]:
    """The fields of a node in which references may stand, with what they hold."""
    yield "skip_if", node.skip_if
    if isinstance(node, TaskNode | WorkflowNode):
        yield "for_each", node.for_each
        yield "inputs", node.inputs
        if isinstance(node, TaskNode):
            yield "host_lock", node.host_lock
            yield "exclusive", node.exclusive
    elif isinstance(node, WaitNode):
        yield "until", node.until


def parents_of(node: BaseNode) -> tuple[str, ...]:
    """What a node waits for: `depends_on`, then the nodes that its references name."""
    parents = dict.fromkeys(node.depends_on)
    for _field, value in expressions_of(node):
        for found in references_in(value):
            if found.path is not None and found.path.root not in ROOTS:
                parents[found.path.root] = None
    return tuple(parents)
