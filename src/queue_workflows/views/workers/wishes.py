"""What operators want of workers: asking for it, what else holds there, and how that is said."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg

from queue_workflows.config import is_known_queue
from queue_workflows.drawing.words import on_one_line, say_moment
from queue_workflows.repositories.workers.control import Control, WorkerControlRepository
from queue_workflows.repositories.workers.heartbeats import HeartbeatRepository
from queue_workflows.repositories.workers.quarantine import QuarantineRepository
from queue_workflows.states import DesiredState

if TYPE_CHECKING:
    from queue_workflows.models import WorkerControl

_WORDS: Final = {DesiredState.PAUSE: "paused", DesiredState.OFF: "off"}


@dataclass(frozen=True, slots=True)
class AskedOfWorkers:
    """What was asked: its version, what became of it in lines, and remarks beside them."""

    version: int
    told: tuple[str, ...]
    remarks: tuple[str, ...]
    # Whether a worker is heard of that could obey.
    is_heard: bool
    is_changed: bool = True


def ask_workers(
    connection: psycopg.Connection[Any],
    desired: DesiredState,
    *,
    host: str,
    queue: str,
    lasting: float | None,
    actor: str,
    reason: str | None,
    stale_s: float,
) -> AskedOfWorkers:
    """Ask the workers of a host and queue, `*` for any, to pause, to go off, or to go on."""
    control, beats = WorkerControlRepository(connection), HeartbeatRepository(connection)
    by: dict[str, Any] = {"actor": actor, "reason": reason}
    if desired is DesiredState.ON:
        version, told, is_changed = _take_back(connection, host, queue, by)
    else:
        wish = control.set(host, queue, desired, expires_in=lasting, **by)
        version, told, is_changed = wish.version, [told_of(wish)], True
    told += what_else_holds(connection, host, queue, desired)
    remarks = []
    if not is_known_queue(queue) and not beats.standing("*", queue):
        remarks.append(
            f"there is no queue {queue!r} that this configuration or any worker knows: is it spelled so?"
        )
    is_heard = any(one.age_s <= stale_s for one in beats.standing(host, queue))
    if not is_heard:
        later = "" if desired is DesiredState.ON else "; it holds for those that start"
        remarks.append(f"no worker is heard of there now{later}")
    return AskedOfWorkers(version, tuple(told), tuple(remarks), is_heard, is_changed)


def _take_back(
    connection: psycopg.Connection[Any], host: str, queue: str, by: dict[str, Any]
) -> tuple[int, list[str], bool]:
    control, place = WorkerControlRepository(connection), scope_of(host, queue)
    cleared = control.clear(host, queue, **by)
    version = cleared.version if cleared else control.version()
    retried = QuarantineRepository(connection).clear(host, queue, **by)
    told = []
    if cleared or not retried:
        told.append(f"{place} is on" if cleared else f"{place}: nothing was asked of it")
    told += [
        on_one_line(f"{one.device} of {one.host_label} is tried again; it was: {one.reason}")
        for one in retried
    ]
    return version, told, bool(cleared or retried)


def what_else_holds(
    connection: psycopg.Connection[Any], host: str, queue: str, desired: DesiredState
) -> list[str]:
    """Other wishes that hold there: after `on` they still block, else they are stricter or last longer."""
    still = "still blocks" if desired is DesiredState.ON else "holds as well"
    return [
        f"{scope_of(other.host_label, other.queue)} {still}: {asked_of(other)}"
        for other in WorkerControlRepository(connection).blocking(host, queue)
        if (other.host_label, other.queue) != (host, queue)
    ]


def told_of(wish: WorkerControl) -> str:
    """What is asked of which workers, on which account, until when and why; in a sentence."""
    return f"{scope_of(wish.host_label, wish.queue)} is {asked_of(wish)}"


def asked_of(wish: Control | WorkerControl) -> str:
    """What is asked, on which account, until when and why."""
    until = f" until {say_moment(wish.expires_at)}" if wish.expires_at else ""
    why = f": {wish.reason}" if wish.reason else ""
    return f"{_WORDS.get(DesiredState(wish.desired), 'on')} by {wish.actor}{until}{why}"


def scope_of(host_label: str, queue: str) -> str:
    """The host and the queue of a wish."""
    return f"({host_label}, {queue})"
