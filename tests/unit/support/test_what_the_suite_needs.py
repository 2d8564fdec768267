"""Where everything has to be there, the public suite of plugins is never left out unnoticed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
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
