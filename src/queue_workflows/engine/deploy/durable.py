"""Durable functions in flight: versions that the code lacks, and tasks that store no steps any more."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from queue_workflows.engine.deploy.findings import Finding, Level
from queue_workflows.engine.durable.function import before_versions, version_name
from queue_workflows.engine.registry.tasks import TaskRegistry
from queue_workflows.repositories.durable.steps import ANY_VERSION
from queue_workflows.repositories.reports.open_work import InFlight


def functions_in_flight(
    found: Iterable[InFlight], tasks: TaskRegistry, queues: Collection[str]
) -> Iterator[Finding]:
    """Open jobs that would do stored steps again, wait for code that is gone, or go on with other code.

    Whether the code of a version is what it was is not seen. Tasks that the code does not have, and queues
    that are not of this host app, are told of otherwise.
    """
    for one in found:
        if not tasks.knows(one.name) or one.queue not in queues:
            continue
        versions = tasks.versions_of(one.name)
        if versions is None:
            yield _of(
                Level.BREAKS,
                one.name,
                one,
                "the code says of it as of no durable function: its jobs would begin at the first line and do"
                " every stored step again",
            )
        elif not one.is_at_a_round and one.version != ANY_VERSION:
            yield from _of_version(one, *versions)


def _of_version(one: InFlight, current: str | None, older: Collection[str]) -> Iterator[Finding]:
    if one.version == current:
        return
    began = one.version if one.version is not None else before_versions(older)
    if began is None:
        yield _of(
            Level.CHANGES,
            one.name,
            one,
            f"its jobs began before it had a version, and go on with {current!r} as their own code",
        )
    elif began not in older:
        name = version_name(one.name, began)
        says = "the code does not have this version, under which its jobs began: they would be put on hold"
        if one.version is None:
            says = (
                "its jobs began before it had a version, and of several before this one none is theirs: "
                'say so by versions={"": …}, or they would be put on hold'
            )
        yield _of(Level.BREAKS, name, one, says)


def _of(level: Level, name: str, one: InFlight, says: str) -> Finding:
    return Finding(level, "durable", name, says, one.jobs, example=f"ingest:{one.first}")
