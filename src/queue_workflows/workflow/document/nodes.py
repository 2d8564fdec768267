"""What a node of a document may say: one model for each type, checked field by field."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag

from queue_workflows.workflow.references.references import ROOTS

NODE_ID: Final = r"[A-Za-z_][A-Za-z0-9_-]{0,127}"
NAME_BYTES: Final = 512
# What a lock's name has before it where another host may take the job, as in `sql/checks`.
_ELSEWHERE: Final = "elsewhere:"
SMALLINT_MAX: Final = 32_767
INT_MAX: Final = 2_147_483_647
LONGEST_S: Final = 100 * 365 * 86_400.0


class When(StrEnum):
    """Which ends of its parents let a node start; a skipped parent counts as a success."""

    ALL_SUCCESS = "all_success"
    ALL_DONE = "all_done"
    ANY_SUCCESS = "any_success"


class OnFailure(StrEnum):
    """What the failure of a node does to the rest of its run."""

    FAIL_FAST = "fail_fast"
    CONTINUE = "continue"


def _node_id(text: str) -> str:
    if text in ROOTS:
        raise ValueError(f"cannot be {text!r}, which references use for something else")
    if not re.fullmatch(NODE_ID, text):
        raise ValueError("must be a letter or `_`, then up to 127 letters, digits, `_` and `-`")
    return text


def name_text(text: str) -> str:
    """A name as columns and indexes take it."""
    if not text or text != text.strip() or not text.isprintable():
        raise ValueError("must be a name, without blanks around it and control characters in it")
    if len(text.encode()) > NAME_BYTES:
        raise ValueError(f"is longer than {NAME_BYTES} bytes")
    return text


def lock_text(text: str) -> str:
    """The name of a host lock; a job's policy may stand before it."""
    bare_lock_text(text.removeprefix(_ELSEWHERE))
    return name_text(text)


def bare_lock_text(text: str) -> str:
    """The name alone, where the policy is said by another word."""
    if text.startswith(_ELSEWHERE):
        raise ValueError(f"must be a name that does not begin with `{_ELSEWHERE}`")
    return name_text(text)


def key_text(text: str) -> str:
    """A name that no pattern is."""
    if "*" in text:
        raise ValueError("must name one key: `*` is for the patterns that limits are set by")
    return name_text(text)


def _key(value: Any) -> Any:
    return key_text(value) if isinstance(value, str) else _reference(value)


def _reference(value: Any) -> Any:
    # A mapping that is no operator stands for itself, and is never a name.
    if not isinstance(value, dict) or not any(isinstance(key, str) and key[:1] == "$" for key in value):
        raise ValueError("must be a name, or a reference such as {$from: item.device}")
    return value


def _lock(value: Any) -> Any:
    if isinstance(value, dict) and "name" in value:
        if strange := sorted(set(value) - {"name", "when_held"}):
            raise ValueError(f"has `name` and `when_held`, no {strange[0]!r:.40}")
        if value.get("when_held", "wait") not in {"wait", "elsewhere"}:
            raise ValueError("has a `when_held` that is neither wait nor elsewhere")
        name = value["name"]
        return {**value, "name": bare_lock_text(name) if isinstance(name, str) else _reference(name)}
    return lock_text(value) if isinstance(value, str) else _reference(value)


def _label(value: Any) -> Any:
    if not isinstance(value, str | int | float):
        raise ValueError("must be a text, a number, true or false")
    return value


Label: TypeAlias = Annotated[
    Any, Field(json_schema_extra={"type": ["string", "number", "boolean"]}), AfterValidator(_label)
]
Name: TypeAlias = Annotated[
    str, Field(strict=True, json_schema_extra={"minLength": 1}), AfterValidator(name_text)
]
Key: TypeAlias = Annotated[Any, Field(json_schema_extra={"type": ["string", "object"]}), AfterValidator(_key)]
Lock: TypeAlias = Annotated[
    Any, Field(json_schema_extra={"type": ["string", "object"]}), AfterValidator(_lock)
]
NodeId: TypeAlias = Annotated[
    str, Field(strict=True, json_schema_extra={"pattern": f"^{NODE_ID}$"}), AfterValidator(_node_id)
]
Flag: TypeAlias = Annotated[bool, Field(strict=True)]
Priority: TypeAlias = Annotated[int, Field(strict=True, ge=0, le=9)]
Seconds: TypeAlias = Annotated[float, Field(strict=True, gt=0, le=LONGEST_S)]
SecondsOrNone: TypeAlias = Annotated[float, Field(strict=True, ge=0, le=LONGEST_S)]
Values: TypeAlias = dict[str, Any]


