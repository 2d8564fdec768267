"""What another document changes in a run that is over, and whether its results can stay beside that."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from queue_workflows.errors import RunRefused
from queue_workflows.states import RunStatus
from queue_workflows.workflow.document.load import Document, SealNode
from queue_workflows.workflow.document.nodes import BaseNode
from queue_workflows.workflow.providing import complete_document

_INSTEAD: Final = "start another run"


class DocumentChange(NamedTuple):
    """Another document; its nodes that are new or other than they were, and those that it has no more."""

    document: Document | None = None
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


NO_CHANGE: Final = DocumentChange()


def change_of(
    run_id: uuid.UUID, status: RunStatus, before: Document, given: Document | Mapping[str, Any] | Path | None
) -> DocumentChange:
    """How a document differs from that of a run, or `RunRefused` where it cannot take its place."""
    assert given is not None  # noqa: S101 - the caller has one
    now = given if isinstance(given, Document) and given.pipeline is None else complete_document(given)

    def refuse(said: str, advice: str = _INSTEAD) -> RunRefused:
        return RunRefused(run_id, f"run {run_id}: {said}", status=status, advice=advice)

    if now.name != before.name:
        raise refuse(f"it is one of {before.name!r}, and this is the document of {now.name!r}")
    if any(isinstance(node, SealNode) for document in (before, now) for node in document.nodes):
        raise refuse("it is a run of hooks, which keeps its document")
    for node_id, node in now.by_id.items():
        was = before.by_id.get(node_id)
        if was is not None and _kind(was) != _kind(node):
            raise refuse(
                f"node {node_id!r} was {_kind(was)} and is {_kind(node)} now", "give the node another id"
            )
    return DocumentChange(
        now,
        tuple(
            node_id
            for node_id, node in now.by_id.items()
            if node_id not in before.by_id or _said(node) != _said(before.by_id[node_id])
        ),
        tuple(node_id for node_id in before.by_id if node_id not in now.by_id),
    )


def _said(node: BaseNode) -> dict[str, Any]:
    return node.model_dump(mode="json", by_alias=True)


def _kind(node: BaseNode) -> str:
    kind: str = node.type  # type: ignore[attr-defined]
    return f"a {kind} for each element" if getattr(node, "for_each", None) is not None else f"a {kind}"
