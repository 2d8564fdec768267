"""Servers of both ends of the supported range, for tests of what may differ between them.

PostgreSQL 18 comes from the embedded wheel, 15 from Debian's package; QWF_TEST_PG15_BINDIR and
QWF_TEST_PG18_BINDIR name others. A version that is not installed here is skipped, by name.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from queue_workflows.db.embedded.binaries import wheel_bindir

VERSIONS = ("15", "18")
each_version = pytest.mark.parametrize("server", VERSIONS, indirect=True)
# For what hardly differs between them: the older one only where all tests are run.
newest_version = pytest.mark.parametrize(
    "server", [pytest.param(VERSIONS[0], marks=pytest.mark.slow), *VERSIONS[1:]], indirect=True
)
# What a test is about that has many cases depends on the version or on the case.
_MAIN = os.environ.get("QWF_TEST_PG_VERSION", VERSIONS[-1])


def on_each_version(name: str, cases: Iterable[object]) -> pytest.MarkDecorator:
    """All cases on the version of this run, by default the newest; on the others the first of them.

    These only where all tests are run.
    """
    first, *more = cases
    main = _MAIN if _MAIN in VERSIONS else VERSIONS[-1]
    others = [pytest.param(each, first, marks=pytest.mark.slow) for each in VERSIONS if each != main]
    pairs = [(main, first), *others, *((main, case) for case in more)]
    return pytest.mark.parametrize(("server", name), pairs, indirect=["server"])


def bindir_of(version: str) -> Path:
    """Where that version's binaries are on this machine; skips the test if nowhere."""
    variable = f"QWF_TEST_PG{version}_BINDIR"
    named = os.environ.get(variable)
    usual = [Path(f"/usr/lib/postgresql/{version}/bin"), wheel_bindir()]
    for candidate in [Path(named)] if named else usual:
        if candidate and (candidate / "postgres").exists():
            asked = [candidate / "postgres", "--version"]
            if re.search(rf"\b{version}\.", subprocess.run(asked, capture_output=True, text=True).stdout):
                return candidate
    pytest.skip(f"PostgreSQL {version} is not installed here; {variable} may name its binaries")
