"""Where hooks work and print, whatever other hooks have put there."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

import pytest

from queue_workflows.errors import HookError
from queue_workflows.hooks.discovery import Hook
from queue_workflows.hooks.places import HookPlaces, places_of

HOOK = Hook("title", "Page", 1, 0, "on_Page__10_title.sh", Path("/title"), (), is_background=False)


@pytest.fixture
def places(tmp_path: Path) -> HookPlaces:
    """Those of a hook whose run has begun."""
    made = places_of(tmp_path / "data", uuid.uuid4(), HOOK, 1)
    made.make()
    return made


def test_its_directories_are_made_once(places: HookPlaces) -> None:
    """And found there by the plugin's other hooks."""
    (places.directory / "file").write_text("")
    places.make()
    assert (places.directory / "file").exists()
    assert places.stdout.parent.is_dir()
    assert places.stdout.parent != places.directory


@pytest.mark.parametrize("what", ["directory", "printed", "run"])
def test_a_link_in_their_place_is_not_followed(places: HookPlaces, tmp_path: Path, what: str) -> None:
    """Nothing is made where it leads."""
    outside = tmp_path / "outside"
    outside.mkdir()
    there = {"directory": places.directory, "printed": places.stdout.parent.parent, "run": places.run}[what]
    shutil.rmtree(there)
    there.symlink_to(outside)
    with pytest.raises(HookError):
        places.make()
    assert list(outside.iterdir()) == []


def test_the_directory_of_all_runs_may_be_a_link(tmp_path: Path) -> None:
    """It is the operator's, who may keep runs on another disk."""
    (tmp_path / "data").mkdir()
    (tmp_path / "disk").mkdir()
    (tmp_path / "data" / "runs").symlink_to(tmp_path / "disk")
    places = places_of(tmp_path / "data", uuid.uuid4(), HOOK, 1)
    places.make()
    assert (tmp_path / "disk" / places.run.name / "title").is_dir()
