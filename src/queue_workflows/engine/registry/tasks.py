"""Ingest tasks: the functions that a process knows by name.

A job's row names its task and nothing more; what that name means is said here, in code, by the host app. A
name that nobody registered is no error: the worker holds the job for one that knows it.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from inspect import Parameter
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeAlias, TypeVar, Unpack

from queue_workflows.config import RESERVED_QUEUES
from queue_workflows.engine.execution.backoff import Backoff, DelayRule, TaskBackoff, rule_of
from queue_workflows.engine.execution.callable import Work, look_at
from queue_workflows.engine.execution.context import JobContext
from queue_workflows.errors import ConfigurationError, PayloadError
from queue_workflows.repositories import Enqueued, NewIngestJob, Unique, enqueue_ingest_job, enqueue_many
from queue_workflows.repositories.claims.begins import Rules
from queue_workflows.repositories.jobs.enqueue import JobOptions, convert_args_of
from queue_workflows.repositories.jobs.unique import check_alone
from queue_workflows.repositories.sql import checks
from queue_workflows.repositories.sql.connection import AsyncHandle, Handle, awaited
from queue_workflows.settings import Settings, check_queue_name

if TYPE_CHECKING:
    from queue_workflows.engine.registry.typed_arguments import TypedArguments

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

# From a job's args to the key of the limit that it counts against; None is no limit.
LimitKeyOf: TypeAlias = Callable[[dict[str, Any]], str | None]
LimitKey: TypeAlias = str | LimitKeyOf

UNKNOWN_TASK: Final = "unknown_task"
_OFFERED: Final = frozenset({"ctx"})
_SHAPES: Final = (
    "a task is fn(reason) or fn(reason, args), or has arguments with types, as in fn(n: int); "
    "it gets the keyword `ctx` if it likes"
)


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
        return f"<ingest task {self.name!r}: {_called(self.fn)}>"

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


class TaskRegistry:
    """Tasks by name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, tuple[IngestTask[..., Any], Work]] = {}
        # The tasks of which all jobs have a key or a lock that a producer may not know of.
        self.with_options: dict[str, IngestTask[..., Any]] = {}

    def register(
        self,
        name: str,
        fn: Callable[P, R],
        *,
        queue: str | None = None,
        max_attempts: int | None = None,
        backoff: TaskBackoff | None = None,
        timeout_s: float | None = None,
        stall_timeout_s: float | None = None,
        limit_key: LimitKey | None = None,
        host_lock: str | None = None,
        exclusive: str | None = None,
        survives_outage: bool = False,
        max_crashes: int | None = None,
        at_most_once: bool = False,
        unique: Unique | None = None,
    ) -> IngestTask[P, R]:
        """Say what a task name means; the options are what its jobs get when enqueued through the result.

        `backoff` is the first delay after a failure in seconds, doubled each time, which goes with the job;
        or a list of delays, the last one for all further failures, or a function of the number of failures,
        which the worker asks. `limit_key` may be a function of the args, reckoned when a job is enqueued.
        After `max_crashes` of its own a job has failed. With `at_most_once` it is tried once, and has failed
        as well if its worker dies after the function began: only an operator's retry begins it again.
        With `survives_outage` its jobs run on while their lease cannot be renewed, though another worker may
        begin them meanwhile. With `unique` no job is enqueued where one like it waits or runs. A taken name
        is refused, unless it is the same function, imported again.
        """
        label = f"the ingest task {_checked_name(name)!r} ({_called(fn)})"
        function: Callable[P, R] = fn.fn if isinstance(fn, IngestTask) else fn
        arguments, work = _work(function, label)
        defaults = _checked_options(
            label,
            {
                "queue": queue,
                "max_attempts": max_attempts,
                "timeout_s": timeout_s,
                "stall_timeout_s": stall_timeout_s,
                "limit_key": None if callable(limit_key) else limit_key,
                "host_lock": host_lock,
                "exclusive": exclusive,
                "max_crashes": max_crashes,
                "at_most_once": at_most_once or None,
                "unique": unique,
            },
        )
        if not isinstance(survives_outage, bool):
            raise ConfigurationError(f"{label}: survives_outage must be True or False")
        work = replace(work, rules=Rules(max_crashes, at_most_once), survives_outage=survives_outage)
        delay_rule = None
        if at_most_once:
            _checked(label, lambda: checks.once(max_attempts))
        if backoff is not None:
            delay_rule = _checked(label, lambda: rule_of(backoff))
            if delay_rule is None:
                defaults["backoff_s"] = backoff
        limit_key_of = limit_key if callable(limit_key) else None
        if exclusive is not None and limit_key is not None:
            _checked(label, lambda: checks.exclusive_key(exclusive, "limit_key"))
        task = IngestTask(
            name, function, defaults, limit_key_of=limit_key_of, delay_rule=delay_rule, arguments=arguments
        )
        with self._lock:
            if name in self._known and not _same(self._known[name][0].fn, function):
                raise ConfigurationError(
                    f"the ingest task {name!r} is {_called(self._known[name][0].fn)} already, "
                    f"so it cannot be {_called(function)}",
                    advice="give one of them another name",
                )
            self._known[name] = (task, work)
            self.with_options.pop(name, None)
            if task.has_key or task.has_lock:
                self.with_options[name] = task
        if arguments is not None:
            convert_args_of(name, arguments.converted)
        return task

    def task(
        self,
        name: str,
        *,
        queue: str | None = None,
        max_attempts: int | None = None,
        backoff: TaskBackoff | None = None,
        timeout_s: float | None = None,
        stall_timeout_s: float | None = None,
        limit_key: LimitKey | None = None,
        host_lock: str | None = None,
        exclusive: str | None = None,
        survives_outage: bool = False,
        max_crashes: int | None = None,
        at_most_once: bool = False,
        unique: Unique | None = None,
    ) -> Callable[[Callable[P, R]], IngestTask[P, R]]:
        """`register` as a decorator."""
        if not isinstance(name, str):
            raise ConfigurationError(
                "@ingest_task needs the task's name", advice='write @ingest_task("name", queue=…)'
            )

        def decorate(fn: Callable[P, R]) -> IngestTask[P, R]:
            return self.register(
                name,
                fn,
                queue=queue,
                max_attempts=max_attempts,
                backoff=backoff,
                timeout_s=timeout_s,
                stall_timeout_s=stall_timeout_s,
                limit_key=limit_key,
                host_lock=host_lock,
                exclusive=exclusive,
                survives_outage=survives_outage,
                max_crashes=max_crashes,
                at_most_once=at_most_once,
                unique=unique,
            )

        return decorate

    def find(self, name: str) -> Work | None:
        """How to run jobs of a task; None if it is unknown here: its jobs wait for a worker that knows it."""
        known = self._known.get(name)
        return None if known is None else known[1]

    def task_named(self, name: str) -> IngestTask[..., Any] | None:
        """The task of a name; None if nobody here knows it."""
        known = self._known.get(name)
        return None if known is None else known[0]

    def delay_rule(self, name: str) -> DelayRule | None:
        """The rule by which failed jobs of a task are tried again, if it has one."""
        known = self._known.get(name)
        return None if known is None else known[0].delay_rule

    def knows(self, name: str) -> bool:
        """Whether this process can run jobs of a task."""
        return name in self._known

    def names(self) -> list[str]:
        """Every task that this process knows, sorted."""
        return sorted(self._known)

    def declared(self) -> list[dict[str, Any]]:
        """What tasks say of their jobs that others depend on: keys of limits, and locks."""
        return [task.declared for _, task in sorted(self.with_options.items())]


