"""Versions of durable functions: the code that jobs in the middle of it go on with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from queue_workflows.engine.execution.callable import Work
from queue_workflows.engine.registry.ingest_task import checked_name
from queue_workflows.errors import ConfigurationError


def older_versions(
    label: str,
    work: Work,
    version: str | None,
    versions: Mapping[str, Any] | None,
    work_of: Callable[[Any], Work],
) -> dict[str, Work]:
    """The work of the versions before this one, as checked; `label` is what errors call it."""
    if work.rules.at_most_once:
        raise ConfigurationError(f"{label}: what is durable begins again, and at_most_once forbids that")
    older = {}
    for each, fn in (versions or {}).items():
        one = work_of(fn)
        if one.is_async is not work.is_async:
            raise ConfigurationError(f"{label}: its versions are all async, or none is")
        older[checked_name(each) if each else each] = one
    if older and version is None:
        raise ConfigurationError(f"{label}: it has versions before it, and none itself")
    if version is not None:
        checked_name(version)
    return older
