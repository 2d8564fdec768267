"""Operators' verbs over many runs: page by page, each page or run one short transaction."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import psycopg

from queue_workflows.engine.runs.retry import RunRetry, foretell_retries, retry_run
from queue_workflows.engine.runs.verbs import cancel_runs
from queue_workflows.errors import (
    DocumentError,
    PayloadError,
    QwfError,
    RunRefused,
    UnknownNode,
    UnknownRun,
    UnknownWorkflow,
)
from queue_workflows.repositories.runs.listing import RunFilter, RunLinesRepository
from queue_workflows.repositories.runs.operator_verbs import ENGINE_MODE
from queue_workflows.repositories.runs.outbox_counts import DispatchEventRepository
from queue_workflows.states import RUN_TERMINAL, RunStatus

PAGE: Final = 500
# What may be wrong with one run and right with another: its inputs, its workflow's name, its nodes; its
# document as well, unless all of them are given another.
_OF_ONE: Final = (PayloadError, UnknownWorkflow, UnknownNode)


class Refusal(NamedTuple):
    """A run that was not run again, and why."""

    run_id: uuid.UUID
    why: str


def pages_of(
    connection: psycopg.Connection[Any], wanted: RunFilter, *, page: int = PAGE
) -> Iterator[list[uuid.UUID]]:
    """All runs that match, oldest first; what is started from now on is not meant."""
    runs = RunLinesRepository(connection)
    until, after = runs.last_id(), None
    ours = replace(wanted, mode=ENGINE_MODE)
    while until is not None and (ids := runs.page(ours, after=after, until=until, limit=page)):
        yield ids
        after = ids[-1]


def cancel_matching(
    connection: psycopg.Connection[Any], wanted: RunFilter, *, actor: str, reason: str | None
) -> Iterator[int]:
    """Ask all runs that match to end; how many were, of each page once committed."""
    for ids in pages_of(connection, wanted):
        with connection.transaction():
            was = cancel_runs(ids, conn=connection, actor=actor, reason=reason)
        yield sum(status not in RUN_TERMINAL for status in was.values())


def unpoison_matching(
    connection: psycopg.Connection[Any], wanted: RunFilter, *, actor: str, reason: str | None
) -> Iterator[dict[uuid.UUID, int]]:
    """Have events be tried again that were given up, of all runs that match; how many, of each page."""
    events = DispatchEventRepository(connection)
    for ids in pages_of(connection, replace(wanted, poisoned=True)):
        yield events.unpoison(ids, actor=actor, reason=reason)


def cancel_named(
    connection: psycopg.Connection[Any], runs: list[uuid.UUID], *, actor: str, reason: str | None
) -> dict[uuid.UUID, RunStatus]:
    """Ask these runs to end, all or, if one is not there, none; how each stood."""
    with connection.transaction():
        return cancel_runs(runs, conn=connection, actor=actor, reason=reason)


def foretell_retry(
    connection: psycopg.Connection[Any], runs: list[uuid.UUID], *, from_node: str | None
) -> list[RunRetry | Refusal]:
    """What `retry_each` would answer for these, of a few statements however many they are."""
    told = foretell_retries(runs, conn=connection, from_node=from_node)
    answers: list[RunRetry | Refusal] = []
    for run_id, answer in told.items():
        if isinstance(answer, (*_OF_ONE, DocumentError)) and len(runs) == 1:
            raise answer
        answers.append(Refusal(run_id, answer.message) if isinstance(answer, QwfError) else answer)
    return answers


def retry_each(
    connection: psycopg.Connection[Any],
    runs: list[uuid.UUID],
    *,
    from_node: str | None,
    dry_run: bool,
    actor: str,
    reason: str | None,
    document: Path | None = None,
    latest: bool = False,
    several: bool = False,
) -> Iterator[RunRetry | Refusal]:
    """Run these again, each in a transaction of its own; one that cannot be keeps nobody from the others.

    Where one alone is meant, a document or a node that does not go with it is raised; of `several` it is
    the refusal of that one.
    """
    of_one = (*_OF_ONE, DocumentError) if latest or document is None else _OF_ONE
    is_one_of_many = several or len(runs) > 1
    refusing: tuple[type[QwfError], ...] = (RunRefused, UnknownRun, *(of_one if is_one_of_many else ()))
    for run_id in runs:
        try:
            with connection.transaction():
                answer: RunRetry | Refusal = retry_run(
                    run_id,
                    conn=connection,
                    from_node=from_node,
                    document=document,
                    latest=latest,
                    dry_run=dry_run,
                    actor=actor,
                    reason=reason,
                )
        except refusing as refused:
            answer = Refusal(run_id, refused.message)
        yield answer
