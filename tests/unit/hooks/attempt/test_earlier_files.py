"""What an earlier attempt of a hook left is kept as it was, whatever the next one writes."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest

from queue_workflows.errors import HookError
from queue_workflows.hooks.attempt.directories import HookPlaces, places_of
from queue_workflows.hooks.attempt.earlier_files import attempts_that_ran, keep_earlier_files
from queue_workflows.hooks.plugins.discovery import Hook

HOOK = Hook("title", "Page", 1, 0, "on_Page__10_title.sh", Path("/title"), (), is_background=False)
RUN = uuid.uuid4()


def places(tmp_path: Path, attempt: int, *, began: bool = True) -> HookPlaces:
    """The places of an attempt, which has printed something if it began."""
    made = places_of(tmp_path, RUN, HOOK, attempt)
    os.close(made.hold().descriptor)
    if began:
        made.stdout.write_text("{}")
    return made


def keep(tmp_path: Path, attempt: int) -> None:
    made = places(tmp_path, attempt, began=False)
    run = made.hold()
    try:
        keep_earlier_files(made, HOOK.name, attempt, beneath=run)
    finally:
        os.close(run.descriptor)


def kept(tmp_path: Path) -> list[str]:
    above = places(tmp_path, 1).run / ".attempts" / "title"
    return sorted(os.listdir(above)) if above.exists() else []


def test_what_an_attempt_left_is_kept_under_its_number(tmp_path: Path) -> None:
    """Also what lies deeper, and links as links; the next one may change all of it where it was."""
    first = places(tmp_path, 1)
    (first.directory / "deep" / "er").mkdir(parents=True)
    (first.directory / "deep" / "er" / "page.html").write_text("first")
    (first.directory / "out").symlink_to("/etc/passwd")
    os.mkfifo(first.directory / "pipe")
    keep(tmp_path, 2)
    (first.directory / "deep" / "er" / "page.html").write_text("second")
    copy = first.run / ".attempts" / "title" / "on_Page__10_title.sh.1"
    assert (copy / "deep" / "er" / "page.html").read_text() == "first"
    assert os.readlink(copy / "out") == "/etc/passwd"
    assert sorted(os.listdir(copy)) == ["deep", "out"]


def test_each_attempt_that_ran_is_kept_once(tmp_path: Path) -> None:
    """One that was put aside before it began has left nothing, and changes nothing of what is kept."""
    page = places(tmp_path, 1).directory / "page.html"
    page.write_text("first")
    keep(tmp_path, 2)
    page.write_text("not the first any more")
    keep(tmp_path, 3)
    assert kept(tmp_path) == ["on_Page__10_title.sh.1"]
    copy = places(tmp_path, 3).run / ".attempts" / "title"
    assert (copy / "on_Page__10_title.sh.1" / "page.html").read_text() == "first"
    keep(tmp_path, 4)
    assert (copy / "on_Page__10_title.sh.3" / "page.html").read_text() == "not the first any more"


def test_only_an_attempt_that_ran_has_left_something(tmp_path: Path) -> None:
    """Neither one that was given back before it began, nor this one, nor one of another hook."""
    for attempt in (1, 4, 10):
        places(tmp_path, attempt)
    now = places(tmp_path, 10)
    now.stdout.with_name("on_Page__10_title.sh.sh.2.stdout.jsonl").write_text("{}")
    run = now.hold()
    try:
        assert attempts_that_ran(now, HOOK.name, 10, beneath=run) == [1, 4]
        assert attempts_that_ran(now, HOOK.name, 1, beneath=run) == []
    finally:
        os.close(run.descriptor)


def test_nothing_is_kept_where_nothing_ran_or_was_left(tmp_path: Path) -> None:
    """No directory is made for it."""
    places(tmp_path, 1, began=False).directory.joinpath("of-another-hook").write_text("x")
    keep(tmp_path, 2)
    assert kept(tmp_path) == []


def test_a_copy_that_was_broken_off_is_no_copy(tmp_path: Path) -> None:
    """As by the death of its worker: the attempt that was begun anew makes it whole."""
    first = places(tmp_path, 1)
    (first.directory / "page.html").write_text("first")
    half = first.run / ".attempts" / "title" / ".on_Page__10_title.sh.2"
    half.mkdir(parents=True)
    (half / "page.html").write_text("fi")
    keep(tmp_path, 2)
    assert kept(tmp_path) == ["on_Page__10_title.sh.1"]
    assert (half.parent / "on_Page__10_title.sh.1" / "page.html").read_text() == "first"


def test_a_link_in_the_place_of_the_copies_is_not_followed(tmp_path: Path) -> None:
    """The hook is not begun then, as it might write over what it cannot keep."""
    first = places(tmp_path, 1)
    (first.directory / "page.html").write_text("first")
    outside = tmp_path / "outside"
    outside.mkdir()
    (first.run / ".attempts").symlink_to(outside)
    with pytest.raises(HookError, match="cannot be kept"):
        keep(tmp_path, 2)
    assert list(outside.iterdir()) == []
