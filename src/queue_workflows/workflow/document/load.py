"""Reading a workflow's document: from a dict, a text or a file, or from the snapshot that a run keeps."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from queue_workflows.errors import DocumentError, Problem
from queue_workflows.workflow.document.document import Document, canonical_hash
from queue_workflows.workflow.document.flaws import MISSING, Flaw, flaws_in, problems, without
from queue_workflows.workflow.document.linking import flaws_of, flaws_of_shape
from queue_workflows.workflow.document.nodes import (
    BaseNode,
    DescendantsNode,
    InputNode,
    Node,
    OnFailure,
    Retry,
    SealNode,
    TaskNode,
    WaitNode,
    When,
    WorkflowNode,
)
from queue_workflows.workflow.document.reading import (
    MAX_BYTES,
    Unreadable,
    checked_data,
    lines_of,
    read_text,
    steps_of,
)

__all__ = [
    "BaseNode",
    "CompiledDocuments",
    "DescendantsNode",
    "Document",
    "InputNode",
    "Node",
    "OnFailure",
    "Retry",
    "SealNode",
    "TaskNode",
    "WaitNode",
    "When",
    "WorkflowNode",
    "compiled",
    "load_document",
]

KEPT_NODES: Final = 250_000


class Source(NamedTuple):
    """A document as it came: its data, and what errors need to name places in it."""

    data: Any
    file: str | None = None
    text: str | None = None


def load_document(source: Mapping[str, Any] | str | Path, *, name: str | None = None) -> Document:
    """A document from a dict, a YAML or JSON text, or a file (a `Path`; a `str` is always the text itself).

    `name` is what it is known by: the default of its own `name`, and a different one is refused. Raises
    `DocumentError` with everything that is wrong.
    """
    fallback = source.stem if name is None and isinstance(source, Path) else name
    return document_of(read_source(source, name=fallback), name=name)


def read_source(source: Mapping[str, Any] | str | Path, *, name: str | None = None) -> Source:
    """The data of a source, checked to be a mapping of plain data, of a bearable size.

    Keys that begin with `x-` are the author's own, for anchors, and left out; `name` is added if missing.
    """
    file = str(source) if isinstance(source, Path) else None
    try:
        if isinstance(source, str | Path):
            text = _text_of(source) if isinstance(source, Path) else source
            read = Source(read_text(text), file, text)
        else:
            read = Source(dict(source) if isinstance(source, Mapping) else source)
        read = read._replace(data=checked_data(read.data))
    except Unreadable as unreadable:
        if unreadable.place is not None:
            flaw = Flaw(tuple(steps_of(unreadable.place)), unreadable.said)
            raise refusal(read, [flaw]) from None
        raise DocumentError([Problem(unreadable.said, line=unreadable.line, file=file)]) from None
    data = {key: value for key, value in _mapping(read).items() if not key.startswith("x-")}
    if name is not None:
        data.setdefault("name", name)
    return read._replace(data=data)


def document_of(source: Source, *, name: str | None = None) -> Document:
    """The document of a source; `DocumentError` with all that is wrong, another name than its own too."""
    try:
        document = Document.model_validate(source.data)
    except ValidationError as refused:
        flaws = flaws_in(refused, Document)
        raise refusal(source, [*flaws, *_flaws_beside(flaws, source.data)]) from None
    flaws = list(flaws_of(document))
    if name is not None and document.name != name:
        said = f"is {document.name!r}, and the document is known by {name!r}; leave it out or correct it"
        flaws.insert(0, Flaw(("name",), said))
    if flaws:
        raise refusal(source, flaws)
    return document


def _flaws_beside(flaws: list[Flaw], data: dict[str, Any]) -> list[Flaw]:
    """What else is wrong between the nodes, where it can be told without the fields that have flaws."""
    if any(flaw.place[0] == "nodes" and len(flaw.place) < 3 for flaw in flaws):
        return []
    try:
        document = Document.model_validate(without(flaws, data))
    except ValidationError:
        return []
    fields = {flaw.place[:3] for flaw in flaws}
    nodes = {flaw.place[:2] for flaw in flaws}
    return [
        flaw
        for flaw in flaws_of(document)
        # What is missing from a node may be there under a misspelt name.
        if flaw.place[:3] not in fields and (flaw.said != MISSING or flaw.place[:2] not in nodes)
    ]


def refusal(source: Source, flaws: list[Flaw]) -> DocumentError:
    """The error that names the flaws of a source by file, line, node and field."""
    lines = lines_of(source.text) if source.text is not None else {}
    return DocumentError(problems(flaws, source.data, file=source.file, lines=lines))


class CompiledDocuments:
    """The last documents that were parsed from snapshots, by hash; together they have not too many nodes."""

    def __init__(self, max_nodes: int = KEPT_NODES) -> None:
        self._max_nodes = max_nodes
        self._kept: OrderedDict[str, Document] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, spec_hash: str) -> Document | None:
        """The document of a hash if it is kept, so that its snapshot need not be fetched."""
        with self._lock:
            found = self._kept.get(spec_hash)
            if found is not None:
                self._kept.move_to_end(spec_hash)
            return found

    def compiled(self, spec: Mapping[str, Any], spec_hash: str) -> Document:
        """The document of a snapshot; kept if the hash is really its own, since a host app may write rows.

        Beyond its shape it is not checked again: a stricter version must not stop a run in flight.
        """
        found = self.find(spec_hash)
        if found is not None:
            return found
        try:
            document = Document.model_validate(spec)
        except ValidationError as refused:
            raise refusal(Source(spec, "the run's snapshot"), flaws_in(refused, Document)) from None
        if flaws := list(flaws_of_shape(document)):
            raise refusal(Source(spec, "the run's snapshot"), flaws)
        if canonical_hash(dict(spec)) == spec_hash:
            self._keep(spec_hash, document)
        return document

    def _keep(self, spec_hash: str, document: Document) -> None:
        with self._lock:
            self._kept[spec_hash] = document
            nodes = sum(len(kept.nodes) + 1 for kept in self._kept.values())
            while nodes > self._max_nodes and len(self._kept) > 1:
                nodes -= len(self._kept.popitem(last=False)[1].nodes) + 1


_COMPILED: Final = CompiledDocuments()
compiled = _COMPILED.compiled
find_compiled = _COMPILED.find


def _text_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise Unreadable(f"is larger than {MAX_BYTES:,} bytes")
        return content.decode("utf-8-sig")
    except OSError as wrong:
        raise Unreadable(f"cannot be read: {wrong.strerror or wrong}") from None
    except UnicodeDecodeError as wrong:
        found = f"byte {wrong.start + 1} is {wrong.object[wrong.start]:#04x}"
        raise Unreadable(f"is no text in UTF-8: {found}") from None


def _mapping(read: Source) -> dict[str, Any]:
    if isinstance(read.data, dict):
        return read.data
    if read.data is None:
        raise DocumentError([Problem("is empty", file=read.file)])
    advice = None
    if read.file is None and isinstance(read.data, str):
        advice = "a str is the document's text: give a file as pathlib.Path(…)"
    what = "a list" if isinstance(read.data, list) else f"the single value {str(read.data)[:60]!r}"
    raise DocumentError([Problem(f"must be a mapping, not {what}", file=read.file)], advice=advice)