class Part(BaseModel):
    """A part of a document: frozen, and strict about names that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=False)


class Retry(Part):
    """How often a task is tried, and how long it waits before it is tried again."""

    max_attempts: Annotated[int, Field(strict=True, ge=1, le=SMALLINT_MAX)] | None = Field(
        None, description="How often it is tried at most; the default is 3."
    )
    backoff_s: SecondsOrNone | None = Field(
        None, description="Seconds before the second try, doubled from then on; the default is 60."
    )


class BaseNode(Part):
    """What nodes of every type have."""

    id: NodeId = Field(description="What references, commands and other nodes call it.")
    depends_on: tuple[NodeId, ...] = Field(
        (), description="Nodes that must be over first, beside those that references name."
    )
    when: When = Field(When.ALL_SUCCESS, description="Which ends of its parents let it start.")
    on_failure: OnFailure | None = Field(
        None, description="What its failure does to the run; the document's `on_failure` if absent."
    )
    skip_if: Any = Field(
        None,
        description="A condition, resolved when the node is ready; true skips it. "
        "true, false, or one of $from, $eq, $ne, $gt, $lt, $in, $and, $or, $not.",
    )


class TaskNode(BaseNode):
    """A job for a worker, or one for each element of a list."""

    type: Literal["task"] = "task"
    module: Name | None = Field(None, description="The node module, as the host app's resolver knows it.")
    queue: Literal["cpu", "gpu", "hooks"] = Field("cpu", description="The queue of the workers that run it.")
    model: Name | None = Field(None, description="The model that it needs; workers with it warm go first.")
    inputs: Values = Field({}, description="What its `run` gets, with references resolved when it executes.")
    for_each: Any = Field(None, description="A list; the node runs once for each `item` of it.")
    retry: Retry | None = Field(None, description="How often it is tried, and when again.")
    survives_outage: Flag = Field(
        False,
        description="Whether it may run on while its lease cannot be renewed, and may begin twice for that.",
    )
    max_crashes: Annotated[int, Field(strict=True, ge=1, le=SMALLINT_MAX)] | None = Field(
        None, description="Crashes of its own that end it; the module's, else the setting's, if absent."
    )
    at_most_once: Flag = Field(
        False, description="Whether it has failed if its worker dies after it began, and is tried only once."
    )
    timeout_s: Seconds | None = Field(None, description="How long one try may take.")
    stall_timeout_s: Seconds | None = Field(
        None, description="How long a try may say nothing, once it has reported progress."
    )
    priority: Priority | None = Field(None, description="0 to 9, higher first; the run's if absent.")
    host_priority: Annotated[int, Field(strict=True, ge=-SMALLINT_MAX, le=SMALLINT_MAX)] = Field(
        0, description="A host's preference among equals."
    )
    limit_key: Annotated[str, Field(strict=True), AfterValidator(key_text)] | None = Field(
        None, description="The limit of which it takes a slot."
    )
    host_lock: Lock | None = Field(
        None,
        description="The lock of its machine that it holds: a name, a reference, or `{name, when_held}`.",
    )
    exclusive: Key | None = Field(
        None, description="What it holds alone among all machines: a name, or a reference to one."
    )
    plugin: Name | None = Field(None, description="The plugin of a hook.")
    step: Annotated[int, Field(strict=True, ge=0, le=SMALLINT_MAX)] | None = Field(
        None, description="The step of a hook."
    )
    background: Flag = Field(False, description="Whether it runs beside its step, as background hooks do.")
    sessions: tuple[NodeId, ...] = Field(
        (), description="Background hooks among `depends_on` that it works with, and runs again with."
    )


class InputNode(BaseNode):
    """Waits for an answer, which becomes its result; holds no worker."""

    type: Literal["input"]
    answer_schema: Values | None = Field(
        None, alias="schema", description="JSON Schema properties of the answer; any object if absent."
    )
    expires_s: Seconds | None = Field(None, description="After how many seconds without an answer it fails.")
    prompt: Annotated[str, Field(strict=True, max_length=16_384)] | None = Field(
        None, description="The question that is asked."
    )


class WaitNode(BaseNode):
    """Waits for a length of time or until a moment; holds no worker."""

    type: Literal["wait"]
    seconds: SecondsOrNone | None = Field(None, description="How long it waits, from when it is ready.")
    until: Any = Field(
        None, description="A moment with its zone, as in 2030-01-31T09:00:00Z, or a reference."
    )


class WorkflowNode(BaseNode):
    """A run of another workflow; its outputs become the result."""

    type: Literal["workflow"]
    workflow: Name = Field(description="The other workflow's name.")
    inputs: Values = Field({}, description="Its inputs, with references resolved when it starts.")
    for_each: Any = Field(None, description="A list; the workflow runs once for each `item` of it.")
    priority: Priority | None = Field(None, description="0 to 9, higher first; the run's if absent.")
    tree: Values | None = Field(
        None,
        description="The document of the workflow, for the first run of a tree that this run sets up: it gets"
        " this run's inputs, once all that it depends on succeeded or, in the background, has begun.",
    )
    sessions: tuple[NodeId, ...] = Field(
        (), description="Background hooks among `depends_on` that are begun again before a `tree` goes on."
    )


class SealNode(BaseNode):
    """The end of a pipeline's last step: background hooks that end with it are told; takes no job."""

    type: Literal["seal"]
    step: Annotated[int, Field(strict=True, ge=0, le=SMALLINT_MAX)] | None = Field(
        None, description="The step behind the last one; without it, it waits for ends alone."
    )


class DescendantsNode(BaseNode):
    """Waits for the ends of all runs below its own, if there are any; holds no worker."""

    type: Literal["descendants"]
    step: Annotated[int, Field(strict=True, ge=0, le=SMALLINT_MAX)] | None = Field(
        None, description="The step behind the last one; without it, it waits for ends alone."
    )
    always: Flag = Field(
        False, description="Whether it waits for hooks that are tried again also where no run is below yet."
    )


TYPES: Final[dict[str, type[BaseNode]]] = {
    "task": TaskNode,
    "input": InputNode,
    "wait": WaitNode,
    "workflow": WorkflowNode,
    "seal": SealNode,
    "descendants": DescendantsNode,
}


def _type_of(node: Any) -> str | None:
    """Which model a node is for; one that says no type is a task."""
    kind = node.get("type", "task") if isinstance(node, dict) else getattr(node, "type", None)
    return kind if isinstance(kind, str) else None


Node: TypeAlias = Annotated[
    Annotated[TaskNode, Tag("task")]
    | Annotated[InputNode, Tag("input")]
    | Annotated[WaitNode, Tag("wait")]
    | Annotated[WorkflowNode, Tag("workflow")]
    | Annotated[SealNode, Tag("seal")]
    | Annotated[DescendantsNode, Tag("descendants")],
    Discriminator(_type_of),
]
