"""Children: jobs that a durable function has spawned, and the results that it waits for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from json import dumps
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from queue_workflows.engine.durable.history import Call
from queue_workflows.errors import ChildFailed, PayloadError
from queue_workflows.repositories.durable.children import ChildEnd
from queue_workflows.repositories.jobs.ingest_rows import NewIngestJob
from queue_workflows.states import JobStatus

if TYPE_CHECKING:
    from collections.abc import Generator

# A task's jobs by its name, where this process knows the task.
MakeJob: TypeAlias = Callable[..., NewIngestJob]
FindTask: TypeAlias = Callable[[str], Any]
_GONE: Final = {"kind": "gone", "message": "it, or its result, was pruned before it was waited for"}
_HAS_RESULT: Final = frozenset({JobStatus.COMPLETED, JobStatus.SKIPPED})


class Child:
    """A spawned job: its `id` once that is known, and its result by `result()`, or `await` in async code."""

    def __init__(self, call: Call, gather: Callable[[Child], Any]) -> None:
        self.call = call
        self.id: int | None = None
        self._gather = gather

    def __repr__(self) -> str:
        return f"<child {self.call.name!r}: {'not enqueued yet' if self.id is None else f'ingest:{self.id}'}>"

    def result(self) -> Any:
        """What it returned, once it has: the function parks until then."""
        return self._gather(self)

    def __await__(self) -> Generator[Any, None, Any]:
        result: Generator[Any, None, Any] = self._gather(self).__await__()
        return result


def new_job(
    task: Any, args: dict[str, Any] | None, queue: str | None, find: FindTask, options: dict[str, Any]
) -> NewIngestJob:
    """A job of a task, by its name or itself; without a queue it goes to the parent's, if that has one."""
    known = find(task) if isinstance(task, str) else task
    own = None if known is None else known.defaults.get("queue")
    queue = options.pop("queue", None) or own or queue
    if queue is None:
        raise PayloadError(
            f"nobody says on which queue the task {task!r:.80} is: a node's own is for nodes alone",
            path="queue",
            advice="ctx.spawn(…, queue=…)",
        )
    if known is not None:
        job: NewIngestJob = known.job(args, queue=queue, **options)
        return job
    return replace(NewIngestJob(task_name=task, queue=queue, args=args), **options)


def ids_of(children: Sequence[Child]) -> list[int]:
    """The ids of children, each of which has been enqueued."""
    ids = [child.id for child in children if child.id is not None]
    if len(ids) < len(children):
        raise RuntimeError(
            "a child was not enqueued, as it was spawned in another round or attempt of the job"
        )
    return ids


def results_json(ids: Sequence[int], ends: Sequence[ChildEnd]) -> str:
    """What became of children, as it is stored: status, result and error of each, in order."""
    by_id = {end.id: end for end in ends}
    return dumps(
        [
            [one, by_id[one].status.value, by_id[one].result, by_id[one].error]
            if one in by_id
            else [
                one,
                "gone",
                None,
                dict(_GONE),
            ]
            for one in ids
        ]
    )


def is_failure(ends: Sequence[ChildEnd], ids: Sequence[int]) -> bool:
    """Whether one of these children has no result, or is gone."""
    return len({end.id for end in ends if end.status in _HAS_RESULT}) < len(set(ids))


def results_of(stored: Sequence[Sequence[Any]], *, return_exceptions: bool) -> list[Any]:
    """The results of children; the first that has none is raised, or each stands in its place."""
    results: list[Any] = []
    for job_id, status, result, error in stored:
        if status in _HAS_RESULT:
            results.append(result)
            continue
        failed = ChildFailed(f"ingest:{job_id}", status, error)
        if not return_exceptions:
            raise failed
        results.append(failed)
    return results
