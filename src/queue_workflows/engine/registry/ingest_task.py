"""What a task is: a function with a name, and what its jobs get when they are enqueued.

The declaration is checked where it is written, so that a slip shows there and not in a worker.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeAlias, TypeVar, Unpack

from queue_workflows.config import RESERVED_QUEUES
from queue_workflows.engine.execution.backoff import DelayRule
from queue_workflows.errors import ConfigurationError, PayloadError
from queue_workflows.repositories import Enqueued, NewIngestJob, Unique, enqueue_ingest_job, enqueue_many
from queue_workflows.repositories.jobs.enqueue import JobOptions
from queue_workflows.repositories.jobs.unique import check_alone
from queue_workflows.repositories.sql import checks
from queue_workflows.repositories.sql.connection import AsyncHandle, Handle, awaited
from queue_workflows.settings import check_queue_name

if TYPE_CHECKING:
    from queue_workflows.engine.registry.typed_arguments import TypedArguments

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

# From a job's args to the key of the limit that it counts against; None is no limit.
LimitKeyOf: TypeAlias = Callable[[dict[str, Any]], str | None]
LimitKey: TypeAlias = str | LimitKeyOf


class EnqueueOptions(JobOptions, total=False):
    """What may be said of a job beside its task and its args; None leaves it to the task's own defaults."""

    queue: str | None
    unique: Unique | None


