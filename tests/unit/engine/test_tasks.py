"""Ingest tasks: which functions can be one, what a name means, and what enqueueing through a task says."""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import pickle
import sys
import threading
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from support.rows.claimed_jobs import context, ingest_job

import queue_workflows
from queue_workflows.engine.registry import tasks
from queue_workflows.engine.registry.ingest_task import EnqueueOptions, IngestTask
from queue_workflows.engine.registry.tasks import TaskRegistry
from queue_workflows.errors import ConfigurationError
from queue_workflows.repositories import NewIngestJob


@pytest.fixture
def registry() -> TaskRegistry:
    return TaskRegistry()


def called(registry: TaskRegistry, fn: Any, **job: Any) -> Any:
    """What a job of the function returns."""
    registry.register("task", fn)
    work = registry.find("task")
    assert work is not None
    claimed = ingest_job(reason="why", args={"a": 1}, **job)
    result = work.call(claimed, context(claimed))
    return asyncio.run(result) if work.is_async else result


class Fetcher:
    def fetch(self, reason, args, *, ctx):
        return "method", reason, args, ctx.id

    def __call__(self, reason):
        return "call", reason


async def asynchronous(reason, args):
    return "async", reason, args


def with_own_option(reason, *, depth=3):
    return reason, depth


@functools.wraps(with_own_option)
def wrapped(*args, **kwargs):
    return "wrapped", args, kwargs


@pytest.mark.parametrize(
    ("fn", "returned"),
    [
        (lambda reason: reason, "why"),
        (lambda reason, args: (reason, args), ("why", {"a": 1})),
        (lambda reason, args=None: (reason, args), ("why", {"a": 1})),
        (lambda why, payload: (why, payload), ("why", {"a": 1})),
        (lambda reason, ctx: (reason, ctx.attempt), ("why", 2)),
        (lambda reason, args, *, ctx: (reason, args, ctx.id), ("why", {"a": 1}, 7)),
        (lambda reason, **given: (reason, sorted(given)), ("why", ["ctx"])),
        (lambda *given: given, ("why", {"a": 1})),
        (lambda reason, /, *, ctx=None: (reason, ctx.id), ("why", 7)),
        (with_own_option, ("why", 3)),
        (wrapped, ("wrapped", ("why",), {})),
        (functools.partial(with_own_option, depth=9), ("why", 9)),
        (Fetcher().fetch, ("method", "why", {"a": 1}, 7)),
        (Fetcher(), ("call", "why")),
        (asynchronous, ("async", "why", {"a": 1})),
        (functools.partial(asynchronous), ("async", "why", {"a": 1})),
    ],
)
def test_a_task_gets_what_it_declares(registry: TaskRegistry, fn: Any, returned: object):
    """fn(reason) or fn(reason, args), `ctx` if it declares it; functions, methods, partials, async."""
    assert called(registry, fn) == returned


def generator(reason):
    yield reason


async def async_generator(reason):
    yield reason


class GeneratorObject:
    def __call__(self, reason):
        yield reason


@pytest.mark.parametrize(
    ("fn", "says"),
    [
        (lambda: None, "takes no reason"),
        (lambda *, ctx: None, "takes no reason"),
        (lambda ctx: None, "takes no reason"),
        (lambda args: None, "`args` is the second parameter"),
        (lambda self, reason: None, "is a method"),
        (lambda reason, args, more: None, "nobody gives it `more`"),
        (lambda reason, args, more=3: None, "not clear what `more` is for"),
        (lambda reason, retries=3: None, "not clear what `retries` is for"),
        (lambda reason, *, key: None, "nobody gives it the keyword `key`"),
        (lambda ctx, reason: None, "`reason` stands after `ctx`"),
        (lambda reason, ctx, args: None, "`args` stands after `ctx`"),
        (lambda reason, ctx, /: None, "`ctx` is given by keyword"),
        (generator, "is a generator function"),
        (async_generator, "is a generator function"),
        (GeneratorObject(), "is a generator function"),
        (functools.partial(generator), "is a generator function"),
        (Fetcher, "is a class"),
        ("fetch", "cannot be called"),
        (min, "does not say what it takes"),
    ],
)
def test_what_cannot_be_a_task_is_refused_when_it_is_registered(registry: TaskRegistry, fn: Any, says: str):
    """A wrong signature shows at start-up, in words, and not as a TypeError of every job."""
    with pytest.raises(ConfigurationError) as caught:
        registry.register("task", fn)
    assert says in str(caught.value)
    assert "'task'" in str(caught.value)
    assert not registry.knows("task")


@pytest.mark.parametrize("name", ["", " a", "a\n", "a\x00", "a" * 600, "\u200b", "\udc80", 3, None])
def test_task_names_are_checked(registry: TaskRegistry, name: Any):
    """A name that no row could carry, or nobody could read, is refused."""
    with pytest.raises(ConfigurationError):
        registry.register(name, lambda reason: None)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"queue": "gpu"}, "reserved for node jobs"),
        ({"queue": "a b"}, "is no queue name"),
        ({"max_attempts": 0}, "max_attempts must be a whole number"),
        ({"backoff": -1}, "backoff must be seconds, a list of seconds or a function of the failures, not -1"),
        ({"backoff": [1, float("nan")]}, "not nan"),
        ({"backoff": []}, "backoff has no delay"),
        ({"backoff": "5"}, "not '5'"),
        ({"backoff": True}, "not True"),
        ({"timeout_s": 0}, "timeout_s must be a number of seconds"),
        ({"stall_timeout_s": "long"}, "stall_timeout_s must be a number of seconds"),
        ({"limit_key": "host:*"}, "contains `*`"),
    ],
)
def test_options_are_checked_where_they_are_written(
    registry: TaskRegistry, options: dict[str, Any], says: str
):
    """A slip in an option is not first seen when something is enqueued."""
    with pytest.raises(ConfigurationError, match="the ingest task 'fetch'") as caught:
        registry.register("fetch", lambda reason: None, **options)
    assert says in str(caught.value)


