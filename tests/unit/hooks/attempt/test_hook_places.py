"""Where hooks work and print, whatever other hooks have put there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from support.processes.programs import WITHOUT_OVERRIDE

from queue_workflows.errors import HookError
from queue_workflows.hooks.attempt.directories import HookPlaces, places_of
from queue_workflows.hooks.plugins.discovery import Hook
from queue_workflows.host.directories.below import directory_beneath
from queue_workflows.host.directories.data import take_away

HOOK = Hook("title", "Page", 1, 0, "on_Page__10_title.sh", Path("/title"), (), is_background=False)


@pytest.fixture
def places(tmp_path: Path) -> HookPlaces:
    """Those of a hook whose run has begun."""
    made = places_of(tmp_path / "data", uuid.uuid4(), HOOK, 1)
    os.close(made.hold().descriptor)
    return made


def test_its_directories_are_made_once(places: HookPlaces) -> None:
    """And found there by the plugin's other hooks."""
    (places.directory / "file").write_text("")
    os.close(places.hold().descriptor)
    assert (places.directory / "file").exists()
    assert places.stdout.parent.is_dir()
    assert places.stdout.parent != places.directory


def test_a_run_is_held_before_anything_is_made_in_it(places: HookPlaces) -> None:
    """So who removes what is forgotten takes none of it away."""
    run = places.hold()
    with directory_beneath(places.beneath, beneath=places.beneath) as runs:
        assert not take_away(runs, places.run.name)
        os.close(run.descriptor)
    assert places.directory.is_dir()


@pytest.mark.parametrize("what", ["directory", "printed", "run"])
def test_a_link_in_their_place_is_not_followed(places: HookPlaces, tmp_path: Path, what: str) -> None:
    """Nothing is made where it leads."""
    outside = tmp_path / "outside"
    outside.mkdir()
    there = {"directory": places.directory, "printed": places.stdout.parent.parent, "run": places.run}[what]
    shutil.rmtree(there)
    there.symlink_to(outside)
    with pytest.raises(HookError):
        places.hold()
    assert list(outside.iterdir()) == []


def test_the_directory_of_all_runs_may_be_a_link(tmp_path: Path) -> None:
    """It is the operator's, who may keep runs on another disk."""
    (tmp_path / "data").mkdir()
    (tmp_path / "disk").mkdir()
    (tmp_path / "data" / "runs").symlink_to(tmp_path / "disk")
    places = places_of(tmp_path / "data", uuid.uuid4(), HOOK, 1)
    os.close(places.hold().descriptor)
    assert (tmp_path / "disk" / places.run.name / "title").is_dir()


# As a user who may not open what has no right to it.
TAKEN = """
import os, sys, uuid
from pathlib import Path
from queue_workflows.hooks.plugins.discovery import Hook
from queue_workflows.hooks.attempt.directories import places_of
hook = Hook("title", "Page", 1, 0, "on_Page__10_title.sh", Path("/title"), (), is_background=False)
run = uuid.uuid4()
made = places_of(Path(sys.argv[1]), run, hook, 1)
made.hold()
for taken in (made.directory, made.stdout.parent, made.stdout.parent.parent, made.run):
    for mode in (0o000, 0o500, 0o600):
        taken.chmod(mode)
        again = places_of(Path(sys.argv[1]), run, hook, 2)
        again.hold()
        for place in (again.directory / "file", again.stdout):
            place.write_text("x")
            place.unlink()
print("made")
"""


def test_a_right_that_a_hook_took_away_is_taken_back(tmp_path: Path) -> None:
    """What it left as `chmod 0` keeps no later hook of its plugin from starting."""
    command = [*WITHOUT_OVERRIDE, sys.executable, "-c", TAKEN, str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("made\n", "")


def test_a_link_to_what_has_no_rights_leaves_it_without(places: HookPlaces, tmp_path: Path) -> None:
    """Nobody's directory elsewhere is opened for a hook."""
    outside = tmp_path / "outside"
    outside.mkdir(0o000)
    places.directory.rmdir()
    places.directory.symlink_to(outside)
    with pytest.raises(HookError):
        places.hold()
    assert outside.stat().st_mode & 0o777 == 0
