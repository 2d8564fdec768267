"""Having schedules enqueue their job now, and switching them."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import psycopg

from queue_workflows.drawing.words import say_moment
from queue_workflows.engine.schedules.declared import task_options
from queue_workflows.errors import UnknownSchedule
from queue_workflows.repositories.schedules.schedules import ScheduleRepository, state_of
from queue_workflows.repositories.sql import checks as check
from queue_workflows.settings import Settings
from queue_workflows.web.acts.act import SHOWN_FIRST, Act, Asked, By, Done, Line, Preview
from queue_workflows.web.page import part

if TYPE_CHECKING:
    from queue_workflows.models import Schedule

Connection = psycopg.Connection[Any]
_LABELS: Final = {"trigger": "Trigger", "pause": "Pause", "resume": "Resume"}
_IS_SO: Final = {"pause": "paused", "resume": "on"}
_NOTES: Final = {
    "trigger": "One job is enqueued now, beside its ticks.",
    "pause": "It ticks no more until it is resumed, whatever is restarted or deployed meanwhile.",
    "resume": "What fell due meanwhile does not come.",
}


def schedule_target(name: str) -> str:
    """A schedule by its name."""
    return check.text("target", name)


def _found(connection: Connection, name: str) -> Schedule:
    found = ScheduleRepository(connection).fetch(name)
    if found is None:
        raise UnknownSchedule(name)
    return found


def _line(name: str, said: str) -> Line:
    return Line(name, said, f"/schedules/{part(name)}")


def _said_of(one: Schedule) -> str:
    following = f", next at {say_moment(one.next_tick_at)}" if one.next_tick_at and one.enabled else ""
    return f"{state_of(one)} · {one.cron} {one.timezone} · {one.task_name} on {one.queue}{following}"


def _act(verb: str) -> Act:
    def preview(connection: Connection, asked: Asked, _settings: Settings) -> Preview:
        found = [_found(connection, name) for name in asked.targets]
        meant = [one for one in found if verb == "trigger" or one.enabled is (verb == "pause")]
        names = asked.targets[0] if len(found) == 1 else f"{len(meant):,} schedules"
        return Preview(
            headline=f"{_LABELS[verb]} {names}",
            count=len(meant),
            lines=tuple(_line(one.name, _said_of(one)) for one in found[:SHOWN_FIRST]),
            notes=(_NOTES[verb],),
            command=shlex.join(["qwf", "schedule", verb, *asked.targets]),
            back=f"/schedules/{part(asked.targets[0])}" if len(found) == 1 else "/schedules",
        )

    return Act(
        f"schedule.{verb}",
        _LABELS[verb],
        schedule_target,
        preview,
        _trigger if verb == "trigger" else _switch(verb),
        takes_many=verb != "trigger",
    )


def _trigger(connection: Connection, asked: Asked, by: By, _settings: Settings) -> Iterator[Done]:
    name = asked.targets[0]
    options = task_options(_found(connection, name))
    job = ScheduleRepository(connection).trigger(name, actor=by.actor, reason=by.reason, options=options)
    if job is None:
        raise UnknownSchedule(name)
    yield Done(Counter({"job enqueued": 1}), (Line(f"ingest:{job}", "enqueued", f"/jobs/ingest:{job}"),))


def _switch(verb: str) -> Any:
    def perform(connection: Connection, asked: Asked, by: By, _settings: Settings) -> Iterator[Done]:
        for name in asked.targets:
            _found(connection, name)
        for name in asked.targets:
            changed = ScheduleRepository(connection).set_enabled(
                name, verb == "resume", actor=by.actor, reason=by.reason
            )
            said = f"is {_IS_SO[verb]}" if changed else f"was {_IS_SO[verb]} already"
            left = state_of(_found(connection, name)) == "not declared"
            more = "; it does not tick all the same: it is not declared any more" if left else ""
            yield Done(Counter({said: 1}), (_line(name, said + more),), left=int(changed is None))

    return perform


SCHEDULE_ACTS: Final = tuple(_act(verb) for verb in _LABELS)
