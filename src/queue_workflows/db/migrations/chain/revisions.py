"""A chain's revisions as they lie on disk: read, refused where they make no chain, and found by name."""

from __future__ import annotations

import re
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from alembic.script import Script, ScriptDirectory
from alembic.script.revision import RevisionMap
from alembic.util import CommandError

from queue_workflows.db.migrations.chain.chains import Chain, alembic_config
from queue_workflows.errors import ConfigurationError, QwfError, UnknownRevision

_MEND: Final = "mend the file; --debug shows the traceback"


def load_script(chain: Chain) -> ScriptDirectory:
    """The chain's revisions; a file that cannot be one is named before anything is done."""
    script = ScriptDirectory.from_config(alembic_config(chain))
    read = [_read(script, path) for path in Script._list_py_dir(script, chain.versions)]
    revisions = [revision for revision in read if revision is not None]
    _refuse_doubles(revisions)
    _refuse_gaps(revisions)
    script.revision_map = RevisionMap(lambda: revisions)
    try:
        _ = script.revision_map.heads
    except Exception as broken:
        # A circle, or a depends_on that leads nowhere.
        raise ConfigurationError(
            f"the revisions in {chain.versions} make no chain: {_words(broken)}",
            advice="mend their `down_revision` and `depends_on`",
        ) from broken
    return script


def _read(script: ScriptDirectory, path: Path) -> Script | None:
    """One file; None for what is no Python source. It runs what it imports, so anything may be raised."""
    try:
        revision = Script._from_path(script, path)
    except (Exception, SystemExit) as broken:
        raise ConfigurationError(
            f"the revision {fault_in(path, broken) or f'{path}: {_words(broken)}'}", advice=_MEND
        ) from broken
    if revision is not None and not callable(getattr(revision.module, "upgrade", None)):
        raise ConfigurationError(f"the revision {path} has no upgrade()", advice=_MEND)
    return revision


def fault_in(path: Path, error: BaseException) -> str | None:
    """Where in a revision's file an error arose, and what it says; None for what is no fault of the file."""
    if isinstance(error, QwfError):
        return None
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).absolute() == path.absolute()]
    return f"{path}, line {lines[-1]}: {_words(error)}" if lines else None


def _words(broken: BaseException) -> str:
    """What Alembic says in a sentence as it is, everything else with its kind."""
    if isinstance(broken, CommandError):
        return str(broken)
    return " ".join(f"{type(broken).__name__}: {broken}".split())


def _refuse_doubles(revisions: Sequence[Script]) -> None:
    """Of two files with one id, one would be lost without a word."""
    seen: dict[str, Script] = {}
    for one in revisions:
        other = seen.setdefault(one.revision, one)
        if other is not one:
            raise ConfigurationError(
                f"revision {one.revision} is there twice: {other.path} and {one.path}",
                advice="give one of the two files another `revision`, and let it follow the other",
            )


def _refuse_gaps(revisions: Sequence[Script]) -> None:
    known_ids = {one.revision for one in revisions}
    for one in revisions:
        missing = sorted(set(one._versioned_down_revisions) - known_ids)
        if missing:
            raise ConfigurationError(
                f"the revision {one.path} follows {', '.join(missing)}, which is not there",
                advice="bring the missing file back, or mend `down_revision`",
            )


def heads(script: ScriptDirectory) -> list[str]:
    """The revisions that nothing follows or depends on: what the version table names at the end."""
    _ = script.revision_map.heads
    return sorted(script.revision_map._real_heads)


def newest(script: ScriptDirectory) -> str:
    """The head as people name it; a host chain may have several."""
    return ", ".join(heads(script)) or "nothing"


def refuse_two_heads(chain: Chain, script: ScriptDirectory) -> None:
    """Two heads come of two branches that were merged in git alone; labelled branches are meant to be so."""
    ends = [script.get_revision(head) for head in heads(script)]
    labels = [label for end in ends for label in end.branch_labels]
    meant = all(end.branch_labels for end in ends) and len(labels) == len(set(labels))
    if len(ends) < 2 or meant:
        return
    named = ", ".join(f"{end.revision} ({Path(end.path).name})" for end in ends)
    raise ConfigurationError(
        f"the {chain.name} chain has {len(ends)} heads: {named}",
        advice=f"join them with `qwf db revision --chain {chain.name} --merge`; `qwf db upgrade heads"
        f" --chain {chain.name}` applies them as they are",
    )


def subject(revision: Script) -> str:
    """A revision's one-line subject, without the full stop."""
    lines = (revision.doc or "").strip().splitlines()
    return lines[0].rstrip(".") if lines else revision.revision


def known(script: ScriptDirectory, revision: str) -> bool:
    """Whether this code has a revision of exactly that name."""
    try:
        found = script.get_revision(revision)
    except CommandError:
        return False
    return found is not None and found.revision == revision


def find_revision(script: ScriptDirectory, name: int | str) -> str:
    """The full id behind a number, an id or its unambiguous beginning."""
    text = f"{name:04d}" if isinstance(name, int) else name
    try:
        found = script.get_revision(text) if text else None
    except CommandError:
        found = None
    if found is None:
        raise UnknownRevision(text, newest(script))
    return found.revision


def check_target(script: ScriptDirectory, text: str) -> None:
    """Refuse a misspelt revision before anything is opened; relative ones are `Plan`'s to judge."""
    if text in ("head", "heads", "base") or re.search(r"[+-]\d+$", text) or "@" in text:
        return
    if ":" in text:
        raise UnknownRevision(text, newest(script), advice="FROM:TO goes with --sql")
    find_revision(script, text)


def next_number(script: ScriptDirectory) -> str | None:
    """The next sequential id, or None for a chain that does not number its revisions."""
    ids = [revision.revision for revision in script.walk_revisions()]
    if not all(one.isdigit() for one in ids):
        return None
    return f"{max(map(int, ids), default=0) + 1:04d}"
