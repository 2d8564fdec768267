"""What a node that waits for an answer asks, and the answers that it got: all that a form of it needs."""

from __future__ import annotations

import shlex
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

from queue_workflows.errors import RunRefused, UnknownNode, UnknownRun
from queue_workflows.repositories.runs.inputs import InputSubmissionRepository
from queue_workflows.repositories.runs.operator_verbs import SteeringRepository
from queue_workflows.repositories.sql.connection import Handle
from queue_workflows.states import NODE_OVER, RUN_TERMINAL, NodeState
from queue_workflows.workflow.document.nodes import InputNode

# The newest answers are shown; refused ones may be many.
MOST_ANSWERS: Final = 20


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer as it came in, and what became of it."""

    id: int
    payload: dict[str, Any]
    submitted_by: str | None
    status: str
    error: str | None
    created_at: datetime
    processed_at: datetime | None


@dataclass(frozen=True, slots=True)
class Question:
    """A node that asks; `answer_schema` has the schema of each property, None takes any object."""

    run_id: uuid.UUID
    node: str
    run_status: str
    state: str
    # Whether an answer is still taken, now or once the node is there.
    is_open: bool
    prompt: str | None
    answer_schema: Mapping[str, Any] | None
    answers: tuple[Answer, ...]


def question(conn: Handle, run_id: uuid.UUID, node_id: str) -> Question:
    """What the node asks; `RunRefused` where it is one that takes no answer."""
    standing = SteeringRepository(conn).node(run_id, node_id)
    if standing is None:
        raise UnknownRun(run_id)
    if standing.declared is None:
        raise UnknownNode(run_id, node_id)
    kind = standing.declared.get("type", "task")
    if kind != "input":
        what = f"node {node_id!r} of run {run_id} is a {kind}, which takes no answer"
        raise RunRefused(run_id, what, status=standing.run_status)
    node = InputNode.model_validate(standing.declared)
    is_over = standing.run_status in RUN_TERMINAL or standing.state in NODE_OVER or standing.expired
    found = InputSubmissionRepository(conn).list(run_id=run_id, node_id=node_id, limit=MOST_ANSWERS)
    return Question(
        run_id=run_id,
        node=node_id,
        run_status=standing.run_status.value,
        state="expired" if standing.expired else (standing.state or NodeState.WAITING).value,
        is_open=not is_over,
        prompt=node.prompt,
        answer_schema=node.answer_schema,
        answers=tuple(
            Answer(
                one.id,
                one.payload,
                one.submitted_by,
                one.status,
                one.error,
                one.created_at,
                one.processed_at,
            )
            for one in found
        ),
    )


def json_of(asked: Question) -> dict[str, Any]:
    """What `qwf run submit-input RUN NODE --show --json` prints, for a form or a program that draws one."""
    return {
        "run": str(asked.run_id),
        "node": asked.node,
        "run_status": asked.run_status,
        "state": asked.state,
        "open": asked.is_open,
        "prompt": asked.prompt,
        "schema": None if asked.answer_schema is None else dict(asked.answer_schema),
        "answers": [asdict(one) for one in asked.answers],
    }


def json_of_submission(run_id: uuid.UUID, node_id: str, submission: int) -> dict[str, Any]:
    """What `qwf run submit-input RUN NODE --json` prints once an answer is stored."""
    return {"submission": submission, "run": run_id, "node": node_id}


def command_of(run_id: uuid.UUID, node_id: str) -> str:
    """The command that shows it; without `--show` it asks in a terminal, property by property."""
    return shlex.join(["qwf", "run", "submit-input", str(run_id), node_id, "--show"])
