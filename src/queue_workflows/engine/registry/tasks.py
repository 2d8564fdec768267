"""Ingest tasks: the functions that a process knows by name.

A job's row names its task and nothing more; what that name means is said here, in code, by the host app. A
name that nobody registered is no error: the worker holds the job for one that knows it.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from inspect import Parameter
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from queue_workflows.engine.execution.backoff import Backoff, DelayRule, TaskBackoff, rule_of
from queue_workflows.engine.execution.callable import Work, look_at
from queue_workflows.engine.execution.context import JobContext
from queue_workflows.engine.registry.ingest_task import (
    IngestTask,
    LimitKey,
    called,
    checked,
    checked_name,
    checked_options,
)
from queue_workflows.errors import ConfigurationError
from queue_workflows.repositories import Unique
from queue_workflows.repositories.claims.begins import Rules
from queue_workflows.repositories.jobs.enqueue import convert_args_of
from queue_workflows.repositories.sql import checks
from queue_workflows.settings import Settings

if TYPE_CHECKING:
    from queue_workflows.engine.registry.typed_arguments import TypedArguments

P = ParamSpec("P")
R = TypeVar("R")

UNKNOWN_TASK: Final = "unknown_task"
_OFFERED: Final = frozenset({"ctx"})
_SHAPES: Final = (
    "a task is fn(reason) or fn(reason, args), or has arguments with types, as in fn(n: int); "
    "it gets the keyword `ctx` if it likes"
)


class TaskRegistry:
    """Tasks by name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, tuple[IngestTask[..., Any], Work]] = {}
        # Theirs, and those of versions that jobs in flight may need.
        self._names: dict[str, None] = {}
        # Of durable tasks: their version, and those before it.
        self._versions: dict[str, tuple[str | None, tuple[str, ...]]] = {}
        # Of durable tasks: the functions of each of their versions, by what workers call it.
        self._functions: dict[str, dict[str, Callable[..., Any]]] = {}
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
        durable: bool = False,
        version: str | None = None,
        versions: Mapping[str, Callable[..., Any]] | None = None,
    ) -> IngestTask[P, R]:
        """Say what a task name means; the options are what its jobs get when enqueued through the result.

        `backoff` is the first delay after a failure in seconds, doubled each time, which goes with the job;
        or a list of delays, the last one for all further failures, or a function of the number of failures,
        which the worker asks. `limit_key` may be a function of the args, reckoned when a job is enqueued.
        After `max_crashes` of its own a job has failed. With `at_most_once` it is tried once, and has failed
        as well if its worker dies after the function began: only an operator's retry begins it again.
        With `survives_outage` its jobs run on while their lease cannot be renewed, though another worker may
        begin them meanwhile. With `unique` no job is enqueued where one like it waits or runs. What is
        `durable` has a `ctx` that stores steps, and goes on with the `version` that it began under:
        `versions` are the functions of those before this one. A taken name is refused, unless it is the same
        function, imported again.
        """
        label = f"the ingest task {checked_name(name)!r} ({called(fn)})"
        function: Callable[P, R] = fn.fn if isinstance(fn, IngestTask) else fn
        arguments, work = _work(function, label)
        defaults = checked_options(
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
        names, of_versions, functions = [name], {}, {}
        if durable or version is not None or versions is not None:
            work, names = self._durable(name, label, work, durable, version, versions)
            of_versions = {name: (version, tuple(versions or ()))}
            called_so = [name] if version is None else names[1:]
            functions = dict(zip(called_so, [function, *(versions or {}).values()], strict=True))
        delay_rule = None
        if at_most_once:
            checked(label, lambda: checks.once(max_attempts))
        if backoff is not None:
            delay_rule = checked(label, lambda: rule_of(backoff))
            if delay_rule is None:
                defaults["backoff_s"] = backoff
        limit_key_of = limit_key if callable(limit_key) else None
        if exclusive is not None and limit_key is not None:
            checked(label, lambda: checks.exclusive_key(exclusive, "limit_key"))
        task = IngestTask(
            name, function, defaults, limit_key_of=limit_key_of, delay_rule=delay_rule, arguments=arguments
        )
        with self._lock:
            if name in self._known and not _same(self._known[name][0].fn, function):
                raise ConfigurationError(
                    f"the ingest task {name!r} is {called(self._known[name][0].fn)} already, "
                    f"so it cannot be {called(function)}",
                    advice="give one of them another name",
                )
            self._known[name] = (task, work)
            self._names |= dict.fromkeys(names)
            self.with_options.pop(name, None)
            self._versions.pop(name, None)
            self._versions |= of_versions
            self._functions[name] = functions
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
        durable: bool = False,
        version: str | None = None,
        versions: Mapping[str, Callable[..., Any]] | None = None,
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
                durable=durable,
                version=version,
                versions=versions,
            )

        return decorate

    def _durable(  # noqa: PLR0917 - what was said of one task
        self,
        name: str,
        label: str,
        work: Work,
        durable: bool,
        version: str | None,
        versions: Mapping[str, Callable[..., Any]] | None,
    ) -> tuple[Work, list[str]]:
        """The work of a durable task, and what workers say that they know by it; loaded for it alone."""
        from queue_workflows.engine.durable.function import durable_work, version_name
        from queue_workflows.engine.registry.versions import older_versions

        if durable is not True:
            raise ConfigurationError(f"{label}: a version is that of a durable function: give durable=True")
        older = older_versions(label, work, version, versions, lambda fn: _work(fn, label)[1])
        known = [*([] if version is None else [version]), *older]
        made = durable_work(work, name=name, version=version, older=older, find=self.task_named)
        return made, [name, *(version_name(name, each) for each in known)]

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

    def versions_of(self, name: str) -> tuple[str | None, tuple[str, ...]] | None:
        """The version of a durable task, and those before it; None of a task that stores no steps."""
        return self._versions.get(name)

    def names(self) -> list[str]:
        """Every task that this process knows, and versions of durable ones as in `onboard@2`, sorted."""
        return sorted(self._names)

    def code_names(self) -> list[str]:
        """Of each version of a durable task what its code is, as in `onboard@2#5f3a…`, sorted."""
        functions = {known: fn for each in list(self._functions.values()) for known, fn in each.items()}
        if not functions:
            return []
        from queue_workflows.engine.registry.code_digest import code_name

        return sorted(name for known, fn in functions.items() if (name := code_name(known, fn)) is not None)

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
