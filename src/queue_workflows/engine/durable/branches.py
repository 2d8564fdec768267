"""Branches of an async durable function: which task makes a call, by where that task was begun.

Tasks that run beside each other come to their calls in an order that another attempt need not repeat. So each
task has a path, given when it is created: the name of its coroutine, and which one of that name its parent
has begun. A call in a task carries that path in its name; the function itself has none.
"""

from __future__ import annotations

import asyncio
import re
import sys
from asyncio import tasks
from collections import Counter
from collections.abc import Coroutine
from contextvars import ContextVar, Token, copy_context
from hashlib import blake2b
from types import FrameType
from typing import Any, Final
from weakref import ref

from queue_workflows.engine.durable.connections import CURRENT
from queue_workflows.errors import PayloadError

# So far above a new task is what has asked for it, where that is the standard library's.
_FRAMES: Final = 6
_AS_COMPLETED: Final = ("as_completed", "_AsCompletedIterator")
_NAME_LENGTH: Final = 40
_PATH_LENGTH: Final = 200
# What a name must not end with, as that says which branch a call is of.
_MARK: Final = re.compile(r" \[[^\[\]]* \S+\]$")


class Branch:
    """A task of a durable function, and how many others of each name it has begun."""

    def __init__(self, path: str = "", function: Branch | None = None) -> None:
        self.path = path
        self.function = function or self
        # How many tasks of the function have not ended, beside its own.
        self.alive = 0
        self._begun: Counter[str] = Counter()
        self._task: ref[asyncio.Task[Any]] | None = None

    def begun(self, coroutine: Coroutine[Any, Any, Any]) -> Branch:
        """A task of this one, for that coroutine."""
        name = str(getattr(coroutine, "__name__", type(coroutine).__name__))[:_NAME_LENGTH]
        self._begun[name] += 1
        own = f"{name} {self._begun[name]}"
        path = f"{self.path} / {own}" if self.path else own
        if len(path) > _PATH_LENGTH:
            path = f"branch {blake2b(path.encode(), digest_size=12).hexdigest()}"
        return Branch(path, self.function)

    def ends_one(self) -> None:
        """A task of the function has ended."""
        self.alive -= 1

    def runs_in(self, task: asyncio.Task[Any]) -> bool:
        """Whether this is the branch of that task; it is of the first one that asks."""
        if self._task is None:
            self._task = ref(task)
        return self._task() is task


_HERE: Final[ContextVar[Branch | None]] = ContextVar("qwf_branch", default=None)


def begin_function() -> Token[Branch | None]:
    """What runs here is a durable function itself; the tasks that it creates are its branches."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop.get_task_factory(), _BranchingTasks):
        loop.set_task_factory(_BranchingTasks(loop.get_task_factory()))
    function, task = Branch(), asyncio.current_task()
    if task is not None:
        function.runs_in(task)
    return _HERE.set(function)


def end_function(token: Token[Branch | None]) -> None:
    """The function has ended."""
    _HERE.reset(token)


def path_here() -> str:
    """The path of the task that calls; the function's own is empty."""
    branch = _HERE.get()
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    if branch is None or task is None or not branch.runs_in(task):
        raise RuntimeError(
            "ctx was called by something that is no task of this function's, so that another attempt could"
            " not tell which call it is: call it in the function, or in tasks that the function creates"
        )
    return branch.path


def is_alone() -> bool:
    """Whether the function has no branch that has not ended, so that nothing of it runs beside this."""
    branch = _HERE.get()
    return branch is None or not branch.function.alive


def name_in(path: str, name: str) -> str:
    """The name of a call with the path of its task."""
    return f"{name} [{path}]" if path else name


def check_unmarked(name: str) -> None:
    """Refuse a name that another task's call may have."""
    if _MARK.search(name):
        raise PayloadError(f"the name {name!r:.80} ends as that of a call in a branch does", path="name")


def _check_order(coroutine: Any) -> None:
    """Refuse branches that are begun in an order of chance: `as_completed` makes a set of its coroutines.

    Calls of `ctx` have their place before they are awaited.
    """
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_FRAMES):
        if frame is None:
            return
        code = frame.f_code
        if code.co_filename == tasks.__file__ and code.co_qualname.startswith(_AS_COMPLETED):
            break
        frame = frame.f_back
    else:
        return
    if getattr(coroutine, "__qualname__", "").startswith("AsyncDurableContext."):
        return
    coroutine.close()
    raise RuntimeError(
        "asyncio.as_completed begins its coroutines in any order, so that another attempt could not tell"
        " these branches: give it tasks, as in [asyncio.create_task(branch(n)) for n in …]"
    )


class _BranchingTasks:
    """Creates the tasks of an event loop as before, and those of a durable function with their paths.

    What the function of a step creates is that step's own, and counts for nothing.
    """

    def __init__(self, before: Any) -> None:
        self._before = before

    def __call__(
        self, loop: asyncio.AbstractEventLoop, coroutine: Any, /, **options: Any
    ) -> asyncio.Future[Any]:
        branch = _HERE.get()
        if branch is not None and CURRENT.get() is None:
            _check_order(coroutine)
            given = options.get("context")
            context = copy_context() if given is None else given.copy()
            context.run(_HERE.set, branch.begun(coroutine))
            options["context"] = context
        task = self._created(loop, coroutine, options)
        if branch is not None and CURRENT.get() is None:
            function = branch.function
            function.alive += 1
            task.add_done_callback(lambda _: function.ends_one())
        return task

    def _created(
        self, loop: asyncio.AbstractEventLoop, coroutine: Any, options: dict[str, Any]
    ) -> asyncio.Future[Any]:
        if self._before is None:
            return asyncio.Task(coroutine, loop=loop, **options)
        task: asyncio.Future[Any] = self._before(loop, coroutine, **options)
        return task
