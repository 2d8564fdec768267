"""Runs of pytest with the package's plugin, as a host app would have them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.processes.environments import environment_without

_WITHOUT = (
    "PYTEST_",
    "QWF_",
    "AI_LEADS_",
    "QUEUE_WORKFLOWS_",
    "PG",
    "DOCKER_",
)


def start_pytest(
    directory: Path, files: dict[str, str], *arguments: str, **environ: str
) -> subprocess.Popen[str]:
    """Start pytest on these files, without the settings of the run that this is part of."""
    for name, text in files.items():
        (directory / name).write_text(text)
    kept = environment_without(*_WITHOUT)
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", ".", *arguments],
        cwd=directory,
        env={**kept, "QWF_DISABLE_TESTCONTAINERS": "1", **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run_pytest(directory: Path, files: dict[str, str], *arguments: str, **environ: str) -> tuple[int, str]:
    """The exit status and output of pytest on these files."""
    with start_pytest(directory, files, *arguments, **environ) as process:
        try:
            output, _ = process.communicate(timeout=150)
        finally:
            process.kill()  # a hang is reported, not waited for
    return process.returncode, output
