"""What holds between the nodes of a document: which waits for which, and what references may name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, Final

from pydantic import ValidationError

from queue_workflows.payload import is_storable
from queue_workflows.workflow.document.document import Document
from queue_workflows.workflow.document.edges import expressions_of
from queue_workflows.workflow.document.flaws import MISSING, Flaw, flaws_in
from queue_workflows.workflow.document.nodes import BaseNode, InputNode, TaskNode, WaitNode, WorkflowNode
from queue_workflows.workflow.document.schemas import flaws_of_schema
from queue_workflows.workflow.references.paths import Path
from queue_workflows.workflow.references.references import (
    CONDITIONS,
    JOINTS,
    OPERATORS,
    ROOTS,
    near,
    references_in,
)

RUN_FIELDS: Final = ("id", "workflow", "labels", "parcel_id", "created_at")
PER_ELEMENT: Final = frozenset({"item", "index"})
# Looking for what was probably meant compares with every name, so only the first few unknown ones get a hint.
_HINTS: Final = 20


def flaws_of(document: Document) -> Iterator[Flaw]:
    """Everything that is wrong between the parts of a document, in time linear in its size."""
    if not document.nodes and document.pipeline is None:
        yield Flaw(("nodes",), "must have at least one node")
    if document.inputs is not None:
        yield from (Flaw(("inputs", *place), said) for place, said in flaws_of_schema(document.inputs))
    names = _Names(document)
    for at, node in enumerate(document.nodes):
        yield from (Flaw(("nodes", at, *flaw.place), flaw.said) for flaw in _flaws_of_node(node, names))
    yield from (Flaw(("outputs", *flaw.place), flaw.said) for flaw in names.wrong(document.outputs))
    yield from _namesakes(document)
    yield from _circle(document)


def flaws_of_shape(document: Document) -> Iterator[Flaw]:
    """What would keep a run from being walked through: the part of `flaws_of` that no version changes."""
    yield from _namesakes(document)
    for at, node in enumerate(document.nodes):
        strangers = (parent for parent in document.parents[node.id] if parent not in document.by_id)
        yield from (Flaw(("nodes", at), f"there is no node {parent!r}") for parent in strangers)
    yield from _circle(document)


class _Names:
    """What references of a document may name."""

    def __init__(self, document: Document) -> None:
        self._inputs = document.inputs
        self._nodes = document.by_id
        self._hints = _HINTS

    def wrong(self, value: Any, *, per_element: bool = False) -> Iterator[Flaw]:
        """What is wrong with the references in a value."""
        for found in references_in(value):
            said = found.wrong if found.path is None else self._wrong_path(found.path, per_element)
            if said is not None:
                yield Flaw(found.place, said)

    def unknown(self, node_id: str) -> str | None:
        """What to say of a node that is not there; None if it is."""
        if node_id in self._nodes:
            return None
        return f"there is no node {node_id!r}{self._hint(node_id, self._nodes)}"

    def _hint(self, word: str, known: Iterable[str]) -> str:
        self._hints -= 1
        return near(word, known) if self._hints >= 0 else ""

    def _wrong_path(self, path: Path, per_element: bool) -> str | None:
        root = path.root
        said = None
        if root not in ROOTS:
            said = self.unknown(root)
        elif root in PER_ELEMENT and not per_element:
            said = f"{root!r} is there only in the inputs and skip_if of a node with for_each"
        elif root == "it":
            said = "'it' is there only in the `where` of a $filter"
        elif root == "host" and not path.steps:
            said = "it must say what, as in host.name"
        elif root in {"run", "inputs"} and path.steps:
            said = self._wrong_field(root, str(path.steps[0]))
        return said and f"`{path}`: {said}"

    def _wrong_field(self, root: str, name: str) -> str | None:
        if root == "run":
            known = ", ".join(RUN_FIELDS)
            return None if name in RUN_FIELDS else f"a run has no {name!r}; it has {known}"
        if self._inputs is None or name in self._inputs:
            return None
        return f"the workflow has no input {name!r}{self._hint(name, self._inputs)}"


def _flaws_of_node(node: BaseNode, names: _Names) -> Iterator[Flaw]:
    for at, parent in enumerate(node.depends_on):
        unknown = names.unknown(parent)
        if unknown:
            yield Flaw(("depends_on", at), unknown)
    mapped = getattr(node, "for_each", None) is not None
    for field, value in expressions_of(node):
        per_element = mapped and field != "for_each"
        yield from (
            Flaw((field, *flaw.place), flaw.said) for flaw in names.wrong(value, per_element=per_element)
        )
    if isinstance(node, TaskNode):
        yield from _flaws_of_task(node)
    elif isinstance(node, WaitNode):
        yield from _flaws_of_wait(node)
    elif isinstance(node, WorkflowNode):
        yield from _flaws_of_tree(node)
    elif isinstance(node, InputNode) and node.answer_schema is not None:
        yield from (Flaw(("schema", *place), said) for place, said in flaws_of_schema(node.answer_schema))
    yield from _flaws_of_values(node)


def _flaws_of_values(node: BaseNode) -> Iterator[Flaw]:
    """Values that cannot become what the field needs, whatever the run's data are."""
    if not _can_be_true(node.skip_if):
        yield Flaw(("skip_if",), "must be a condition, as in {$eq: [{$from: approve.ok}, false]}")
    if not _can_be(getattr(node, "for_each", None), list, ("$from", "$filter")):
        yield Flaw(("for_each",), "must be a list or a reference to one")


