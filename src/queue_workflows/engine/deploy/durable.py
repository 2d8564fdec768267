"""Durable functions in flight: versions that the code lacks, other code, and what stores no steps now."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from queue_workflows.config import EngineConfig
from queue_workflows.engine.deploy.findings import Finding, Level
from queue_workflows.engine.durable.function import before_versions, version_name
from queue_workflows.engine.registry.node_modules import ModuleResolver
from queue_workflows.engine.registry.tasks import TaskRegistry
from queue_workflows.errors import QwfError
from queue_workflows.repositories.durable.steps import ANY_VERSION
from queue_workflows.repositories.reports.open_work import InFlight, OpenWorkRepository, Spawned
from queue_workflows.repositories.sql.families import INGEST


def functions_in_flight(
    open_work: OpenWorkRepository, tasks: TaskRegistry, config: EngineConfig, queues: Collection[str]
) -> Iterator[Finding]:
    """Open jobs that would do stored steps again, wait for code that is gone, or go on with other code.

    What the code does not have at all, and queues that are not of this host app, are told of otherwise. Of
    node modules nobody says what their code was.
    """
    modules, codes = ModuleResolver.of(config), _Codes(open_work.code_names(), tasks.code_names())
    for one in open_work.durable():
        if one.family == INGEST.name:
            is_known, versions = tasks.knows(one.name) and one.queue in queues, tasks.versions_of(one.name)
        else:
            is_known, versions = _is_usable(modules, one.name), modules.versions_of(one.name)
        if is_known:
            yield from _of_function(one, versions, codes)
    for spawned in open_work.spawned():
        if spawned.queue in queues and not tasks.knows(spawned.name):
            yield _of_children(spawned)


def _is_usable(modules: ModuleResolver, name: str) -> bool:
    """Whether a module is there and can be run; of one that is broken it is told as such."""
    try:
        return modules.look(name) is not None
    except QwfError:
        return False


class _Codes:
    """What the code of functions was where workers last said so, beside what it is now."""

    def __init__(self, before: Sequence[Sequence[str]], now: Sequence[str]) -> None:
        self._before = before
        self._now = now

    def has_changed(self, before: str, now: str) -> bool:
        """Whether a version of a task is known to have been other code than it is, by what it is called."""
        was = next((found for names in self._before if (found := _digests(names, before))), set())
        has = _digests(self._now, now)
        return bool(was and has) and was.isdisjoint(has)


def _digests(names: Sequence[str], known: str) -> set[str]:
    return {digest for name, _, digest in (one.rpartition("#") for one in names) if name == known}


def _of_function(
    one: InFlight, versions: tuple[str | None, Collection[str]] | None, codes: _Codes
) -> Iterator[Finding]:
    if versions is None:
        yield _of(
            Level.BREAKS,
            one.name,
            one,
            "the code says of it as of no durable function: its jobs would begin at the first line and do"
            " every stored step again",
        )
        return
    if one.is_at_a_round or one.version == ANY_VERSION:
        return
    current, older = versions
    began = one.version
    if began is None and current is not None:
        began = before_versions(older)
        if began is None:
            yield _of(
                Level.CHANGES,
                one.name,
                one,
                f"its jobs began before it had a version, and go on with {current!r} as their own code",
            )
            return
    name = one.name if began is None else version_name(one.name, began)
    if began != current and began not in older:
        yield _of(Level.BREAKS, name, one, _lacks(one, current))
    elif codes.has_changed(one.name if one.version is None else name, name):
        yield _of(
            Level.CHANGES,
            name,
            one,
            "its code is not what it was, under the same version, and jobs are in the middle of it: they fail"
            " where it takes another way. Give it another version, with the code before in its versions",
        )


def _lacks(one: InFlight, current: str | None) -> str:
    if one.version is None:
        return (
            "its jobs began before it had a version, and of several before this one none is theirs: "
            'say so by versions={"": …}, or they would be put on hold'
        )
    which = "of no version" if current is None else f"of version {current!r}"
    return (
        f"the code, which is {which}, does not have this one, under which its jobs began, as where a deploy"
        " is taken back: they would be put on hold"
    )


def _of_children(spawned: Spawned) -> Finding:
    return Finding(
        Level.BREAKS,
        "durable",
        spawned.name,
        f"durable functions ({spawned.parents}) have spawned jobs of this task, which the code does not have:"
        " they would wait for these",
        spawned.jobs,
        example=f"ingest:{spawned.first}",
    )


def _of(level: Level, name: str, one: InFlight, says: str) -> Finding:
    return Finding(level, "durable", name, says, one.jobs, example=f"{one.family}:{one.first}")
