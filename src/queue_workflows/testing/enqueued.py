"""Asserting what was enqueued, in the transaction of the connection that is asked.

What fails says what is enqueued instead: the job that was meant is nearly always there, with other args.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from queue_workflows import clock as time
from queue_workflows.engine.registry.ingest_task import IngestTask
from queue_workflows.models import IngestJob
from queue_workflows.repositories.jobs.ingest import IngestJobRepository
from queue_workflows.repositories.sql.connection import Handle
from queue_workflows.states import JobStatus

# A job that waits, now or for later.
WAITING: Final = (JobStatus.QUEUED, JobStatus.SCHEDULED)
_LOOK_EVERY_S: Final = 0.02
_PAGE: Final = 500
_MOST_TOLD: Final = 20

TaskName = IngestTask[..., Any] | str


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a job must be; None is anything."""

    task: TaskName | None = None
    args: Mapping[str, Any] | None = None
    args_contain: Mapping[str, Any] | None = None
    queue: str | None = None
    dedupe_key: str | None = None
    priority: int | None = None
    after: int | None = None

    @property
    def task_name(self) -> str | None:
        """The name in the rows."""
        return self.task.name if isinstance(self.task, IngestTask) else self.task

    def fits(self, job: IngestJob) -> bool:
        """Whether a job is what is wanted."""
        return (
            (self.task is None or job.task_name == self.task_name)
            and (self.queue is None or job.queue == self.queue)
            and (self.dedupe_key is None or job.dedupe_key == self.dedupe_key)
            and (self.priority is None or job.priority == self.priority)
            and (self.args is None or job.args == self.args)
            and (self.args_contain is None or contains(job.args, self.args_contain))
        )

    def __str__(self) -> str:
        words = ["any job" if self.task is None else repr(self.task_name)]
        words += [
            f"{name}={value!r}"
            for name, value in (
                ("args", self.args),
                ("args__contains", self.args_contain),
                ("queue", self.queue),
                ("dedupe_key", self.dedupe_key),
                ("priority", self.priority),
                ("after", self.after),
            )
            if value is not None
        ]
        return " ".join(words)


def all_enqueued(
    task: TaskName | None = None,
    *,
    conn: Handle,
    args: Mapping[str, Any] | None = None,
    args__contains: Mapping[str, Any] | None = None,
    queue: str | None = None,
    dedupe_key: str | None = None,
    priority: int | None = None,
    after: int | None = None,
) -> list[IngestJob]:
    """The jobs that wait, in the order in which they were enqueued.

    `task` is a task or its name. `args` are all arguments, `args__contains` some of them, at any depth.
    `after` is the id of a job: only later ones count, which leaves out what a fixture has enqueued.
    """
    wanted = Wanted(task, args, args__contains, queue, dedupe_key, priority, after)
    return [job for job in _waiting(conn, after) if wanted.fits(job)]


def assert_enqueued(
    task: TaskName | None = None,
    *,
    conn: Handle,
    args: Mapping[str, Any] | None = None,
    args__contains: Mapping[str, Any] | None = None,
    queue: str | None = None,
    dedupe_key: str | None = None,
    priority: int | None = None,
    after: int | None = None,
    within: float = 0.0,
) -> IngestJob:
    """Assert that such a job waits, as `all_enqueued` looks for it; the first that does.

    It may be enqueued `within` so many seconds, by another thread or process.
    """
    wanted = Wanted(task, args, args__contains, queue, dedupe_key, priority, after)
    found = _awaited(conn, wanted, within)
    if found is None:
        told = _told(wanted, _waiting(conn, None))
        in_time = f" within {within:g} s" if within else ""
        raise AssertionError(f"no job is enqueued{in_time} as {wanted}\n{told}")
    return found


def refute_enqueued(
    task: TaskName | None = None,
    *,
    conn: Handle,
    args: Mapping[str, Any] | None = None,
    args__contains: Mapping[str, Any] | None = None,
    queue: str | None = None,
    dedupe_key: str | None = None,
    priority: int | None = None,
    after: int | None = None,
    within: float = 0.0,
) -> None:
    """Assert that no such job waits, nor is enqueued `within` so many seconds."""
    wanted = Wanted(task, args, args__contains, queue, dedupe_key, priority, after)
    found = _awaited(conn, wanted, within)
    if found is not None:
        raise AssertionError(f"a job is enqueued as {wanted}\n  {_line(found)}")


def contains(value: Any, part: Any) -> bool:
    """Whether JSON has all that a part of it has: dicts may have more keys, all else is equal."""
    if isinstance(part, Mapping):
        return isinstance(value, Mapping) and all(
            key in value and contains(value[key], wanted) for key, wanted in part.items()
        )
    return bool(value == part)


def _awaited(conn: Handle, wanted: Wanted, within_s: float) -> IngestJob | None:
    return _until(lambda: next(filter(wanted.fits, _waiting(conn, wanted.after)), None), within_s)


def _until(look: Callable[[], IngestJob | None], within_s: float) -> IngestJob | None:
    """What a look brings, as soon as one brings something."""
    give_up_at = time.monotonic() + within_s
    while (found := look()) is None and (left := give_up_at - time.monotonic()) > 0:
        time.sleep(min(left, _LOOK_EVERY_S))
    return found


def _waiting(conn: Handle, after: int | None) -> list[IngestJob]:
    repository, jobs = IngestJobRepository(conn), list[IngestJob]()
    while page := repository.list(status=WAITING, after=after, limit=_PAGE, newest_first=False):
        jobs += page
        after = page[-1].id
    return jobs


def _told(wanted: Wanted, jobs: Iterable[IngestJob]) -> str:
    """What is there instead, the jobs of the task first."""
    ordered = sorted(jobs, key=lambda job: job.task_name != wanted.task_name)
    if not ordered:
        return "nothing is enqueued here; what another transaction has not committed is not seen"
    more = [f"  and {len(ordered) - _MOST_TOLD} more"] if len(ordered) > _MOST_TOLD else []
    return "\n".join(["enqueued are:", *(f"  {_line(job)}" for job in ordered[:_MOST_TOLD]), *more])


def _line(job: IngestJob) -> str:
    key = f" dedupe_key={job.dedupe_key!r}" if job.dedupe_key is not None else ""
    return (
        f"{job.task_name!r} args={job.args!r} queue={job.queue!r}{key} priority={job.priority}"
        f" ({job.status}, job {job.id})"
    )
