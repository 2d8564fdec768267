"""The awaitable form of a verb, its name with an `a` in front, takes what the verb takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_args

import pytest

import queue_workflows
from queue_workflows import IngestTask

VERBS = [
    *(
        (getattr(queue_workflows, name), getattr(queue_workflows, f"a{name}"))
        for name in queue_workflows.__all__
        if f"a{name}" in queue_workflows.__all__
    ),
    (IngestTask.enqueue, IngestTask.aenqueue),
    (IngestTask.enqueue_many, IngestTask.aenqueue_many),
]
# Of a caller that blocks its thread: an engine to look by, and how it waits.
OF_ITS_OWN = {"wait_for": {"engine", "now", "sleep"}}


def words(verb: Callable[..., Any]) -> set[str]:
    """The names of what may be said to it; those of a dict of options one by one."""
    found = set[str]()
    for name, parameter in inspect.signature(verb).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            unpacked = eval(parameter.annotation, verb.__globals__)
            found |= get_args(unpacked)[0].__annotations__.keys()
        else:
            found.add(name)
    return found


@pytest.mark.parametrize(("verb", "form"), VERBS, ids=lambda verb: verb.__qualname__)
def test_it_takes_what_the_verb_takes(verb: Callable[..., Any], form: Callable[..., Any]) -> None:
    """Every argument, under its name."""
    assert words(form) == words(verb) - OF_ITS_OWN.get(verb.__name__, set())
