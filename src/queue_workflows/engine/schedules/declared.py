"""Schedules as a host app declares them in its wiring; a scheduler puts them into the database."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from queue_workflows.config import declare_ingest_schedule
from queue_workflows.engine.registry.tasks import current_tasks
from queue_workflows.errors import ConfigurationError, QwfError
from queue_workflows.repositories.jobs.enqueue import current_limits
from queue_workflows.repositories.schedules.schedules import JOB_OPTIONS, checked_words
from queue_workflows.repositories.sql import checks as check
from queue_workflows.states import CatchUp

if TYPE_CHECKING:
    from queue_workflows.models import Schedule
    from queue_workflows.repositories.schedules.ticks import DueSchedule

DEFAULT_OWNER: Final = "app"


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestSchedule:
    """A job that comes again: `task_name` on `queue`, at the times of `cron` by the clocks of `timezone`.

    `cron` has five fields, or six with the seconds first. `catch_up` says what becomes of ticks that nobody
    inserted in time: `none`, `latest` or `all`, the last `catch_up_cap` of them. `jitter_s` spreads the
    beginning of the jobs over so many seconds. `exclusive` is the limit's key `exclusive:{name}`.
    """

    name: str
    cron: str
    task_name: str
    queue: str
    args: dict[str, Any] = field(default_factory=dict)
    timezone: str = "UTC"
    catch_up: str = CatchUp.LATEST
    catch_up_cap: int = 100
    jitter_s: float = 0.0
    priority: int = 5
    limit_key: str | None = None
    host_lock: str | None = None
    exclusive: str | None = None


@dataclass(frozen=True, slots=True)
class DeclaredSchedules:
    """All schedules of a host app, checked; `owner` None is the one that the settings name."""

    owner: str | None
    words: tuple[dict[str, Any], ...]

    @property
    def digest(self) -> str:
        """A digest of the words, which every process reckons alike."""
        text = json.dumps(self.words, sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def owned_by(self, app: str | None) -> str:
        """The owner of the schedules: as told, else the package of the wiring, the module `app`."""
        if self.owner is not None:
            return self.owner
        return app.partition(".")[0] if app else DEFAULT_OWNER


def set_ingest_schedule(
    schedules: Iterable[IngestSchedule | Mapping[str, Any]] | None, *, owner: str | None = None
) -> None:
    """Say which schedules this host app has, all of them; None takes back that anything was said.

    A scheduler (`qwf scheduler`) that starts inserts and changes them in the database, and has those tick no
    more that this host app declared once and does not declare now. What an operator paused stays paused.
    `owner` tells the host apps apart that share a database; else it is the package of the wiring.
    """
    if schedules is None:
        declare_ingest_schedule(None)
        return
    if isinstance(schedules, str | Mapping) or not isinstance(schedules, Iterable):
        raise ConfigurationError(
            f"set_ingest_schedule({schedules!r:.80}) must be given a list",
            advice="as in set_ingest_schedule([IngestSchedule(name=…, cron=…, task_name=…, queue=…)])",
        )
    words = sorted((_checked(one) for one in schedules), key=lambda one: str(one["name"]))
    for one, other in pairwise(words):
        if one["name"] == other["name"]:
            raise ConfigurationError(f"set_ingest_schedule: two schedules are called {one['name']!r:.80}")
    declare_ingest_schedule(DeclaredSchedules(_checked_owner(owner), tuple(words)))


def task_options(schedule: Schedule | DueSchedule) -> dict[str, Any]:
    """What the task of a schedule says of its jobs; nothing where this process does not know the task."""
    task = current_tasks().task_named(schedule.task_name)
    if task is None:
        return {}
    job = task.job(schedule.args, queue=schedule.queue)
    return {option: getattr(job, option) for option in JOB_OPTIONS}


_NAMES: Final = tuple(one.name for one in fields(IngestSchedule))


def _checked(given: IngestSchedule | Mapping[str, Any]) -> dict[str, Any]:
    """What goes into the database, or an error that names the schedule."""
    if not isinstance(given, IngestSchedule):
        given = _made_of(given)
    values = asdict(given)
    args, exclusive = values.pop("args"), values.pop("exclusive")
    try:
        values["limit_key"] = check.exclusive_key(exclusive, values["limit_key"])
        words = checked_words(**values)
        current_limits().json_object("args", args)
    except QwfError as refused:
        raise ConfigurationError(
            f"set_ingest_schedule: schedule {given.name!r:.80}: {refused.message}", advice=refused.advice
        ) from None
    return words | {"args": dict(args or {})}


def _made_of(given: object) -> IngestSchedule:
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            f"set_ingest_schedule: {given!r:.80} is neither an IngestSchedule nor a dict of its fields"
        )
    unknown = [name for name in given if name not in _NAMES]
    missing = [name for name in ("name", "cron", "task_name", "queue") if name not in given]
    called = f"schedule {given.get('name', '?')!r:.80}"
    if unknown:
        raise ConfigurationError(
            f"set_ingest_schedule: {called}: there is no field {unknown[0]!r:.80}",
            advice=f"its fields are {', '.join(_NAMES)}",
        )
    if missing:
        raise ConfigurationError(f"set_ingest_schedule: {called} has no {' and no '.join(missing)}")
    return IngestSchedule(**given)


def _checked_owner(owner: str | None) -> str | None:
    try:
        return check.text_or_none("owner", owner)
    except QwfError as refused:
        raise ConfigurationError(f"set_ingest_schedule: {refused.message}", advice=refused.advice) from None
