"""Stand-ins for the GPU vendors' tools: real programs on the PATH that say what a test tells them to."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

HEAD = (
    "index, uuid, name, utilization.gpu [%], memory.total [MiB], memory.used [MiB], temperature.gpu,"
    " power.draw [W], power.limit [W], mig.mode.current"
)
USUAL = ("sh", "cat", "basename", "sleep", "mv", "yes")
# By the first word of what it is asked: an answer and a status in files, which a test may change at any time.
SCRIPT = """#!/bin/sh
here="${0%/*}/$(basename "$0").answers"
key="${1%%=*}"
echo "$*" >> "$here/asked"
[ -e "$here/hangs" ] && { echo $$ > "$here/hanging"; exec sleep 600; }
cat "$here/$key.out"
exit "$(cat "$here/$key.status")"
"""


def uuid_of(number: int) -> str:
    """The UUID of a stand-in for a card."""
    return f"GPU-{number:08x}-1111-2222-3333-444444444444"


def card(number: int, *, used_mb: object = 3, total_mb: object = 81559, mig: str = "Disabled") -> str:
    """A line of `nvidia-smi --query-gpu`, in the order of `HEAD`."""
    use = f"7, {total_mb}, {used_mb}, 31, 69.97, 700.00, {mig}"
    return f"{number}, {uuid_of(number)}, NVIDIA H100 80GB HBM3, {use}"


class VendorTools:
    """A directory for the front of the PATH; nothing is in it until a tool is told what to say."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._usual = directory / "usual"
        self._usual.mkdir(parents=True, exist_ok=True)
        for name in USUAL:
            there = shutil.which(name)
            if there is not None:
                (self._usual / name).symlink_to(there)

    @property
    def path(self) -> str:
        """A PATH on which there are these tools, what their scripts need, and no vendor's own."""
        return f"{self.directory}{os.pathsep}{self._usual}"

    def says(self, tool: str, key: str, text: str, status: int = 0) -> None:
        """From now on the tool answers so to what begins with this word."""
        answers = self._of(tool)
        _replace(answers / f"{key}.status", str(status))
        _replace(answers / f"{key}.out", text)
        if not (self.directory / tool).exists():
            self.script(tool, SCRIPT)

    def cards(self, *lines: str) -> None:
        """From now on `nvidia-smi` lists these."""
        self.says("nvidia-smi", "--query-gpu", "\n".join([HEAD, *lines, ""]))

    def hangs(self, tool: str, *, really: bool = True) -> None:
        """From now on the tool gives no answer, or gives them again."""
        mark = self._of(tool) / "hangs"
        if really:
            mark.touch()
        else:
            mark.unlink(missing_ok=True)

    def asked(self, tool: str) -> list[str]:
        """What it was asked, the oldest question first."""
        log = self._of(tool) / "asked"
        return log.read_text().splitlines() if log.exists() else []

    def hanging(self, tool: str) -> int:
        """The process that gives no answer, or gave none last."""
        return int((self._of(tool) / "hanging").read_text() or 0)

    def script(self, tool: str, text: str) -> None:
        """A tool of another kind."""
        program = self.directory / tool
        program.write_text(text)
        program.chmod(0o755)

    def _of(self, tool: str) -> Path:
        answers = self.directory / f"{tool}.answers"
        answers.mkdir(exist_ok=True)
        return answers


def _replace(path: Path, text: str) -> None:
    """Whole, as somebody may be reading it."""
    fresh = path.with_name(f"{path.name}.fresh")
    fresh.write_text(text)
    fresh.replace(path)
