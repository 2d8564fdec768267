"""The workers of a host and queue, and what was asked of them: what `qwf workers list` shows."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import psycopg

from queue_workflows.repositories.workers.code import CodeOfWorkers, WorkerCodeRepository
from queue_workflows.repositories.workers.control import Control, WorkerControlRepository
from queue_workflows.repositories.workers.heartbeats import HeartbeatRepository
from queue_workflows.repositories.workers.obedience import MOST, Standing

if TYPE_CHECKING:
    from queue_workflows.models import WorkerControl

# A worker that was killed leaves its heartbeat behind; after this long it is history.
FORGOTTEN_S: Final = 3600.0
_OF_A_WISH: Final = ("host_label", "queue", "desired", "version", "reason", "actor", "expires_at")


@dataclass(frozen=True, slots=True)
class WorkerList:
    """Workers that were heard of, and every wish that holds for some worker there; silent after `stale_s`."""

    workers: Sequence[Standing]
    wishes: Sequence[WorkerControl]
    stale_s: float
    # Whether there are more, which were heard of longer ago.
    is_cut: bool = False
    # What their code knows, by its digest.
    code: Mapping[str, CodeOfWorkers] = field(default_factory=dict)


def read_workers(
    connection: psycopg.Connection[Any],
    *,
    stale_s: float,
    host: str = "*",
    queue: str = "*",
    everyone: bool = False,
) -> WorkerList:
    """The workers of a host and queue, `*` for any; with `everyone` also those not heard of for an hour."""
    found = HeartbeatRepository(connection).standing(host, queue)
    wishes = WorkerControlRepository(connection).blocking(host, queue)
    shown = [one for one in found if everyone or one.is_quarantined or one.age_s <= FORGOTTEN_S]
    return WorkerList(shown, wishes, stale_s, is_cut=len(found) >= MOST, code=code_of(connection, shown))


def code_of(connection: psycopg.Connection[Any], workers: Iterable[Standing]) -> dict[str, CodeOfWorkers]:
    """What the code of these workers knows, by its digest; nothing of an engine that does not tell."""
    digests = {one.code for one in workers if one.code is not None}
    return WorkerCodeRepository(connection).of(digests)


def code_named(one: Standing, code: Mapping[str, CodeOfWorkers]) -> CodeOfWorkers | None:
    """What one of them knows, if it tells."""
    return None if one.code is None else code.get(one.code)


def json_of(seen: WorkerList) -> dict[str, Any]:
    """What `qwf workers list --json` prints."""
    return {
        "workers": [worker_json(one, seen.stale_s, code_named(one, seen.code)) for one in seen.workers],
        "wishes": [wish_json(wish) for wish in seen.wishes],
    }


def command_of(*, host: str = "*", queue: str = "*", everyone: bool = False) -> str:
    """The command that shows this list."""
    words = ["qwf", "workers", "list"]
    words += ["--host", host] if host != "*" else []
    words += ["--queue", queue] if queue != "*" else []
    return shlex.join([*words, "--all"] if everyone else words)


def worker_json(one: Standing, stale_s: float, code: CodeOfWorkers | None = None) -> dict[str, Any]:
    """One worker, with what it has to obey and how far it is with that, and what its `code` knows.

    Of a worker that does not tell what it knows, `knows` is null.
    """
    return {
        "worker_id": one.worker_id,
        "host_label": one.host_label,
        "queue": one.queue,
        "pid": one.pid,
        "state": one.state,
        "state_reason": one.state_reason,
        "silent": one.age_s > stale_s,
        "flagged_dead": one.flagged_dead,
        "current_job": one.current_job,
        "jobs_held": one.jobs_held,
        "current_model": one.current_model,
        "cached_models": one.cached_models,
        "load": one.load,
        "versions": one.versions,
        "app_version": one.app_version,
        "knows": None if code is None else code.names,
        "knows_more": code is None or code.is_open,
        "lacks": one.lacks,
        "started_at": one.started_at,
        "last_seen": one.last_seen,
        "seen_s_ago": round(one.age_s, 3),
        "control_version": one.control_version,
        "control": None if one.control is None else wish_json(one.control),
        "obedience": one.obedience(),
    }


def wish_json(wish: Control | WorkerControl) -> dict[str, Any]:
    """What an operator asked, of which workers, until when and why."""
    return {name: getattr(wish, name) for name in _OF_A_WISH}
