"""What cancelling, retrying and freeing would make of runs, and what it made of them, as it is read."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from queue_workflows.engine.operate.many_runs import Refusal, cancel_named
from queue_workflows.engine.runs.retry import RunRetry
from queue_workflows.errors import UnknownRun
from queue_workflows.repositories.jobs.hooks import ANY_HOST
from queue_workflows.repositories.runs.listing import PickedRun, RunLinesRepository
from queue_workflows.states import RUN_TERMINAL, RunStatus

OPEN: Final = (RunStatus.QUEUED.value, RunStatus.RUNNING.value)
# Of more nodes than this the first are named.
_NAMED: Final = 20


@dataclass(frozen=True, slots=True)
class DecidedRuns:
    """By each run what became of it, or would, and to which of them the verb applied."""

    answers: dict[uuid.UUID, str]
    applied: frozenset[uuid.UUID]

    @property
    def is_all(self) -> bool:
        """Whether no run was left as it was."""
        return len(self.applied) == len(self.answers)


def statuses(connection: psycopg.Connection[Any], runs: Sequence[uuid.UUID]) -> dict[uuid.UUID, str]:
    """How each stands; one that is not there is a mistake, before any is touched."""
    return {run_id: run.status for run_id, run in picked(connection, runs).items()}


def picked(connection: psycopg.Connection[Any], runs: Sequence[uuid.UUID]) -> dict[uuid.UUID, PickedRun]:
    """These with the hosts that they are pinned to; one that is not there is a mistake."""
    found = RunLinesRepository(connection).picked(runs)
    for run_id in runs:
        if run_id not in found:
            raise UnknownRun(run_id)
    return {run_id: found[run_id] for run_id in runs}


def foretell_cancel(connection: psycopg.Connection[Any], runs: Sequence[uuid.UUID]) -> DecidedRuns:
    """What cancelling these would do."""
    return _cancelled(statuses(connection, runs), "would be asked to stop")


def cancel(
    connection: psycopg.Connection[Any], runs: list[uuid.UUID], *, actor: str, reason: str | None
) -> DecidedRuns:
    """Ask these to end, all or, if one is not there, none."""
    was = cancel_named(connection, runs, actor=actor, reason=reason)
    return _cancelled({run_id: was[run_id] for run_id in runs}, "asked to stop")


def _cancelled(was: Mapping[uuid.UUID, str], word: str) -> DecidedRuns:
    over = {run_id for run_id, status in was.items() if status in RUN_TERMINAL}
    answers = {
        run_id: f"not cancelled, it is {status}" if run_id in over else word for run_id, status in was.items()
    }
    return DecidedRuns(answers, frozenset(was.keys() - over))


def said_of_retry(answer: RunRetry | Refusal, *, dry_run: bool) -> str:
    """In a line: why not, or what runs again, what is kept, and of lists how much."""
    if isinstance(answer, Refusal):
        return f"not retried: {answer.why}"
    again = [
        node + (f" (keeps {answer.elements_kept[node]:,} elements)" if node in answer.elements_kept else "")
        for node in answer.again
    ]
    if not again:
        return f"{'would put' if dry_run else 'puts'} its outputs together again"
    kept = f"; keeps {_listed(answer.kept)}" if answer.kept else ""
    kept += f"; changed: {_listed(answer.changed)}" if answer.changed else ""
    kept += f"; removed: {_listed(answer.removed)}" if answer.removed else ""
    return f"{'would run' if dry_run else 'runs'} again {_listed(again)}{kept}"


def setup_remark(answer: RunRetry | Refusal) -> str | None:
    """What a run that runs again does not find any more, if that is so."""
    if isinstance(answer, Refusal) or answer.setup_over is None:
        return None
    root = answer.setup_over
    return f"its tree was set up by run {root}, which is over: its hooks find nothing of that any more"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def said_of_unpin(host: str | None) -> str:
    """What freeing a run from its host, if it had one, means for it."""
    if host is not None and host.startswith(ANY_HOST):
        return "its shared directory is forgotten: the next hook begins another"
    return f"no longer {host}'s: the next worker that claims from it has it" if host else "was no host's"


def said_of_unpoison(events: int) -> str:
    """How many events of a run are tried again."""
    if not events:
        return "nothing was poisoned"
    return "1 event is tried again" if events == 1 else f"{events:,} events are tried again"
