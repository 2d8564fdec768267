"""Node modules: from a name in a row to the `run` function that it stands for.

The host app's resolver is asked first. After it the package of `set_node_module_package` is the allow-list: a
name is checked to be a path of public identifiers and is then looked for below that package only, so no row
can have anything else imported. A name that leads nowhere is no error: the job waits for a worker that has
the module. A module that is there but broken is its job's failure.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, NoReturn

from queue_workflows.config import EngineConfig
from queue_workflows.errors import ConfigurationError, NodeModuleError, PayloadError, QwfError
from queue_workflows.jobs.context import JobContext
from queue_workflows.jobs.work import Work, look_at
from queue_workflows.repositories import fields as check
from queue_workflows.repositories.begins import Rules

UNKNOWN_MODULE: Final = "unknown_module"
_OFFERED: Final = frozenset({"ctx", "status_callback", "model"})
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*(?:\.[A-Za-z][A-Za-z0-9_]*)*", re.ASCII)
_LONGEST: Final = 512
_SHAPE: Final = (
    "a node module has run(inputs, …); of the keywords ctx, status_callback, model it gets those it declares"
)


class ModuleResolver:
    """Finds node modules, and remembers how the `run` it found is to be called."""

    def __init__(self, *, resolver: Callable[[str], Any] | None = None, package: str | None = None) -> None:
        self._resolver = resolver
        self._package = package
        self._seen: dict[str, tuple[object, Work]] = {}

    @classmethod
    def of(cls, config: EngineConfig) -> ModuleResolver:
        """As the host app configured it."""
        return cls(resolver=config.node_resolver, package=config.node_module_package)

    def find(self, name: str | None) -> Work | None:
        """How to run jobs of a module; None if it is not known here.

        A module that cannot be imported or has no usable `run` is found all the same: running it fails,
        saying so.
        """
        if name is None:
            return None
        label = f"the node module {name[:80]!r}"
        try:
            found = self._look_up(name, label)
            if found is None:
                return None
            run = getattr(found, "run", None) or (found if callable(found) else None)
            seen = self._seen.get(name)
            if seen is None or seen[0] is not run:
                seen = self._seen[name] = (run, replace(_work(run, label), rules=_rules(found, label)))
            return seen[1]
        except QwfError as broken:
            return Work(label, _raiser(broken), is_async=False, returns_dict=True)

    def _look_up(self, name: str, label: str) -> object | None:
        if self._resolver is not None:
            try:
                found: object | None = self._resolver(name)
            except Exception as exc:
                raise NodeModuleError(
                    f"the node resolver raised {type(exc).__name__} for {name[:80]!r}",
                    module=name,
                    advice="a resolver returns None for what it does not know",
                ) from exc
            if found is not None:
                return found
        if self._package is None or len(name) > _LONGEST or not _NAME.fullmatch(name):
            return None
        return _import_below(self._package, name, label)


def _import_below(package: str, name: str, label: str) -> object | None:
    full = f"{package}.{name}"
    try:
        return importlib.import_module(full)
    except ModuleNotFoundError as missing:
        where = missing.name or ""
        if where.startswith(f"{package}.") and (full == where or full.startswith(f"{where}.")):
            return None
        raise _not_importable(label, full, missing) from missing
    except (Exception, SystemExit) as exc:
        raise _not_importable(label, full, exc) from exc


def _not_importable(label: str, full: str, exc: BaseException) -> NodeModuleError:
    return NodeModuleError(f"{label} cannot be imported: {type(exc).__name__} in {full}", module=full)


def _work(run: Any, label: str) -> Work:
    if run is None:
        raise ConfigurationError(f"{label} has no function `run`", advice=_SHAPE)
    shape = look_at(run, f"`run` of {label}", offered=_OFFERED)
    required = [p.name for p in shape.positional if p.default is p.empty]
    if not shape.positional and not shape.more_positional:
        raise ConfigurationError(f"`run` of {label} takes no inputs", advice=_SHAPE)
    if len(required) > 1:
        raise ConfigurationError(f"`run` of {label}: nobody gives it `{required[1]}`", advice=_SHAPE)
    return Work(label, _caller(run, shape.wanted), shape.is_async, returns_dict=True)


def _rules(found: object, label: str) -> Rules:
    """What the module says beside its `run`: MAX_CRASHES and AT_MOST_ONCE."""
    crashes, once = getattr(found, "MAX_CRASHES", None), getattr(found, "AT_MOST_ONCE", False)
    try:
        if crashes is not None:
            check.whole("MAX_CRASHES", crashes, 1, check.SMALLINT_MAX)
        return Rules(crashes, check.flag("AT_MOST_ONCE", once))
    except PayloadError as refused:
        raise ConfigurationError(f"{label}: {refused.message}", advice=refused.advice) from None


def _caller(run: Callable[..., Any], wanted: frozenset[str]) -> Callable[[Any, JobContext], Any]:
    def call(job: Any, ctx: JobContext) -> Any:
        given = {"ctx": ctx, "status_callback": ctx.progress, "model": ctx.model}
        return run(job.inputs, **{name: given[name] for name in wanted})

    return call


def _raiser(broken: QwfError) -> Callable[[Any, JobContext], NoReturn]:
    def call(_job: Any, _ctx: JobContext) -> NoReturn:
        raise broken

    return call
