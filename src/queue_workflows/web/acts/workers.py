"""Asking workers to pause, to go off or to go on: of one host and queue, or of a queue on every host."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import psycopg

from queue_workflows.errors import PayloadError
from queue_workflows.repositories.workers.control import WorkerControlRepository
from queue_workflows.settings import Settings
from queue_workflows.settings.fields import HOST_LABEL, QUEUE_NAME
from queue_workflows.states import DesiredState
from queue_workflows.views.filters import spans
from queue_workflows.views.forecast.changes import Changes
from queue_workflows.views.workers.forecast_lines import lines_of
from queue_workflows.views.workers.what_if import read_preview
from queue_workflows.views.workers.wishes import ask_workers, scope_of, told_of, what_else_holds
from queue_workflows.web.acts.act import Act, Asked, By, Done, Field, Line, Preview
from queue_workflows.web.acts.counting import drains
from queue_workflows.web.rendering import texts

_FOR: Final = "for"
_ANY: Final = "*"
# The word that names the one worker on which page the button was pressed.
_WORKER: Final = "worker"
_COLONS_OF_WORKER: Final = 2
# What a wish is of: its host and its queue.
Place = Callable[[str], tuple[str, str]]


def wish_act(name: str, label: str, desired: DesiredState, place: Place) -> Act:
    """One wish; `place` reads what it is of out of the target's name."""

    def preview(connection: psycopg.Connection[Any], asked: Asked, settings: Settings) -> Preview:
        host, queue = place(asked.targets[0])
        is_on = desired is DesiredState.ON
        look = _preview_on if is_on else _foretold
        notes = [*_not_alone(asked, host, queue), *look(connection, host, queue, desired, settings)]
        return Preview(
            headline=_headline(label, host, queue),
            notes=tuple(notes),
            command=_command(name, asked),
            fields=() if is_on else (_span_field(asked.word(_FOR)),),
            back=f"/queues/{queue}" if name.startswith("queue.") and queue != _ANY else "/workers",
        )

    def perform(
        connection: psycopg.Connection[Any], asked: Asked, by: By, settings: Settings
    ) -> Iterator[Done]:
        host, queue = place(asked.targets[0])
        done = ask_workers(
            connection,
            desired,
            host=host,
            queue=queue,
            lasting=spans.seconds_of(asked.word(_FOR)) if asked.word(_FOR) else None,
            actor=by.actor,
            reason=by.reason,
            stale_s=settings.stale_heartbeat_s,
        )
        lines = tuple(Line(scope_of(host, queue), said) for said in (*done.told, *done.remarks))
        yield Done(Counter({done.told[0]: 1}), lines, left=int(not done.is_changed))

    return Act(
        name,
        label,
        target=lambda target: " ".join(place(target)) if not name.startswith("queue.") else place(target)[1],
        preview=preview,
        perform=perform,
        takes_many=False,
        free_words=frozenset({_FOR}),
        is_grave=desired is DesiredState.OFF,
    )


def of_workers(target: str) -> tuple[str, str]:
    """`HOST QUEUE`, where a star is any; of a worker's id its host and its queue, which a wish is of."""
    host, _, queue = target.partition(" ")
    if not queue and target.count(":") == _COLONS_OF_WORKER:
        host, queue, _ = target.split(":")
    return _matching(HOST_LABEL, host, "host label"), _matching(QUEUE_NAME, queue.strip(), "queue name")


def of_queue(target: str) -> tuple[str, str]:
    """A queue, on every host."""
    return _ANY, _matching(QUEUE_NAME, target, "queue name")


def _matching(pattern: str, value: str, what: str) -> str:
    if value != _ANY and not re.fullmatch(pattern, value):
        raise PayloadError(f"{value!r:.80} is no {what}", path="target", advice="'*' is any")
    return value


def _headline(label: str, host: str, queue: str) -> str:
    workers = "all workers" if queue == _ANY else f"the workers of queue {queue}"
    return f"{label}: {workers}" + (" on every host" if host == _ANY else f" on {host}")


def _command(name: str, asked: Asked) -> str:
    group, _, verb = name.partition(".")
    lasting = asked.word(_FOR)
    words = asked.targets[0].split(" ") + (["--for", lasting] if lasting else [])
    return shlex.join(["qwf", group, verb, *words])


def _span_field(value: str) -> Field:
    is_wrong = bool(value) and spans.seconds_of(value) is None
    return Field(
        _FOR,
        "For how long",
        hint=f"Until it is taken back, if it is left out; {spans.HOW}.",
        value=value,
        flaw=f"{value!r:.60} is no length of time: {spans.HOW}" if is_wrong else "",
    )


def _foretold(
    connection: psycopg.Connection[Any], host: str, queue: str, desired: DesiredState, settings: Settings
) -> list[str]:
    """What the wish would do to workers, jobs, models and queues."""
    seen = read_preview(
        connection, host=host, queue=queue, desired=desired, stale_s=settings.stale_heartbeat_s
    )
    also_holds = what_else_holds(connection, host, queue, desired)
    without = Changes(paused=frozenset({queue})) if host == _ANY else Changes(off=frozenset({(queue, host)}))
    foretold = [] if queue == _ANY else drains(connection, without, settings)
    return [*list(lines_of(seen))[1:], *foretold, *also_holds]


def _not_alone(asked: Asked, host: str, queue: str) -> list[str]:
    """That no wish is of one worker alone, where a worker was named."""
    worker = asked.word(_WORKER)
    return [texts.WISH_OF_WORKER.format(place=scope_of(host, queue), worker=worker)] if worker else []


def _preview_on(
    connection: psycopg.Connection[Any], host: str, queue: str, desired: DesiredState, _settings: Settings
) -> list[str]:
    """What would be taken back, and what would still keep workers there from working."""
    wishes = WorkerControlRepository(connection).blocking(host, queue)
    mine = [told_of(wish) for wish in wishes if (wish.host_label, wish.queue) == (host, queue)]
    nothing = f"{scope_of(host, queue)}: nothing was asked of it"
    devices = "Devices that are quarantined there are tried again."
    return [*(mine or [nothing]), *what_else_holds(connection, host, queue, desired), devices]


WORKER_ACTS: Final = (
    wish_act("workers.pause", "Pause", DesiredState.PAUSE, of_workers),
    wish_act("workers.off", "Switch off", DesiredState.OFF, of_workers),
    wish_act("workers.on", "Switch on", DesiredState.ON, of_workers),
    wish_act("queue.pause", "Pause", DesiredState.PAUSE, of_queue),
    wish_act("queue.resume", "Resume", DesiredState.ON, of_queue),
)
