"""The variables that a directory's `hooks.toml` makes for one attempt of a hook in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import psycopg

from queue_workflows.hooks.attempt.directories import HookPlaces
from queue_workflows.hooks.plugins.discovery import Hook
from queue_workflows.hooks.plugins.hooks_file import HooksFile, known_of_hook
from queue_workflows.repositories.runs.tree import PlaceInTree, RunTreeRepository
from queue_workflows.repositories.sql.claimed_job import ClaimedNodeJob

_OF_THE_TREE: Final = frozenset({"root_run", "root_run_dir", "depth"})
Ask = Callable[[Callable[[psycopg.Connection[Any]], Any]], Any]


class DirectoryEnvironment(NamedTuple):
    """The variables, and the directories that have to be there for them, beside that of the run."""

    variables: Mapping[str, str] = MappingProxyType({})
    needs: tuple[Path, ...] = ()


def directory_environment(
    file: HooksFile,
    *,
    hook: Hook,
    job: ClaimedNodeJob,
    places: HookPlaces,
    data_dir: Path,
    environ: Mapping[str, str],
    ask: Ask,
) -> DirectoryEnvironment:
    """What the file says, for this attempt; the database is asked only for what a template names."""
    if not file.env:
        return DirectoryEnvironment()
    tree = PlaceInTree(job.run_id, 0)
    if file.names & _OF_THE_TREE:
        tree = ask(lambda conn: RunTreeRepository(conn).place_of(job.run_id))
    root = places.beneath / str(tree.root)
    known: dict[str, Any] = {
        **known_of_hook(hook, data_dir=data_dir, environ=environ),
        "run_dir": str(places.run),
        "root_run_dir": str(root),
        "run": str(job.run_id),
        "root_run": str(tree.root),
        "depth": tree.depth,
        "attempt": job.attempt,
    }
    needs = (root,) if "root_run_dir" in file.names and root != places.run else ()
    return DirectoryEnvironment(file.environment(known), needs)
