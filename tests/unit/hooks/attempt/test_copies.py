"""Copies of directories hold what can be read of them, and what could not is named."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes.programs import linux_only

from queue_workflows.host.directories.copies import copy_tree

# Copies as its user, without what root may do beyond that.
COPY = """
import ctypes, os, sys
from queue_workflows.host.directories.copies import copy_tree
nothing = (ctypes.c_uint32 * 6)()
assert ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(0x20080522, 0), nothing) == 0
print(copy_tree(*(os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in sys.argv[1:])))
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    made = tmp_path / "source"
    (made / "deep").mkdir(parents=True)
    (tmp_path / "copy").mkdir()
    (made / "deep" / "page").write_text("page")
    (made / "last").write_text("last")
    return made


def copy(source: Path) -> list[str]:
    """What was left out of a copy."""
    done = subprocess.run(
        [sys.executable, "-c", COPY, source, source.parent / "copy"],
        capture_output=True,
        text=True,
        check=True,
    )
    found = ast.literal_eval(done.stdout)
    assert isinstance(found, list)
    return found


def content(source: Path, name: str) -> str:
    """What stands in a file of the copy."""
    return (source.parent / "copy" / name).read_text()


@linux_only
def test_the_right_to_read_what_is_ours_is_taken_back(source: Path) -> None:
    """Of a file and of a directory, which a hook may have closed against itself."""
    (source / "deep" / "page").chmod(0)
    (source / "deep").chmod(0)
    assert copy(source) == []
    assert content(source, "deep/page") == "page"


@linux_only
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_what_cannot_be_read_is_left_out_and_named(source: Path) -> None:
    """The rest is copied."""
    for name in ("deep/theirs", "closed"):
        (source / name).write_text("theirs")
        (source / name).chmod(0)
        os.chown(source / name, 1, 1)
    assert copy(source) == ["closed: Operation not permitted", "deep/theirs: Operation not permitted"]
    assert content(source, "deep/page") == "page"
    assert content(source, "last") == "last"
    assert not (source.parent / "copy" / "closed").exists()


def test_a_kernel_without_its_own_copying_copies_all_the_same(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of macOS, where Python has no such function."""
    monkeypatch.delattr(os, "copy_file_range", raising=False)
    (source / "large").write_bytes(bytes(3 << 20))
    assert copy_tree(*opened(source)) == []
    assert (source.parent / "copy" / "large").stat().st_size == 3 << 20
    assert content(source, "deep/page") == "page"


def test_a_copy_can_be_broken_off_between_files(source: Path) -> None:
    """So that a worker that stops does not wait for a large one."""
    left = iter(range(2))

    def look() -> None:
        if next(left, None) is None:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        copy_tree(*opened(source), look=look)
    assert not (source.parent / "copy" / "last").exists()


def test_what_cannot_be_written_is_an_error(source: Path) -> None:
    """Nothing is left out for that, as for a full disk."""
    (source.parent / "copy" / "last").write_text("in the way")
    with pytest.raises(FileExistsError):
        copy_tree(*opened(source))


def opened(source: Path) -> tuple[int, int]:
    """Both directories, open until the test's process ends."""
    how = os.O_RDONLY | os.O_DIRECTORY
    return os.open(source, how), os.open(source.parent / "copy", how)
