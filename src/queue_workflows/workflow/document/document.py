"""A workflow's document: its nodes, what goes in and what comes out, and the snapshot that a run keeps."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import cached_property
from typing import Annotated, Any, TypeVar

from pydantic import Field

from queue_workflows.workflow.document.edges import parents_of
from queue_workflows.workflow.document.nodes import (
    INT_MAX,
    BaseNode,
    Label,
    Name,
    Node,
    OnFailure,
    Part,
    Priority,
    Values,
    WorkflowNode,
)
from queue_workflows.workflow.document.schemas import filled

T = TypeVar("T")


class Document(Part):
    """A workflow: its nodes and what goes in and comes out. Frozen; two that say the same are equal."""

    name: Name = Field(description="What the workflow is called.")
    description: str | None = Field(None, description="What it is for.")
    inputs: Values | None = Field(
        None, description="JSON Schema properties of what a run is started with; anything if absent."
    )
    nodes: tuple[Node, ...] = Field((), description="The steps, in any order.")
    outputs: Values = Field({}, description="What a completed run yields; references may name any node.")
    on_failure: OnFailure = Field(OnFailure.FAIL_FAST, description="What a failed node does to the run.")
    pipeline: Name | None = Field(None, description="The pipeline that owns the list of nodes.")
    labels: dict[str, Label] = Field({}, description="Labels of every run of it.")
    priority: Priority | None = Field(None, description="The priority of its runs, 0 to 9; the default is 5.")
    max_open_runs: Annotated[int, Field(strict=True, ge=1, le=INT_MAX)] | None = Field(
        None, description="How many runs of the tree that begins with a run of it may be open at once."
    )

    @cached_property
    def by_id(self) -> Mapping[str, Node]:
        """The nodes by their ids."""
        return {node.id: node for node in self.nodes}

    @cached_property
    def parents(self) -> Mapping[str, tuple[str, ...]]:
        """What each node waits for: `depends_on`, then what its references name."""
        return {node.id: parents_of(node) for node in self.nodes}

    @cached_property
    def tree(self) -> Document | None:
        """The document of the runs of the tree that a run of this one sets up; None if it sets up none."""
        trees = (node.tree for node in self.nodes if isinstance(node, WorkflowNode) and node.tree is not None)
        found = next(trees, None)
        return None if found is None else Document.model_validate(found)

    def on_failure_of(self, node: BaseNode) -> OnFailure:
        """What a node's failure does: as it says itself, else as the document says."""
        return node.on_failure or self.on_failure

    def checked_inputs(self, inputs: Mapping[str, Any] | None) -> dict[str, Any]:
        """What a run is started with, defaults filled in; `PayloadError` names every input that is wrong."""
        return filled(self.inputs, {} if inputs is None else inputs, what="inputs")

    def snapshot(self) -> dict[str, Any]:
        """What a run stores: JSON that loads to an equal document. A field at its default is left out, so
        the defaults must never change their meaning."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True)

    @cached_property
    def hash(self) -> str:
        """A hash, equal for documents that say the same, also after a snapshot has been in the database."""
        return canonical_hash(self.snapshot())

    def derived(self, make: Callable[[Document], T]) -> T:
        """What `make` computes from the document, computed once and kept with it."""
        if make not in self._derived:
            self._derived[make] = make(self)
        found: T = self._derived[make]
        return found

    @cached_property
    def _derived(self) -> dict[Callable[[Document], Any], Any]:
        return {}


def canonical_hash(snapshot: Any) -> str:
    """The hash of JSON whatever the order of its keys, and whether numbers are written as 100 or as 1e2."""
    text = json.dumps(_canonical(snapshot), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _canonical(value: Any) -> Any:
    """Floats without a fraction as integers, which is how they come back from the database."""
    if isinstance(value, float):
        exact = Decimal(repr(value))
        return int(exact) if exact == exact.to_integral_value() else value
    if isinstance(value, dict):
        return {key: _canonical(child) for key, child in value.items()}
    return [_canonical(child) for child in value] if isinstance(value, list) else value
