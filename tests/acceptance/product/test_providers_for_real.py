"""Programs that are really installed, where there is who installs them and a registry answers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.processes.commands import qwf_here

# Small programs without dependencies, and how their installer is asked whether it reaches its registry.
PROGRAMS = {
    "pip": ("cowpy", ["pip", "download", "--no-deps", "--quiet", "--timeout=15", "cowpy"]),
    "npm": ("cowsay", ["npm", "view", "--fetch-retries=0", "cowsay", "version"]),
    "apt": ("hello", ["apt-get", "install", "--simulate", "hello"]),
}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("provider", PROGRAMS)
def test_a_program_is_installed(
    qwf_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, provider: str
) -> None:
    """It is there, it runs, and its row says which version it is."""
    name, probe = PROGRAMS[provider]
    skip_unless_answered(provider, probe, tmp_path)
    monkeypatch.setenv("QWF_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("QWF_HOST_LABEL", provider)
    qwf_here("--db", qwf_dsn, "binaries", "ensure", name, "--providers", provider)
    listed = json.loads(qwf_here("--db", qwf_dsn, "binaries", "list", "--json").stdout)
    (found,) = (one for one in listed if one["host_label"] == provider)
    assert (found["binary"], found["status"], found["provider"]) == (name, "installed", provider)
    assert found["version"][0].isdigit()
    assert os.access(found["abspath"], os.X_OK)
    if provider != "apt":
        assert found["abspath"].startswith(str(tmp_path / "data"))


def skip_unless_answered(provider: str, probe: Sequence[str], place: Path) -> None:
    """The same installer, asked by itself in the same surroundings."""
    if shutil.which(probe[0]) is None:
        pytest.skip(f"there is no {probe[0]} on PATH")
    if provider == "apt" and os.environ.get("QWF_TEST_APT") != "1":
        pytest.skip("apt installs for the whole machine: QWF_TEST_APT=1 lets it")
    try:
        tried = subprocess.run(probe, cwd=place, stdin=subprocess.DEVNULL, capture_output=True, timeout=150)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{probe[0]} got no answer of a registry in time")
    if tried.returncode:
        pytest.skip(f"{probe[0]} reaches no registry here")