def test_a_name_means_one_function(registry: TaskRegistry):
    """A second function under the same name is refused, and the first stays."""
    first, second = Fetcher().fetch, lambda reason: None
    registry.register("fetch", first)
    registry.register("fetch", first)
    before = registry.find("fetch")
    with pytest.raises(ConfigurationError, match=r"'fetch' is .*Fetcher\.fetch already, so it cannot be"):
        registry.register("fetch", second)
    assert registry.find("fetch") is before
    assert (registry.knows("fetch"), registry.knows("other"), registry.find("other")) == (True, False, None)
    assert registry.names() == ["fetch"]


def test_two_closures_of_one_function_are_two_tasks(registry: TaskRegistry):
    """They share their name and line, but not what they do."""

    def make(number: int) -> Any:
        return lambda reason: number

    registry.register("fetch", make(1))
    with pytest.raises(ConfigurationError, match="already"):
        registry.register("fetch", make(2))


def test_a_module_imported_again_registers_its_tasks_again(
    registry: TaskRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Reloading a module, or running it as `__main__` as well, is no second function; the newest runs."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(tasks, "test_registry", registry, raising=False)
    source = """
from queue_workflows.engine.registry import tasks
@tasks.test_registry.task("fetch", queue="fetch")
def fetch(reason):
    return NUMBER
NUMBER = 1
"""
    path = tmp_path / "reloaded_tasks.py"
    path.write_text(source)
    module = importlib.import_module("reloaded_tasks")
    monkeypatch.setitem(sys.modules, "reloaded_tasks", module)
    path.write_text("# a line more\n" + source.replace("NUMBER = 1", "NUMBER = 2222"))
    importlib.reload(module)
    work = registry.find("fetch")
    assert work is not None
    assert work.call(ingest_job(), context(ingest_job())) == 2222
    exec(compile(path.read_text(), str(path), "exec"), {"__name__": "__main__"})
    assert registry.names() == ["fetch"]


@queue_workflows.ingest_task("test_tasks.documented", queue="load", max_attempts=9)
def documented(reason: str, args: dict[str, int]) -> int:
    """What it does."""
    return args["a"] + 1


@queue_workflows.ingest_task("test_tasks.awaitable", queue="load")
async def awaitable(reason):
    return reason


def test_a_decorated_function_stays_what_it_was():
    """Called, documented, inspected and pickled as before; and the process knows it by its name."""
    assert documented("why", {"a": 1}) == 2
    assert (documented.__name__, documented.__doc__) == ("documented", "What it does.")
    assert list(inspect.signature(documented).parameters) == ["reason", "args"]
    assert pickle.loads(pickle.dumps(documented)) is documented
    assert asyncio.run(awaitable("why")) == "why"
    assert tasks.current_tasks().knows("test_tasks.documented")
    assert repr(documented) == "<ingest task 'test_tasks.documented': unit.test_tasks.documented>".replace(
        "unit.test_tasks", __name__
    )


def test_a_task_can_be_registered_under_another_name(registry: TaskRegistry):
    """The same function for jobs that an older release enqueued."""
    again = registry.register("older_name", documented)
    assert again("why", {"a": 2}) == 3
    work = registry.find("older_name")
    assert work is not None
    assert work.call(ingest_job(), context(ingest_job())) == 2


def test_the_decorator_without_a_name_says_what_it_needs():
    """The commonest slip, `@ingest_task` alone, is answered with what to write."""
    with pytest.raises(ConfigurationError, match=r'write @ingest_task\("name", queue=…\)'):
        queue_workflows.ingest_task(lambda reason: None)  # type: ignore[arg-type]


def test_a_job_of_a_task_has_the_options_of_the_task():
    """What the call says beats what the registration said, and None says nothing."""
    job = documented.job({"a": 1}, dedupe_key="k", max_attempts=None, queue="fetch")
    assert job == NewIngestJob(
        task_name="test_tasks.documented", queue="fetch", args={"a": 1}, dedupe_key="k", max_attempts=9
    )
    assert documented.job().queue == "load"


def test_a_task_without_a_queue_needs_one(registry: TaskRegistry):
    """Nothing is guessed."""
    task = registry.register("homeless", lambda reason: None)
    assert task.job(queue="fetch").queue == "fetch"
    with pytest.raises(ConfigurationError, match="has no queue of its own"):
        task.job()


def test_the_options_are_those_of_a_job():
    """What can be said of a job can be said through its task."""
    of_a_job = {field.name for field in fields(NewIngestJob)} - {"task_name", "args"}
    assert set(EnqueueOptions.__annotations__) == of_a_job


def test_registering_from_many_threads_loses_none(registry: TaskRegistry):
    """Plugins may be imported on threads."""
    start = threading.Barrier(8)

    def register(number: int) -> None:
        start.wait()
        for each in range(50):
            registry.register(f"{number}.{each}", lambda reason: None)

    threads = [threading.Thread(target=register, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(registry.names()) == 400


def test_the_type_of_a_task_is_public():
    """A host app can annotate with it."""
    assert queue_workflows.IngestTask is IngestTask
