"""Where locks are missing: who had them, and when a janitor may make their directory."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from queue_workflows.host import flock
from queue_workflows.host.locks import HostLock, lock_file_name
from queue_workflows.host.missing_locks import holders_of_removed, open_directory


@pytest.fixture
def boot(tmp_path: Path) -> Path:
    """What the kernel says of the boot that we live in."""
    file = tmp_path / "boot_id"
    file.write_text("first\n")
    return file


def opened(tmp_path: Path, boot: Path, chosen: Path | None) -> Path:
    return open_directory(chosen, tmp_path / "data", boot_id=boot)


def test_a_chosen_directory_is_made_after_a_reboot_alone(tmp_path: Path, boot: Path) -> None:
    """One that nobody has seen yet, or that was removed since the machine came up, is waited for."""
    chosen = tmp_path / "chosen"
    assert opened(tmp_path, boot, chosen) == chosen
    assert not chosen.exists()
    chosen.mkdir()
    opened(tmp_path, boot, chosen)
    chosen.rmdir()
    opened(tmp_path, boot, chosen)
    assert not chosen.exists()
    boot.write_text("second\n")
    opened(tmp_path, boot, chosen)
    assert chosen.exists()
    chosen.rmdir()
    opened(tmp_path, boot, chosen)
    assert not chosen.exists()


def test_the_default_directory_is_made_at_the_first_start(
    tmp_path: Path, boot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And after a reboot; not when it was removed in between."""
    monkeypatch.setattr(flock, "SHARED", tmp_path / "shared")
    assert opened(tmp_path, boot, None) == tmp_path / "shared"
    (tmp_path / "shared").rmdir()
    opened(tmp_path, boot, None)
    assert not (tmp_path / "shared").exists()
    boot.write_text("second\n")
    opened(tmp_path, boot, None)
    assert (tmp_path / "shared").exists()


@pytest.mark.parametrize("spoilt", ["{", "[]", '{"a": {}}'])
def test_what_cannot_be_read_was_never_seen(tmp_path: Path, boot: Path, spoilt: str) -> None:
    """Nor does a data directory that cannot be written to keep a janitor from its work."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "lock-directories.json").write_text(spoilt)
    (tmp_path / "chosen").mkdir()
    assert opened(tmp_path, boot, tmp_path / "chosen") == tmp_path / "chosen"
    shutil.rmtree(tmp_path / "data")
    (tmp_path / "data").touch()
    assert opened(tmp_path, boot, tmp_path / "chosen") == tmp_path / "chosen"


def test_who_has_a_removed_lock_file_is_known(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Not who has one that is there; and the holder says so when it lets go."""

    there = HostLock("there", directory=tmp_path)
    with there, HostLock("gone", directory=tmp_path) as gone:
        assert holders_of_removed(tmp_path) == {}
        gone.path.unlink()
        assert holders_of_removed(tmp_path) == {lock_file_name("gone"): os.getpid()}
        assert holders_of_removed(tmp_path / "else") == {}
    assert holders_of_removed(tmp_path) == {}
    assert [one.getMessage() for one in caplog.records if one.levelname == "WARNING"] == [
        f"the file of the lock 'gone' was removed while process {os.getpid()} held it: others may have had it"
    ]
