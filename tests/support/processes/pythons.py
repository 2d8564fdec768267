"""The Pythons of this machine, for tests that must hold on each one that we support."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

SUPPORTED = ("3.11", "3.12", "3.13")
PROBE = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"


@functools.cache
def find_python(version: str) -> str | None:
    """An interpreter of that version that can make virtual environments.

    QWF_TEST_PYTHONS (paths) goes first, then our own, pyenv's, and what the PATH has.
    """
    return next((found for found in _candidates(version) if _is(found, version)), None)


def _candidates(version: str) -> Iterator[str]:
    name = f"python{version}"
    yield from filter(None, os.environ.get("QWF_TEST_PYTHONS", "").split(os.pathsep))
    yield sys.executable
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from map(str, sorted(root.glob(f"versions/{version}*/bin/{name}"), reverse=True))
    for directory in os.environ.get("PATH", "").split(os.pathsep):
        if found := shutil.which(name, path=directory):
            yield found


def _is(python: str, version: str) -> bool:
    """A name on the PATH may be a shim for nothing, so ask it."""
    try:
        probed = [python, "-c", PROBE]
        asked = subprocess.run(probed, capture_output=True, text=True, timeout=150, check=False)
    except OSError:
        return False
    return asked.returncode == 0 and asked.stdout.strip() == version
