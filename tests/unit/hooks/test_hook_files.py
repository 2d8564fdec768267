"""The files of a hook: a walk that nothing in the directory can lead out of it."""

from __future__ import annotations

import hashlib
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from queue_workflows.hooks import files as module
from queue_workflows.hooks.files import USUAL_CAPS, Digests, FileCaps, digest_of, find_files
from queue_workflows.host.directories.below import directory_beneath


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """What lies outside and nobody is to read."""
    place = tmp_path / "etc"
    place.mkdir()
    (place / "passwd").write_text("root")
    return place


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The directory of a hook."""
    directory = tmp_path / "run" / "title"
    directory.mkdir(parents=True)
    return directory


def paths(place: Path, caps: FileCaps = USUAL_CAPS) -> list[str]:
    with directory_beneath(place, beneath=place.parent.parent) as opened:
        return [found.path for found in find_files(opened, caps).files]


def test_files_have_path_size_type_and_checksum(place: Path) -> None:
    """In the order of their paths, whatever the order on the disk."""
    (place / "z.html").write_text("<p>")
    (place / "a").mkdir()
    (place / "a" / "b.bin").write_bytes(b"\x00\x01")
    with directory_beneath(place, beneath=place) as opened:
        found = find_files(opened).files
    assert [(one.path, one.size, one.mimetype, one.sha256) for one in found] == [
        ("a/b.bin", 2, "application/octet-stream", hashlib.sha256(b"\x00\x01").hexdigest()),
        ("z.html", 3, "text/html", hashlib.sha256(b"<p>").hexdigest()),
    ]


def test_links_and_what_is_no_file_are_left_out(place: Path, secret: Path) -> None:
    """No link is followed, and a FIFO, a socket or a device blocks nobody."""
    (place / "file").symlink_to(secret / "passwd")
    (place / "directory").symlink_to(secret)
    (place / "up").symlink_to("../..")
    os.mkfifo(place / "fifo")
    here = os.getcwd()
    os.chdir(place)
    try:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind("socket")
    finally:
        os.chdir(here)
    (place / "mine").write_text("mine")
    assert paths(place) == ["mine"]


@pytest.mark.parametrize(
    ("kind", "at_look"), [("file", 1), ("file", 2), ("fifo", 1), ("fifo", 2), ("directory", 1)]
)
def test_a_swap_between_look_and_open_reads_nothing(
    place: Path, secret: Path, monkeypatch: pytest.MonkeyPatch, kind: str, at_look: int
) -> None:
    """What was a file or a directory when it was looked at and is a link when it is opened is left out."""
    victim = place / "victim"
    if kind == "directory":
        victim.mkdir()
    else:
        victim.write_text("mine")
    really, looks = os.stat, []

    def swapping(name: Any, **how: Any) -> os.stat_result:
        seen = really(name, **how)
        if name == "victim" and how.get("dir_fd") is not None:
            looks.append(name)
        if len(looks) == at_look and not (place.parent / f"away-{kind}").exists():
            victim.rename(place.parent / f"away-{kind}")
            if kind == "fifo":
                os.mkfifo(victim)
            else:
                victim.symlink_to(secret / "passwd" if kind == "file" else secret)
        return seen

    monkeypatch.setattr(module.os, "stat", swapping)
    assert paths(place) == []
    assert len(looks) >= at_look


def test_a_directory_on_the_way_that_is_a_link_is_refused(place: Path, secret: Path) -> None:
    """Also the run's own directories are opened link by link."""
    run = place.parent
    run.rename(run.parent / "away")
    run.symlink_to(secret.parent / "away")
    with pytest.raises(NotADirectoryError), directory_beneath(place, beneath=run.parent):
        pass
    with pytest.raises(NotADirectoryError), directory_beneath(run.parent / ".." / "etc", beneath=run.parent):
        pass


def test_names_that_are_no_text_can_be_stored(place: Path) -> None:
    """A file's name is bytes; what is no UTF-8 in it is written out."""
    with open(os.fsencode(place) + b"/caf\xe9", "w"):
        pass
    assert paths(place) == ["caf\\xe9"]


def test_the_walk_is_bounded_in_every_direction(place: Path) -> None:
    """Number, depth, entries and bytes; who has more is told, and the same part is kept every time."""
    deep = place
    for _ in range(6):
        deep = deep / "d"
        deep.mkdir()
        (deep / "f").write_text("x" * 10)
    with directory_beneath(place, beneath=place) as opened:
        found = find_files(opened, FileCaps(depth=3))
    assert [one.path for one in found.files] == ["d/d/f", "d/f"]
    assert found.left_out == ("directories deeper than 3",)
    with directory_beneath(place, beneath=place) as opened:
        found = find_files(opened, FileCaps(files=2))
    assert len(found.files) == 2
    assert found.left_out == ("more than 2 files",)
    with directory_beneath(place, beneath=place) as opened:
        found = find_files(opened, FileCaps(hashed_bytes=15))
    assert [one.sha256 is None for one in found.files].count(False) == 1
    assert found.left_out == ("checksums, as the files are large",)
    with directory_beneath(place, beneath=place) as opened:
        found = find_files(opened, FileCaps(entries=3))
    assert found.left_out == ("more than 3 entries",)


def test_a_file_is_read_once_for_all_hooks_of_its_plugin(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless it was written since, whatever its own times say, or is so fresh that they say nothing."""
    read: list[int] = []
    really = module._digest

    def counted(opened: int, size: int) -> tuple[str, int]:
        read.append(size)
        return really(opened, size)

    monkeypatch.setattr(module, "_digest", counted)

    def digest(digests: Digests) -> str | None:
        with directory_beneath(place, beneath=place) as opened:
            (found,) = find_files(opened, digests=digests).files
        return found.sha256

    (place / "large").write_bytes(b"x" * 100_000)
    later = Digests(now_ns=lambda: time.time_ns() + 60_000_000_000)
    assert [digest(later) for _ in range(3)] == [hashlib.sha256(b"x" * 100_000).hexdigest()] * 3
    assert read == [100_000]
    before = os.stat(place / "large")
    (place / "large").write_bytes(b"y" * 100_000)
    os.utime(place / "large", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert digest(later) == hashlib.sha256(b"y" * 100_000).hexdigest()
    assert read == [100_000] * 2
    fresh = Digests(now_ns=lambda: before.st_mtime_ns)
    assert digest(fresh) == digest(fresh)
    assert read == [100_000] * 4


def test_of_many_files_the_checksums_of_the_latest_are_kept(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that runs for months must not remember every file that it has ever seen."""
    monkeypatch.setattr(module, "_MOST_KEPT", 2)
    read: list[str] = []
    really = module._digest

    def noted(opened: int, size: int) -> tuple[str, int]:
        digest, size = really(opened, size)
        read.append(digest)
        return digest, size

    monkeypatch.setattr(module, "_digest", noted)
    digests = Digests(now_ns=lambda: time.time_ns() + 60_000_000_000)

    def look(*names: str) -> None:
        for name in names:
            digest_of(place / name, digests, 1 << 30)

    for name in "abc":
        (place / name).write_bytes(name.encode() * 100_000)
    look(*"abc")
    first, _, third = read
    look(*"cba")
    assert read[3:] == [first]
    assert third not in read[3:]
