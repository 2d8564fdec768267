"""Scripts of others are what their record says, and all that a browser loads first is small."""

from __future__ import annotations

import gzip
import hashlib
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
STATIC = ROOT / "src" / "queue_workflows" / "web" / "static"
RECORD = tomllib.loads((STATIC / "VENDORED.toml").read_text(encoding="utf-8"))
OURS = {"qwf.css", "qwf.js", "favicon.svg", "VENDORED.toml"}


def test_each_file_is_ours_or_recorded() -> None:
    """With where it is from, under which licence, and what is in it."""
    theirs = {one["file"]: one["sha256"] for one in RECORD["files"]}
    there = {file.name: file for file in STATIC.iterdir() if file.name not in OURS}
    assert theirs == {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in there.items()}
    assert (RECORD["name"], RECORD["licence"]) == ("htmx.org", "0BSD")
    assert RECORD["version"].startswith("4.")
    assert RECORD["version"].encode() in (STATIC / "htmx.min.js").read_bytes()


def test_a_changed_file_is_found(tmp_path: Path) -> None:
    """By the script that renews them, without asking any registry."""
    script = tmp_path / "scripts" / "vendor_web"
    script.parent.mkdir()
    shutil.copy(ROOT / "scripts" / "vendor_web", script)
    static = tmp_path / STATIC.relative_to(ROOT)
    shutil.copytree(STATIC, static)

    def check() -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, script, "--check"], capture_output=True, text=True, env={"PATH": ""}, check=False
        )
        return done.returncode, done.stderr

    assert check() == (0, "")
    with (static / "htmx.min.js").open("a", encoding="utf-8") as file:
        file.write(" ")
    assert check() == (1, "vendor_web: htmx.min.js is not what was recorded\n")


def test_what_is_loaded_first_is_small() -> None:
    """The style sheet and all scripts, as they go over the wire: 50 kB at the most."""
    loaded = [file for file in STATIC.iterdir() if file.suffix in (".css", ".js")]
    assert sum(len(gzip.compress(file.read_bytes())) for file in loaded) <= 50_000
