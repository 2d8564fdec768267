"""What `qwf up --reload` sees of the code in a directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from queue_workflows.cli.roles.reload import CodeWatch, stamps
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
