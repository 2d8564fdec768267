"""Awaitable forms of a repository's verbs, each made of the verb itself: `afetch = awaitable(fetch)`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from queue_workflows.repositories.sql.connection import Statements


class OnStatements(Protocol):
    """A repository."""

    _sql: Statements


S = TypeVar("S", bound=OnStatements)
P = ParamSpec("P")
R = TypeVar("R")


def awaitable(verb: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, R]]:
    """The verb as a coroutine, for a repository on an asynchronous connection."""

    async def awaited(repository: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await repository._sql.awaited(lambda: verb(repository, *args, **kwargs))

    functools.update_wrapper(awaited, verb)
    awaited.__name__ = f"a{verb.__name__}"
    awaited.__qualname__ = f"{verb.__qualname__.removesuffix(verb.__name__)}{awaited.__name__}"
    awaited.__doc__ = f"`{verb.__name__}`, awaited, on an asynchronous connection."
    return awaited
