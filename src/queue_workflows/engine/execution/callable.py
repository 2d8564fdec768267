"""A function, resolved and looked at once, ready to be called for any number of jobs.

How a function may be called is decided from its signature when it is registered or resolved, never by
trying: a `TypeError` from inside the function must not look like one from the call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from inspect import Parameter
from typing import Any, Final

from queue_workflows.engine.execution.context import JobContext
from queue_workflows.errors import ConfigurationError
from queue_workflows.repositories.claims.begins import NO_RULES, Rules

_BY_POSITION: Final = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Work:
    """What to call for a job: `call(job, ctx)` returns the result, or an awaitable of it if `is_async`.

    `survives_outage` says that it may go on without its lease while the database is away.
    """

    label: str
    call: Callable[[Any, JobContext], Any]
    is_async: bool
    returns_dict: bool = False
    survives_outage: bool = False
    rules: Rules = NO_RULES


@dataclass(frozen=True, slots=True)
class Shape:
    """What a function takes, seen by a caller that has some keywords to offer.

    `positional` are the parameters before those keywords, `wanted` the offered ones that it declares.
    """

    positional: tuple[Parameter, ...]
    more_positional: bool
    wanted: frozenset[str]
    is_async: bool


def look_at(fn: object, label: str, *, offered: frozenset[str]) -> Shape:
    """The shape of a function, or `ConfigurationError` saying why no such function can be a job's."""
    if inspect.isclass(fn):
        raise ConfigurationError(f"{label} is a class", advice="give a function, or a method of an instance")
    if not callable(fn):
        raise ConfigurationError(f"{label} is of type {type(fn).__name__}, which cannot be called")
    if _is(inspect.isgeneratorfunction, fn) or _is(inspect.isasyncgenfunction, fn):
        raise ConfigurationError(
            f"{label} is a generator function: calling it runs none of its body",
            advice="return a value instead of yielding",
        )
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"{label} does not say what it takes", advice="wrap it in a function of your own"
        ) from None
    _check_keywords(parameters, label, offered)
    takes_any = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters)
    named = frozenset(parameter.name for parameter in parameters)
    return Shape(
        positional=tuple(p for p in parameters if p.kind in _BY_POSITION and p.name not in offered),
        more_positional=any(p.kind is Parameter.VAR_POSITIONAL for p in parameters)
        and not any(p.kind in _BY_POSITION and p.name in offered for p in parameters),
        wanted=offered if takes_any else offered & named,
        is_async=_is(inspect.iscoroutinefunction, fn),
    )


def _check_keywords(parameters: list[Parameter], label: str, offered: frozenset[str]) -> None:
    given_by_keyword = ""
    for parameter in parameters:
        if parameter.name in offered:
            given_by_keyword = parameter.name
            if parameter.kind is Parameter.POSITIONAL_ONLY:
                raise ConfigurationError(
                    f"{label}: `{parameter.name}` is given by keyword",
                    advice=f"put `/` before `{parameter.name}`",
                )
        elif given_by_keyword and parameter.kind in _BY_POSITION and parameter.default is Parameter.empty:
            raise ConfigurationError(
                f"{label}: `{parameter.name}` stands after `{given_by_keyword}`, which is given by keyword",
                advice=f"put `{given_by_keyword}` last",
            )
        elif parameter.kind is Parameter.KEYWORD_ONLY and parameter.default is Parameter.empty:
            raise ConfigurationError(
                f"{label}: nobody gives it the keyword `{parameter.name}`",
                advice=f"give it a default; what it can have is {', '.join(sorted(offered))}",
            )


def _is(kind: Callable[[Any], bool], fn: Any) -> bool:
    """Whether a function is of a kind, or is an object with a `__call__` of that kind."""
    return kind(fn) or (not inspect.isroutine(fn) and kind(type(fn).__call__))
