"""Why a job waits for a lock of its machine, and what holds it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from queue_workflows.engine.explain.history import Reason, moment
from queue_workflows.repositories.claims.by_host_lock import HOST_LOCK, LockHolder, lock_of
from queue_workflows.repositories.explain.explain_job import Circumstances
from queue_workflows.repositories.sql.checks import ELSEWHERE


def without_lock(there: Circumstances, key: str, data: dict[str, Any], *, looked_at: str) -> Reason:
    """On hold, as the lock was held on the host of the worker that claimed it."""
    goes_on = (
        "a host where it is free takes it"
        if key.startswith(ELSEWHERE)
        else f"it goes on as soon as it is free, looked at again {looked_at}"
    )
    text = f"it is on hold: host lock {lock_of(key)!r}, {_whose(there)}; {goes_on}"
    return Reason(HOST_LOCK, text, data | _holders(there))


def held_lock(there: Circumstances) -> Iterator[Reason]:
    """What a job in the queue will meet when it is claimed on one of these hosts."""
    if (key := there.job.host_lock) is not None and there.lock_holders:
        text = f"its host lock {lock_of(key)!r}: {_whose(there)}, so no other job of that host has it now"
        yield Reason(HOST_LOCK, text, {"host_lock": lock_of(key)} | _holders(there))


def _whose(there: Circumstances) -> str:
    if not there.lock_holders:
        return (
            "which no running job has as its own: on the host that claimed it a program had it, or a job"
            " inside `ctx.host_lock`; the lock's file and `lslocks` there name its holder"
        )
    return " and ".join(map(_one, there.lock_holders))


def _one(holder: LockHolder) -> str:
    return f"held by {holder.family}:{holder.job_id} on {holder.worker_id} since {moment(holder.since)}"


def _holders(there: Circumstances) -> dict[str, Any]:
    return {
        "holders": [
            {"job": f"{one.family}:{one.job_id}", "worker_id": one.worker_id, "since": one.since}
            for one in there.lock_holders
        ]
    }
