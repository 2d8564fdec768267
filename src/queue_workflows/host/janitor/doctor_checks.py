"""What `qwf doctor` says of the locks of this machine; a free one is taken for a moment, nothing changes."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from queue_workflows.db.doctor.findings import Check, Status, failed
from queue_workflows.errors import ConfigurationError, ExitCode
from queue_workflows.host.janitor.decisions import Action, Verdict, tidy
from queue_workflows.host.janitor.resources import ResourceKind
from queue_workflows.host.locks.flock import usable
from queue_workflows.host.locks.owner_note import holders_of_removed

_NAMED: Final = 3


def check_locks(directory: Path, kinds: Sequence[ResourceKind], *, now: float | None = None) -> list[Check]:
    """Whether the directory can be used, what is held for too long, and what is left lying about."""
    usable = _check_directory(directory)
    if usable.status is Status.FAIL:
        skipped = [Check(name, Status.SKIP, "needs the directory of the locks") for name in ("held", "stale")]
        return [usable, *skipped]
    verdicts = tidy(directory, (), kinds, now=time.time() if now is None else now, dry=True)
    return [usable, _check_held(verdicts, holders_of_removed(directory)), _check_stale(verdicts)]


def _check_directory(directory: Path) -> Check:
    data = {"directory": str(directory)}
    advice = "name a directory of this machine in QWF_LOCK_DIR, where all that share things can write"
    try:
        usable(directory)
    except ConfigurationError as exc:
        return failed("lock directory", exc)
    there = directory
    while not os.path.lexists(there):
        there = there.parent
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        what = f"{there} is no directory that this user can write to"
        return Check("lock directory", Status.FAIL, what, advice, ExitCode.CONFIGURATION, data)
    found = str(directory) if there == directory else f"{directory}, made with the first lock"
    return Check("lock directory", Status.OK, found, data=data)


def _check_held(verdicts: Sequence[Verdict], removed: Mapping[str, int]) -> Check:
    held = [one for one in verdicts if one.age_s is not None]
    long = [one for one in held if one.deed is Action.FLAG]
    data = {"held": [asdict(one) for one in held], "removed": dict(removed)}
    if removed:
        advice = (
            "let them end; until then others may have what they have: nobody is to take away held lock files,"
            " or their directory"
        )
        said = [
            f"{file}, which is not there any more, by process {pid}" for file, pid in sorted(removed.items())
        ]
        return Check("held", Status.WARN, _some(said), advice, data=data)
    if not long:
        return Check("held", Status.OK, f"{len(held)} held, none for too long", data=data)
    advice = "see what it is at, and end it if it hangs: its lock is free then, and nobody else frees it"
    said = [f"{one.name} by process {one.pid or '?'}: {one.why}" for one in long]
    return Check("held", Status.WARN, _some(said), advice, data=data)


def _check_stale(verdicts: Sequence[Verdict]) -> Check:
    stale = [one for one in verdicts if one.deed is Action.TIDY]
    odd = [one for one in verdicts if one.deed is Action.SKIP]
    data = {"stale": [asdict(one) for one in stale], "unusable": [asdict(one) for one in odd]}
    if odd:
        advice = "see which process put it there; nothing is ended or removed in doubt"
        return Check("stale", Status.WARN, _some([one.why for one in odd]), advice, data=data)
    if stale:
        advice = "`qwf janitor --once` removes them"
        return Check("stale", Status.WARN, f"lock files that nobody needs: {len(stale)}", advice, data=data)
    return Check("stale", Status.OK, "no lock file is left lying about", data=data)


def _some(said: Sequence[str]) -> str:
    more = f"; and {len(said) - _NAMED} more" if len(said) > _NAMED else ""
    return "; ".join(said[:_NAMED]) + more