class IngestTask(Generic[P, R]):
    """A registered task: still the function that it was, and a way to enqueue jobs for it."""

    def __init__(
        self,
        name: str,
        fn: Callable[P, R],
        defaults: Mapping[str, Any],
        *,
        limit_key_of: LimitKeyOf | None = None,
        delay_rule: DelayRule | None = None,
        arguments: TypedArguments | None = None,
    ) -> None:
        functools.update_wrapper(self, fn)
        self.name = name
        self.fn = fn
        self.defaults = defaults
        self.limit_key_of = limit_key_of
        self.delay_rule = delay_rule
        self.arguments = arguments

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<ingest task {self.name!r}: {called(self.fn)}>"

    def __reduce__(self) -> str:
        """Pickled as the module's name for it, like a function."""
        return str(getattr(self, "__qualname__", self.name))

    @property
    def has_key(self) -> bool:
        """Whether its jobs count against a limit."""
        return self.limit_key_of is not None or not {"exclusive", "limit_key"}.isdisjoint(self.defaults)

    @property
    def has_lock(self) -> bool:
        """Whether its jobs need a lock of their machine."""
        return "host_lock" in self.defaults

    @property
    def declared(self) -> dict[str, Any]:
        """The key of a limit and the lock that each of its jobs has, from whatever producer."""
        computes = self.limit_key_of is not None
        return {
            "task_name": self.name,
            "limit_key": None if computes else self.key_of({}),
            "computes_key": computes,
            "host_lock": self.defaults.get("host_lock"),
        }

    def key_of(self, args: dict[str, Any]) -> str | None:
        """The key of a job with these arguments, as its task has it."""
        if self.limit_key_of is not None:
            return self._limit_key(self.limit_key_of, args)
        return checks.exclusive_key(self.defaults.get("exclusive"), self.defaults.get("limit_key"))

    def job(self, args: dict[str, Any] | None = None, **options: Unpack[EnqueueOptions]) -> NewIngestJob:
        """A job for `enqueue_many`, with options of its own."""
        args = self.converted(args)
        return NewIngestJob(task_name=self.name, args=args, **self._options(args, options))

    def converted(self, args: dict[str, Any] | None) -> dict[str, Any] | None:
        """The arguments as jobs have them: those of a task with typed ones are checked and converted."""
        return args if self.arguments is None else self.arguments.converted(args)

    def enqueue(
        self,
        args: dict[str, Any] | None = None,
        *,
        conn: Handle | None = None,
        durability: str | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> Enqueued:
        """Enqueue a job in the transaction of `conn`; without one in a transaction of its own.

        Unless one like it waits or runs, as `unique` says. `durability` is what `synchronous_commit` is in
        that transaction.
        """
        args = self.converted(args)
        chosen = self._options(args, options)
        return enqueue_ingest_job(self.name, args=args, conn=conn, durability=durability, **chosen)

    def enqueue_many(
        self,
        jobs: Iterable[dict[str, Any] | NewIngestJob | None],
        *,
        conn: Handle | None = None,
        durability: str | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> list[Enqueued]:
        """Enqueue many in the transaction of `conn`; each is a `job()`, or args that the options are for."""

        def checked() -> Iterator[NewIngestJob]:
            for number, item in enumerate(jobs):
                if not isinstance(item, NewIngestJob):
                    yield self.job(item, **options)
                elif item.task_name == self.name:
                    yield item
                else:
                    raise PayloadError(
                        f"jobs[{number}] is for the task {item.task_name!r:.80}, not {self.name!r}",
                        path=f"jobs[{number}].task_name",
                        advice="enqueue_many() of the package takes jobs of any task",
                    )

        return enqueue_many(checked(), conn=conn, durability=durability)

    async def aenqueue(
        self,
        args: dict[str, Any] | None = None,
        *,
        conn: AsyncHandle | None = None,
        durability: str | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> Enqueued:
        """`enqueue`, awaited, on an asynchronous connection."""
        return await awaited(
            conn, lambda usable: self.enqueue(args, conn=usable, durability=durability, **options)
        )

    async def aenqueue_many(
        self,
        jobs: Iterable[dict[str, Any] | NewIngestJob | None],
        *,
        conn: AsyncHandle | None = None,
        durability: str | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> list[Enqueued]:
        """`enqueue_many`, awaited, on an asynchronous connection."""
        return await awaited(
            conn, lambda usable: self.enqueue_many(jobs, conn=usable, durability=durability, **options)
        )

    def _options(self, args: dict[str, Any] | None, options: Mapping[str, Any]) -> dict[str, Any]:
        given = {name: value for name, value in options.items() if value is not None}
        merged = {**self.defaults, **given}
        if self.defaults.get("at_most_once") and not merged["at_most_once"]:
            raise PayloadError(
                f"the task {self.name!r:.80} is at_most_once, and so is each of its jobs",
                path="at_most_once",
                advice="leave it out, or register another task",
            )
        if merged.get("at_most_once") and "max_attempts" not in given:
            merged["max_attempts"] = 1
        if "exclusive" in given or "limit_key" in given:
            # What is said of a job takes the place of what its task says, whichever of the two it is.
            merged = {**merged, "limit_key": None, "exclusive": None, **given}
        elif self.limit_key_of is not None:
            merged["limit_key"] = self._limit_key(self.limit_key_of, args)
        if "dedupe_key" in given and "unique" not in given:
            # A key of the job's own says better what it is.
            merged.pop("unique", None)
        if (key := checks.exclusive_key(merged.pop("exclusive", None), merged.get("limit_key"))) is not None:
            merged["limit_key"] = key
        if "queue" not in merged:
            raise ConfigurationError(
                f"the task {self.name!r} has no queue of its own, and none was given",
                advice="register it with queue=…, or enqueue with queue=…",
            )
        return merged

    def _limit_key(self, reckon: LimitKeyOf, args: dict[str, Any] | None) -> str | None:
        try:
            return reckon({} if args is None else args)
        except Exception as exc:
            said = f"{type(exc).__name__}: {exc}".removesuffix(": ")
            raise PayloadError(
                f"the limit_key of {self.name!r:.80} cannot be made of these args: {said:.200}",
                path="limit_key",
            ) from exc


def checked_name(name: str) -> str:
    """The name, if it can be one."""
    try:
        text = checks.text("task_name", name)
    except PayloadError as refused:
        raise ConfigurationError(refused.message, advice=refused.advice) from None
    if not text.isprintable() or text != text.strip():
        raise ConfigurationError(
            f"task_name {name!r:.80} has blanks around it or characters that cannot be seen"
        )
    return text


def checked_options(label: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """What was given, each as the enqueue verbs would check it; a slip shows where it was written."""
    given = {name: value for name, value in options.items() if value is not None}

    def check() -> None:
        for name, value in given.items():
            if name in {"max_attempts", "max_crashes"}:
                checks.whole(name, value, 1, checks.SMALLINT_MAX)
            elif name == "at_most_once":
                checks.flag(name, value)
            elif name == "limit_key":
                checks.limit_key(value)
            elif name == "host_lock":
                checks.host_lock(name, value)
            elif name == "exclusive":
                checks.exclusive_key(value, None)
            elif name == "queue":
                _check_queue(value)
            elif name == "unique":
                check_alone(value, None)
            else:
                checks.seconds_or_none(name, value)

    checked(label, check)
    return given


def checked(label: str, check: Callable[[], T]) -> T:
    """What a check says, or its refusal with the task's label before it."""
    try:
        return check()
    except (PayloadError, ConfigurationError) as refused:
        raise ConfigurationError(f"{label}: {refused.message}", advice=refused.advice) from None


def _check_queue(queue: str) -> None:
    if check_queue_name(queue).lower() in RESERVED_QUEUES:
        raise ConfigurationError(
            f"the queue {queue!r} is reserved for node jobs", advice="use one of the host app's ingest queues"
        )


def called(fn: object) -> str:
    """A function as messages name it."""
    named = getattr(fn, "__qualname__", None)
    return f"{getattr(fn, '__module__', '')}.{named}".lstrip(".") if named else f"{fn!r:.80}"
