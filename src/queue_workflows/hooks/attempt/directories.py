"""Where a run of hooks keeps what they write.

    {data}/runs/{run}/{plugin}/                          the working directory of the plugin's hooks
    {data}/runs/{run}/.output/{plugin}/{hook}.{attempt}.stdout.jsonl, .stderr.log, .stderr.began

What is printed stands beside the plugins' directories, so that it is no file of theirs. A plugin's name does
not begin with a dot.
"""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from queue_workflows.errors import ConfigurationError, HookError
from queue_workflows.hooks.plugins.discovery import Hook
from queue_workflows.host.directories.below import OpenDirectory
from queue_workflows.host.directories.data import hold, make_usable, usable

_OUTPUT: Final = ".output"
_ADVICE: Final = "see to it, then retry"


@dataclass(frozen=True, slots=True)
class HookPlaces:
    """The places of one attempt of a hook; `hold` creates the directories."""

    run: Path
    directory: Path
    stdout: Path
    stderr: Path

    @property
    def beneath(self) -> Path:
        """What no hook's link leads out of: the directory of all runs."""
        return self.run.parent

    @property
    def began(self) -> Path:
        """The file that is there from its beginning until somebody has looked for its daemons."""
        return self.stderr.with_suffix(".began")

    def hold(self) -> OpenDirectory:
        """The run's directory, held until it is closed, so that nobody takes it for forgotten.

        Creates what is missing, also rights that a hook took away; `HookError` where that cannot be.
        """
        run = self.hold_beside(self.run)
        try:
            for directory in (self.directory, self.stdout.parent):
                make_usable(directory, beneath=run)
        except OSError as wrong:
            os.close(run.descriptor)
            raise HookError(f"{wrong.filename}: {wrong.strerror}", advice=_ADVICE) from None
        return run

    def hold_beside(self, run: Path) -> OpenDirectory:
        """The directory of any run in the same place, made if missing and held until it is closed."""
        try:
            return OpenDirectory(str(run), hold(self.beneath, run.name, opening=usable))
        except ConfigurationError as wrong:
            raise HookError(wrong.message, advice=_ADVICE) from None


def run_directory(data_dir: Path, run_id: uuid.UUID) -> Path:
    """What a run of hooks has below the data directory, absolute."""
    return data_dir.absolute() / "runs" / str(run_id)


def places_of(data_dir: Path, run_id: uuid.UUID, hook: Hook, attempt: int) -> HookPlaces:
    """Where one attempt of a hook works and prints."""
    run = run_directory(data_dir, run_id)
    printed = run / _OUTPUT / hook.plugin / f"{hook.name}.{attempt}"
    return HookPlaces(
        run=run,
        directory=run / hook.plugin,
        stdout=printed.with_name(f"{printed.name}.stdout.jsonl"),
        stderr=printed.with_name(f"{printed.name}.stderr.log"),
    )
