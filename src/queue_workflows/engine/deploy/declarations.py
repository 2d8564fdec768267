"""Schedules and limits: what the code declares, beside what is in force of the same host app."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from queue_workflows.engine.deploy.findings import Finding, Level
from queue_workflows.engine.registry.tasks import TaskRegistry
from queue_workflows.engine.schedules.declared import DeclaredSchedules
from queue_workflows.settings.declared_limits import DeclaredLimit

if TYPE_CHECKING:
    from queue_workflows.models import Schedule

_TIMES: Final = ("cron", "timezone", "catch_up", "catch_up_cap", "jitter_s")
_JOB: Final = ("task_name", "queue", "args", "priority", "limit_key", "host_lock")


def schedules_found(
    stored: Collection[Schedule],
    declared: DeclaredSchedules | None,
    owner: str,
    tasks: TaskRegistry,
    *,
    queues: Collection[str],
    own_queues: Collection[str],
) -> Iterator[Finding]:
    """Schedules that would tick no more or otherwise, or make jobs which the code could not run."""
    words = {one["name"]: one for one in (declared.words if declared else ())}
    for one in stored:
        said = words.get(one.name)
        is_ours = one.declared and one.declared_by == owner
        if is_ours and said is None and declared is not None:
            yield _of_schedule(Level.CHANGES, one.name, "the code does not declare it: it ticks no more")
        elif is_ours and said is not None and (changed := list(_changed(one, said))):
            yield _of_schedule(Level.CHANGES, one.name, "; ".join(changed))
        elif (
            said is None
            and one.enabled
            and one.queue in queues
            and (why := _no_job(one.task_name, one.args, tasks))
        ):
            yield _of_schedule(Level.BREAKS, one.name, why)
    standing = {one.name for one in stored}
    for name, each in sorted(words.items()):
        if name not in standing:
            yield _of_schedule(Level.CHANGES, name, f"it is new: {each['cron']} {each['timezone']}")
        if each["queue"] not in own_queues:
            why = (
                f"it is for the queue {each['queue']!r}, which the wiring does not name: no scheduler starts"
            )
            yield _of_schedule(Level.BREAKS, name, why)
        elif why := _no_job(each["task_name"], each["args"], tasks):
            yield _of_schedule(Level.BREAKS, name, why)


def limits_found(
    in_force: Iterable[Sequence[Any]],
    declared: Mapping[str, DeclaredLimit],
    keys: Callable[[], Iterable[tuple[str, int]]],
) -> Iterator[Finding]:
    """Keys that would have another limit, none or a new one, with the open jobs that have such a key."""
    old = {one.key_pattern: one for one in (DeclaredLimit(*row) for row in in_force)}
    patterns = sorted(old.keys() | declared.keys())
    changed = [pattern for pattern in patterns if old.get(pattern) != declared.get(pattern)]
    counted: Counter[str | None] = Counter()
    for key, number in keys() if changed else ():
        # Of several that a key is of, the longest counts.
        counted[max((one for one in patterns if _matches(one, key)), key=len, default=None)] += number
    for pattern in changed:
        before, after, jobs = old.get(pattern), declared.get(pattern), counted[pattern]
        if after is None:
            told = f"{_said(before)} now, and the code declares none"
        elif before is None:
            told = f"no limit of this host app now, {_said(after)} with this code"
        else:
            told = f"{_said(before)} now, {_said(after)} with this code"
        yield Finding(Level.CHANGES, "limit", pattern, told, jobs)


def _of_schedule(level: Level, name: str, says: str) -> Finding:
    return Finding(level, "schedule", name, says, 1, of="schedule", example=name)


def _no_job(task_name: str, args: Any, tasks: TaskRegistry) -> str | None:
    """Why a tick would make a job that the code cannot run; None if it can."""
    task = tasks.task_named(task_name)
    if task is None:
        return f"its ticks are jobs of {task_name!r}, a task that the code does not have"
    if task.arguments is None:
        return None
    try:
        task.arguments.values(args or {})
    except Exception as said:
        return f"its ticks have arguments that the code does not take: {' '.join(str(said).split()):.300}"
    return None


def _changed(stored: Schedule, words: Mapping[str, Any]) -> Iterator[str]:
    for name in (*_TIMES, *_JOB):
        before, after = getattr(stored, name), words.get(name)
        if before != after:
            yield f"{name} is {before!r:.80} now, {after!r:.80} with this code"


def _matches(pattern: str, key: str) -> bool:
    return key.startswith(pattern[:-1]) if pattern.endswith("*") else key == pattern


def _said(limit: DeclaredLimit | None) -> str:
    """What a limit is, in short."""
    words = (
        [] if limit is None else [(name, value) for name, value in limit.words.items() if value is not None]
    )
    return ", ".join(f"{name} {value:g}" for name, value in words if name != "key_pattern") or "no limit"
