"""What runs and jobs have on a disk of this machine, and until when.

    {data}/runs/{run}/                what a run of hooks wrote        (made by `hooks/attempt`)
    {data}/workspaces/{run}/          a run's workspace                (made by `host/directories`)
    {data}/workspaces/ingest-{id}-{when it was made}/    that of an ingest job: an id alone comes again in
                                                         another database

What hooks wrote is the product of their run: it stays for ever unless the setting `run_files_days` says how
long. The others are scratch, and each machine removes what it has, as the database prunes history:

    its row …                                … and the directory
    is there, and not over for long enough   stays
    is there, and about to be pruned         goes
    is not there: pruned, or never known     goes when nothing in it has changed for that long and a day:
                                             it may be another database's, or this one was restored
    whatever it is, while somebody holds it  stays
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg

from queue_workflows import clock as time
from queue_workflows.engine.execution.workspace_name import ingest_job_of
from queue_workflows.errors import ConfigurationError
from queue_workflows.host.directories.data import REMOVED, empty, last_change, opened, take_away
from queue_workflows.host.directories.workspaces import WORKSPACES
from queue_workflows.repositories.retention import PruningRepository
from queue_workflows.settings import DAY_S, Settings

_log = logging.getLogger(__name__)

RUNS: Final = "runs"
# Beyond the time for which directories are kept, for what the database does not know.
UNKNOWN_KEPT_S: Final = DAY_S
_AT_ONCE: Final = 500


@dataclass
class Cleared:
    """What one sweep removed, and what of that could not be deleted, each with the reason."""

    removed: list[Path] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


def has_places(settings: Settings) -> bool:
    """Whether there ever was something on this machine to be removed one day."""
    kinds = (WORKSPACES,) if settings.run_files_days is None else (RUNS, WORKSPACES)
    return any((settings.data_dir / kind).is_dir() for kind in kinds)


def clear(connection: psycopg.Connection[Any], settings: Settings) -> int:
    """Remove what the retention of these settings says, and say so in the log; how many directories."""
    cleared = clear_by(connection, settings)
    if cleared.removed:
        _log.info("removed what %d runs and jobs left on this machine", len(cleared.removed))
    for left in cleared.left:
        _log.warning("a directory of the past cannot be deleted: %s", left)
    return len(cleared.removed)


def clear_by(connection: psycopg.Connection[Any], settings: Settings, *, dry_run: bool = False) -> Cleared:
    """Remove what these settings say."""
    days = settings.run_files_days
    return clear_places(
        connection,
        settings.data_dir,
        kept_s=settings.retention_days * DAY_S,
        files_kept_s=None if days is None else days * DAY_S,
        ttl_s=settings.dedupe_ttl_days * DAY_S,
        dry_run=dry_run,
    )


def clear_places(
    connection: psycopg.Connection[Any],
    data_dir: Path,
    *,
    kept_s: float,
    files_kept_s: float | None,
    ttl_s: float,
    dry_run: bool = False,
    now: float | None = None,
) -> Cleared:
    """Remove from this machine what runs and jobs left that are over for `kept_s`.

    What hooks wrote is kept for `files_kept_s`, or for ever if that is None. The connection is in autocommit.
    `ttl_s` is how long a dedupe key outlives its run, and the run's places with it. With `dry_run` nothing is
    removed, and `removed` is what would be.
    """
    cleared = Cleared()
    today = time.time() if now is None else now
    for kind, kept in ((RUNS, files_kept_s), (WORKSPACES, kept_s)):
        if kept is None:
            continue
        repository = PruningRepository(connection, kept_s=kept, ttl_s=ttl_s)
        unchanged_since = today - kept - UNKNOWN_KEPT_S
        with suppress(FileNotFoundError), opened(data_dir.absolute(), kind, makes=False) as above:
            path = data_dir.absolute() / kind
            for names in _parts(_ours(above, kind)):
                for name in _to_go(repository, path, names, unchanged_since):
                    if dry_run or take_away(above, name):
                        cleared.removed.append(path / name)
            if not dry_run:
                cleared.left += _emptied(data_dir.absolute(), kind)
    return cleared


def _ours(above: int, kind: str) -> list[str]:
    """Hooks run in directories of runs alone; what else somebody put beside them is theirs."""
    with os.scandir(above) as entries:
        names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    return sorted(name for name in names if (_run_of(name) if kind == RUNS else not name.startswith(".")))


def _parts(names: Sequence[str]) -> Iterator[Sequence[str]]:
    return (names[start : start + _AT_ONCE] for start in range(0, len(names), _AT_ONCE))


def _to_go(
    repository: PruningRepository, path: Path, names: Sequence[str], unchanged_since: float
) -> Iterator[str]:
    known = _standing(repository, names)
    for name in names:
        if (is_old := known.get(name)) is None:
            with suppress(OSError):
                is_old = last_change(path / name, since=unchanged_since) <= unchanged_since
        if is_old:
            yield name


def _standing(repository: PruningRepository, names: Collection[str]) -> dict[str, bool]:
    """The names that the database knows, and whether each is to go."""
    runs = {run_id: name for name in names if (run_id := _run_of(name)) is not None}
    ingest = {job: name for name in names if (job := ingest_job_of(name)) is not None}
    found = {runs[run_id]: old for run_id, old in repository.standing_runs(runs).items()} if runs else {}
    if ingest:
        standing = repository.standing_ingest([job_id for job_id, _ in ingest])
        found |= {ingest[job]: old for job, old in standing.items() if job in ingest}
    return found


def _run_of(name: str) -> uuid.UUID | None:
    with suppress(ValueError):
        run_id = uuid.UUID(name)
        return run_id if str(run_id) == name else None
    return None


def _emptied(data_dir: Path, kind: str) -> list[str]:
    """Also what an earlier sweep took away and was stopped while deleting."""
    try:
        with opened(data_dir, kind, REMOVED, makes=False) as removed:
            return [f"{data_dir / kind / REMOVED}/{each}" for each in empty(removed)]
    except FileNotFoundError:
        return []
    except ConfigurationError as wrong:
        return [str(wrong)]
