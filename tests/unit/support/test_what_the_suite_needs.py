"""Where everything has to be there, the public suite of plugins is never left out unnoticed."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from support.processes.embedded_users import alive, until
from support.stages import plugin_suite

LACKS = [
    ("python", "there is no Python 3.12 or 3.13"),
    ("old node", "node 16.20.2 is here, and the suite needs 18"),
    ("node", "there is no node on PATH"),
]


@pytest.mark.parametrize("lack", LACKS)
@pytest.mark.parametrize(("ci", "ends"), [("true", "Failed"), ("", "Skipped")])
def test_what_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lack: tuple[str, str], ci: str, ends: str
) -> None:
    """The test fails for it where CI=true, and is skipped elsewhere."""
    lacks, said = lack
    monkeypatch.setenv("CI", ci)
    monkeypatch.delenv("QWF_TEST_SUITE", raising=False)
    node = tmp_path / "node"
    node.write_text(f"#!/bin/sh\necho {'v16.20.2' if lacks == 'old node' else 'v20.1.0'}\n")
    node.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda program: None if program == lacks else str(node))
    monkeypatch.setattr(plugin_suite, "find_python", lambda _version: None)
    with pytest.raises(BaseException, match=said) as raised:
        plugin_suite.install(tmp_path)
    assert raised.type.__name__ == ends


@pytest.fixture
def installer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """All that the suite needs is there, and what installs it is a script that counts how often it is run."""
    monkeypatch.setenv("CI", "")
    monkeypatch.delenv("QWF_TEST_SUITE", raising=False)
    node = tmp_path / "node"
    node.write_text("#!/bin/sh\necho v20.1.0\n")
    node.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda _program: str(node))
    monkeypatch.setattr(plugin_suite, "find_python", lambda _version: sys.executable)
    monkeypatch.setattr(plugin_suite, "EXAMPLE", tmp_path)
    return tmp_path / "install"


def write(script: Path, *lines: str) -> None:
    script.write_text("\n".join(["#!/bin/sh", f"echo . >>{script.parent}/runs", *lines, ""]))
    script.chmod(0o755)


def runs(script: Path) -> int:
    return len((script.parent / "runs").read_text().splitlines())


def test_a_refusal_is_remembered(installer: Path, tmp_path: Path) -> None:
    """Whatever else of the run asks for the suite is told at once what kept the first from installing it."""
    write(installer, "echo no registry answers >&2", "exit 1")
    for _ in range(2):
        with pytest.raises(pytest.skip.Exception, match="no registry answers"):
            plugin_suite.installed_once(tmp_path)
    assert runs(installer) == 1


def test_what_is_installed_is_used_again(installer: Path, tmp_path: Path) -> None:
    """By whatever else of the run asks for it."""
    write(installer, 'mkdir "$1/plugins"')
    first, second = (plugin_suite.installed_once(tmp_path) for _ in range(2))
    assert first.is_dir()
    assert (second, runs(installer)) == (first, 1)


@pytest.mark.timed
def test_what_is_half_made_is_not_gone_on_with(
    installer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installer that takes too long ends with all that it has begun, and the suite is missing."""
    write(installer, "sleep 600 &", f"echo $! >{tmp_path}/begun", "wait")
    monkeypatch.setattr(plugin_suite, "INSTALLED_WITHIN_S", 2)
    with pytest.raises(pytest.skip.Exception, match="within 2 seconds"):
        plugin_suite.installed_once(tmp_path)
    begun = int((tmp_path / "begun").read_text())
    until(lambda: not alive(begun), "what the installer began is ended")
