"""Lays out what is compared: a commit's files, or those of the working tree, in a directory of their own."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[3]
WORKING_TREE: Final = "the working tree"
# What a measured process is made of; scripts and tasks are the guard's own for both sides.
PARTS: Final = ("src", "alembic", "alembic.ini", "pyproject.toml")


class Unusable(Exception):
    """What was asked for cannot be compared; the text says what to do."""


def resolved(name: str) -> str:
    """The hash of a commit, or the working tree as it is."""
    if name == WORKING_TREE:
        return name
    found = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    if found.returncode:
        raise Unusable(f"there is no commit {name!r} here: name a branch, a tag or a hash of this repository")
    return found.stdout.decode().strip()


def lay_out(commit: str, target: Path) -> None:
    """Write those parts of a commit below the target."""
    target.mkdir()
    if commit == WORKING_TREE:
        _copy(target)
        return
    there = [part for part in PARTS if not _git("cat-file", "-e", f"{commit}:{part}").returncode]
    if "src" not in there:
        raise Unusable(f"{commit[:12]} has no src: name a commit of the package")
    with subprocess.Popen(
        ["git", "-C", str(ROOT), "archive", commit, *there], stdout=subprocess.PIPE
    ) as archive:
        assert archive.stdout is not None
        with tarfile.open(fileobj=archive.stdout, mode="r|") as files:
            files.extractall(target, filter="data")


def differ(one: Path, other: Path) -> bool:
    """Whether anything that is measured is not the same in both."""
    return _contents(one) != _contents(other)


def _copy(target: Path) -> None:
    listed = _git("ls-files", "-z", "--cached", "--others", "--exclude-standard", *PARTS)
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)


def _contents(tree: Path) -> dict[Path, bytes]:
    return {path.relative_to(tree): path.read_bytes() for path in tree.rglob("*") if path.is_file()}


def _git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    try:
        ran = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, check=False)
    except FileNotFoundError as missing:
        raise Unusable("there is no git here: install it") from missing
    if b"not a git repository" in ran.stderr:
        raise Unusable(f"{ROOT} is no git repository: commits are compared, so clone it")
    return ran
