"""Tasks: open jobs of those that the code does not have, and jobs with arguments that it would not take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator

from queue_workflows.engine.deploy.findings import Finding, Level
from queue_workflows.engine.registry.tasks import TaskRegistry
from queue_workflows.repositories.reports.open_work import (
    COUNTED,
    MOST_ARGS,
    OpenWork,
    OpenWorkRepository,
)


def missing_tasks(
    found: Iterable[OpenWork], tasks: TaskRegistry, queues: Collection[str]
) -> Iterator[Finding]:
    """Jobs of tasks that nobody registers; what lies on queues of other host apps is only named."""
    elsewhere: Counter[str] = Counter()
    for one in found:
        if one.queue not in queues:
            elsewhere[one.queue] += one.jobs
        elif one.name is not None and not tasks.knows(one.name):
            yield Finding(
                Level.BREAKS,
                "task",
                one.name,
                f"the code does not have it: its jobs on {one.queue} would be put on hold",
                one.jobs,
                example=f"ingest:{one.first}",
            )
    for queue, jobs in sorted(elsewhere.items()):
        yield Finding(
            Level.UNSEEN,
            "queue",
            queue,
            f"{queue} is no queue of this host app: its jobs were not looked at (--queue {queue} looks)",
            jobs,
        )


def bounds_met(jobs: Iterable[OpenWork], nodes: Iterable[OpenWork]) -> Iterator[Finding]:
    """Where so much is open that not all of it was looked at."""
    for kind, found in (("ingest jobs", jobs), ("node jobs", nodes)):
        if (number := sum(one.jobs for one in found)) >= COUNTED:
            says = (
                f"of {COUNTED:,} {kind} in one status no more were looked at: others may be open behind these"
            )
            yield Finding(Level.UNSEEN, "bound", kind, says, number)


def refused_arguments(
    open_work: OpenWorkRepository, found: Iterable[OpenWork], tasks: TaskRegistry, queues: Collection[str]
) -> Iterator[Finding]:
    """Jobs that the parameters of their task would not take when they run."""
    typed = {
        one.name: task
        for one in found
        if one.queue in queues
        and one.name is not None
        and (task := tasks.task_named(one.name)) is not None
        and task.arguments is not None
    }
    if not typed:
        return
    refused: Counter[str] = Counter()
    first: dict[str, tuple[int, str]] = {}
    looked = 0
    for job, name, args in open_work.args_of(typed):
        looked += 1
        arguments = typed[name].arguments
        assert arguments is not None  # noqa: S101 - only such tasks are asked for
        try:
            arguments.values(args)
        except Exception as refusal:
            refused[name] += 1
            first.setdefault(name, (job, _in_short(refusal)))
    if looked >= MOST_ARGS:
        says = f"the arguments of {MOST_ARGS:,} jobs were looked at, and of no others"
        yield Finding(Level.UNSEEN, "bound", "arguments", says, looked)
    for name, jobs in sorted(refused.items()):
        job, said = first[name]
        yield Finding(Level.BREAKS, "arguments", name, said, jobs, example=f"ingest:{job}")


def _in_short(said: Exception) -> str:
    """The refusal in one line; a validator of the host app's own may raise anything."""
    told = " ".join(str(said).split()) or type(said).__name__
    return f"{told:.300}"