_tasks: Final = TaskRegistry()
register_ingest_task = _tasks.register
ingest_task = _tasks.task


def current_tasks() -> TaskRegistry:
    """The tasks that this process registered so far."""
    return _tasks


def backoff_of(settings: Settings) -> Backoff:
    """When failed jobs run again: as their tasks say, else as the settings do."""
    return Backoff(settings.backoff_s, settings.backoff_jitter, current_tasks().delay_rule)


def _work(fn: Callable[..., Any], label: str) -> tuple[TypedArguments | None, Work]:
    if _is_typed(fn):
        # Not every worker has such a task, and each would pay for what it takes.
        from queue_workflows.engine.registry.typed_arguments import typed_work

        return typed_work(fn, label)
    shape = look_at(fn, label, offered=_OFFERED)
    _check_parameters(shape.positional, label, any_number=shape.more_positional)
    with_args = len(shape.positional) == 2 or shape.more_positional
    return None, Work(label, _caller(fn, with_args, "ctx" in shape.wanted), shape.is_async)


def _is_typed(fn: Callable[..., Any]) -> bool:
    """Whether a function's parameters are its arguments: all have types, and none is `reason` or `args`."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return False
    own = [parameter for parameter in parameters if parameter.name not in _OFFERED]
    if inspect.isclass(fn) or not own or own[0].name.startswith("_"):
        return False
    return all(
        parameter.annotation is not Parameter.empty
        and parameter.name not in {"self", "reason", "args"}
        and parameter.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
        for parameter in own
    )


def _check_parameters(positional: tuple[Parameter, ...], label: str, *, any_number: bool) -> None:
    names = [parameter.name for parameter in positional]
    if names[:1] == ["self"]:
        raise ConfigurationError(f"{label} is a method", advice="register a function, or a bound method")
    if names[:1] == ["args"]:
        raise ConfigurationError(f"{label}: `args` is the second parameter", advice=_SHAPES)
    if not names and not any_number:
        raise ConfigurationError(f"{label} takes no reason", advice=_SHAPES)
    for place, parameter in enumerate(positional[1:], start=2):
        is_required = parameter.default is Parameter.empty
        if place == 2 and (is_required or parameter.name == "args"):
            continue
        if is_required:
            raise ConfigurationError(f"{label}: nobody gives it `{parameter.name}`", advice=_SHAPES)
        raise ConfigurationError(
            f"{label}: it is not clear what `{parameter.name}` is for",
            advice=f"{_SHAPES}; options of your own go after `*`",
        )


def _caller(fn: Callable[..., Any], with_args: bool, with_ctx: bool) -> Callable[[Any, JobContext], Any]:
    if with_args and with_ctx:
        return lambda job, ctx: fn(job.reason, job.args, ctx=ctx)
    if with_args:
        return lambda job, _: fn(job.reason, job.args)
    if with_ctx:
        return lambda job, ctx: fn(job.reason, ctx=ctx)
    return lambda job, _: fn(job.reason)


def _checked_name(name: str) -> str:
    try:
        checked = checks.text("task_name", name)
    except PayloadError as refused:
        raise ConfigurationError(refused.message, advice=refused.advice) from None
    if not checked.isprintable() or checked != checked.strip():
        raise ConfigurationError(
            f"task_name {name!r:.80} has blanks around it or characters that cannot be seen"
        )
    return checked


def _checked_options(label: str, options: Mapping[str, Any]) -> dict[str, Any]:
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

    _checked(label, check)
    return given


def _checked(label: str, check: Callable[[], T]) -> T:
    try:
        return check()
    except (PayloadError, ConfigurationError) as refused:
        raise ConfigurationError(f"{label}: {refused.message}", advice=refused.advice) from None


def _check_queue(queue: str) -> None:
    if check_queue_name(queue).lower() in RESERVED_QUEUES:
        raise ConfigurationError(
            f"the queue {queue!r} is reserved for node jobs", advice="use one of the host app's ingest queues"
        )


def _same(old: Callable[..., Any], new: Callable[..., Any]) -> bool:
    """Whether it is one function, imported twice: by reload, or as `__main__` and by its name.

    Two closures of one `def` share its name and place but not what they do, so those must be the same object.
    """
    if old is new:
        return True
    codes = getattr(old, "__code__", None), getattr(new, "__code__", None)
    if codes[0] is None or codes[1] is None or old.__closure__ or new.__closure__:
        return False
    if codes[0].co_qualname != codes[1].co_qualname:
        return False
    return old.__module__ == new.__module__ or bool(codes[0].co_filename == codes[1].co_filename)


def _called(fn: object) -> str:
    """A function as messages name it."""
    named = getattr(fn, "__qualname__", None)
    return f"{getattr(fn, '__module__', '')}.{named}".lstrip(".") if named else f"{fn!r:.80}"