def _flaws_of_task(node: TaskNode) -> Iterator[Flaw]:
    if node.module is None and node.plugin is None:
        yield Flaw(("module",), MISSING)
    if node.exclusive is not None and node.limit_key is not None:
        said = "a job takes one key: give `exclusive` or `limit_key`, and the other by ctx.limit in its body"
        yield Flaw(("exclusive",), said)
    if node.at_most_once and node.retry is not None and node.retry.max_attempts not in (None, 1):
        yield Flaw(("retry", "max_attempts"), "must be 1, or absent: the node is `at_most_once`")


def _flaws_of_tree(node: WorkflowNode) -> Iterator[Flaw]:
    """What is wrong with a document within a node, and with the node that has it."""
    if node.tree is None:
        return
    if node.for_each is not None or node.inputs:
        yield Flaw(("tree",), "is for one run with the inputs of this one: leave out `for_each` and `inputs`")
    try:
        document = Document.model_validate(node.tree)
    except ValidationError as refused:
        yield from (Flaw(("tree", *flaw.place), flaw.said) for flaw in flaws_in(refused, Document))
        return
    if document.name != node.workflow:
        yield Flaw(("tree", "name"), f"is {document.name!r:.80}, and the node says {node.workflow!r:.80}")
    if document.tree is not None or document.pipeline is not None:
        yield Flaw(("tree",), "must be a document without a `tree` and a `pipeline`")
        return
    yield from (Flaw(("tree", *flaw.place), flaw.said) for flaw in flaws_of(document))


def _flaws_of_wait(node: WaitNode) -> Iterator[Flaw]:
    if (node.seconds is None) is (node.until is None):
        yield Flaw(("seconds",), "give `seconds` or `until`, and not both")
    elif not _can_be(node.until, str, ("$from",)) or (
        isinstance(node.until, str) and moment(node.until) is None
    ):
        yield Flaw(("until",), "must be a moment with its zone, as in 2030-01-31T09:00:00Z, or a reference")


def _can_be_true(value: Any) -> bool:
    """Whether a value is, or may turn out to be, a condition, with all conditions in it."""
    if not _can_be(value, bool, ("$from", *CONDITIONS)):
        return False
    if not isinstance(value, dict):
        return True
    operator, operand = next(iter(value.items()))
    if operator == "$not":
        return _can_be_true(operand)
    if operator in JOINTS and isinstance(operand, list):
        return all(map(_can_be_true, operand))
    return True


def _can_be(value: Any, kind: type, operators: tuple[str, ...]) -> bool:
    """Whether a value is, or may turn out to be, null or of this kind, which is no mapping."""
    if not isinstance(value, dict):
        return value is None or isinstance(value, kind)
    operator = next((key for key in value if key.startswith("$")), None)
    if operator == "$value":
        return _can_be(value[operator], kind, ())
    # What is malformed is told by itself.
    return operator in operators or (operator is not None and operator not in OPERATORS)


def moment(text: object) -> datetime | None:
    """The moment that a text says, if it says one with its zone."""
    if not isinstance(text, str):
        return None
    try:
        said = datetime.fromisoformat(text)
    except ValueError:
        return None
    return said if said.utcoffset() is not None and is_storable(said) else None


def _namesakes(document: Document) -> Iterator[Flaw]:
    first: dict[str, int] = {}
    for at, node in enumerate(document.nodes):
        if first.setdefault(node.id, at) != at:
            yield Flaw(("nodes", at, "id"), f"is taken by node #{first[node.id] + 1}")


def _circle(document: Document) -> Iterator[Flaw]:
    """One circle of nodes that wait for each other, if there is any."""
    parents = document.parents
    left = {node_id: len(above) for node_id, above in parents.items()}
    children: dict[str, list[str]] = {node_id: [] for node_id in parents}
    for node_id, above in parents.items():
        for parent in above:
            if parent in children:
                children[parent].append(node_id)
            else:
                left[node_id] -= 1  # unknown, which is said elsewhere
    free = [node_id for node_id, number in left.items() if number == 0]
    while free:
        for child in children[free.pop()]:
            left[child] -= 1
            if left[child] == 0:
                free.append(child)
    # Each node that is left waits for another that is left, so walking upwards meets one of them twice.
    at = next((node_id for node_id, number in left.items() if number > 0), None)
    if at is None:
        return
    walked: dict[str, None] = {}
    while at not in walked:
        walked[at] = None
        at = next(parent for parent in parents[at] if left.get(parent, 0) > 0)
    circle = list(walked)[list(walked).index(at) :]
    shown = [*circle[:10], "…"] if len(circle) > 10 else circle
    place = next(number for number, node in enumerate(document.nodes) if node.id == at)
    yield Flaw(("nodes", place, "depends_on"), f"waits for itself: {' → '.join([*shown, at])}")
