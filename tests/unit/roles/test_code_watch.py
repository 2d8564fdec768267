"""What `qwf up --reload` sees of the code in a directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.processes.embedded_users import alive, until

from queue_workflows.cli.roles.reload import CodeWatch, stamps, why_not
from queue_workflows.roles.loop import Halt

SOMEBODY = 65_534


@contextmanager
def as_somebody_else() -> Iterator[None]:
    """Root may look into everything."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(SOMEBODY)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


def test_a_directory_of_another_account_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the data of a database in a container has; the rest is looked at."""
    (tmp_path / "pgdata").mkdir()
    (tmp_path / "pgdata" / "hidden.py").touch()
    (tmp_path / "wiring.py").touch()
    (tmp_path / "pgdata").chmod(0o000)
    tmp_path.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    with as_somebody_else():
        found = list(stamps([Path()]))
    (tmp_path / "pgdata").chmod(0o700)
    assert found == [Path("wiring.py")]


def test_what_changes_while_the_roles_are_being_started_has_changed(tmp_path: Path) -> None:
    """The wiring was imported before."""
    said: list[str] = []
    halt = Halt(lambda: None)
    watch = CodeWatch([tmp_path], None, said.append)
    (tmp_path / "tasks.py").touch()
    watch.begin(halt)
    watch.join(150)
    watch.close()
    assert watch.is_due
    assert [line.rpartition("/")[2] for line in said] == ["tasks.py has changed: beginning anew"]


HANGS = """
import os, subprocess
child = subprocess.Popen(["sleep", "600"])
with open("pids.part", "w") as pids:
    print(os.getpid(), child.pid, file=pids)
os.rename("pids.part", "pids")
child.wait()
"""


def test_an_import_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told as any other that fails, and the next change is looked at."""
    (tmp_path / "wiring.py").write_text(HANGS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert why_not("wiring", within_s=0.01) == "it had not ended after 0.01 s"
    (tmp_path / "wiring.py").write_text("", encoding="utf-8")
    assert why_not("wiring") is None


def test_an_end_does_not_wait_for_an_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it goes on, and no word is lost on it."""
    said: list[str] = []
    monkeypatch.chdir(tmp_path)
    watch = CodeWatch([tmp_path], "wiring", said.append)
    (tmp_path / "wiring.py").write_text(HANGS, encoding="utf-8")
    watch.begin(Halt(lambda: None))
    until((tmp_path / "pids").exists, "it hangs")
    watch.close()
    assert (watch.is_alive(), watch.is_due, said) == (False, False, [])
    # What was killed is gone once the kernel has seen to it.
    pids = (tmp_path / "pids").read_text().split()
    until(lambda: not any(alive(int(pid)) for pid in pids), "it is ended")
