"""`qwf up --reload`: looks whether code of the host app has changed, and has `up` begin anew with it.

Everything begins anew, in the same process: the wiring may have changed as well as a task. What cannot be
imported as it stands is told, and the code from before runs on until it can.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

from queue_workflows.cli.shared.error_exit import in_one_line
from queue_workflows.host.processes.pid1 import LAUNCHER_PID
from queue_workflows.roles.loop import Halt

# A wiring that imports what drives GPUs takes long; what hangs must not hold up the next change for ever.
IMPORTED_WITHIN_S: Final = 60.0
_LOOK_EVERY_S: Final = 0.5
_ASK_EVERY_S: Final = 0.05
_LAST_LOOK_S: Final = 5.0
_ENDINGS: Final = frozenset({".py", ".toml"})
# What a virtual environment has in it, whatever it is called.
_ENVIRONMENT: Final = "pyvenv.cfg"
_NOT_LOOKED_INTO: Final = frozenset({"__pycache__", "node_modules", "site-packages"})

Stamp = tuple[int, int]


class CodeWatch(threading.Thread):
    """Halts its supervisor when code below `places` has changed, and can be imported; `is_due` says so."""

    def __init__(self, places: list[Path], app: str | None, say: Callable[[str], None]) -> None:
        super().__init__(name="qwf-reload", daemon=True)
        self._places, self._app, self._say = places, app, say
        self._halt: Halt | None = None
        self._over = threading.Event()
        self._has_changed = False
        # From before the roles are started: what changes meanwhile was imported as it was.
        self._seen = stamps(places)

    def begin(self, halt: Halt) -> None:
        """Look from now on; `halt` is what stops the supervisor."""
        self._halt = halt
        self.start()

    @property
    def is_due(self) -> bool:
        """Whether it was this that stopped the supervisor, and no signal."""
        return self._has_changed and self._halt is not None and self._halt.by is None

    def run(self) -> None:
        """Compare what there is with what there was, until something has changed for the better."""
        while not self._over.wait(_LOOK_EVERY_S):
            before, self._seen = self._seen, stamps(self._places)
            changed = sorted(
                path for path in {*before, *self._seen} if before.get(path) != self._seen.get(path)
            )
            if changed and self._can_be_imported(changed[0]):
                self._has_changed = True
                assert self._halt is not None  # noqa: S101 - it was given before the start
                self._halt.ask()
                return

    def close(self) -> None:
        """Look no more; an import that is being tried is given up."""
        self._over.set()
        if self._halt is not None:
            self.join(_LAST_LOOK_S)

    def _can_be_imported(self, changed: Path) -> bool:
        name = os.path.relpath(changed)
        why = None if self._app is None else why_not(self._app, is_over=self._over)
        if self._over.is_set():
            return False
        if why is not None:
            self._say(f"{name} has changed, but the wiring cannot be imported: {why}")
            return False
        self._say(f"{name} has changed: beginning anew")
        return True


def stamps(places: list[Path]) -> dict[Path, Stamp]:
    """When each file of code was written, and how long it is."""
    found = {}
    for place in places:
        for path in _code_below(place):
            with suppress(OSError):
                entry = path.stat()
                found[path] = (entry.st_mtime_ns, entry.st_size)
    return found


def _code_below(place: Path) -> Iterator[Path]:
    for directory, below, files in os.walk(place):
        below[:] = [name for name in below if _is_looked_into(Path(directory, name))]
        yield from (Path(directory, name) for name in files if Path(name).suffix in _ENDINGS)


def _is_looked_into(directory: Path) -> bool:
    name = directory.name
    if name.startswith(".") or name in _NOT_LOOKED_INTO:
        return False
    # A directory of another account may not be asked; `os.walk` finds nothing in it.
    return not os.path.exists(directory / _ENVIRONMENT)


def why_not(
    app: str, *, within_s: float = IMPORTED_WITHIN_S, is_over: threading.Event | None = None
) -> str | None:
    """Why a new process could not import the wiring, in a line; None if it could.

    One that takes longer, or is not waited for any more, is ended with all that it has started.
    """
    is_over, until = is_over or threading.Event(), time.monotonic() + within_s
    with tempfile.TemporaryFile() as said:
        try:
            tried = subprocess.Popen(
                [sys.executable, "-c", f"import sys; sys.path.insert(0, ''); import {app}"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                start_new_session=True,
            )
        except OSError as error:
            return in_one_line(error)
        while tried.poll() is None:
            if is_over.wait(_ASK_EVERY_S) or time.monotonic() > until:
                os.killpg(tried.pid, signal.SIGKILL)
                tried.wait()
                return f"it had not ended after {within_s:g} s"
        said.seek(0)
        lines = said.read().decode("utf-8", "replace").strip().splitlines()
    return None if tried.returncode == 0 else (lines[-1] if lines else f"it ended with {tried.returncode}")


def places_of(app: str | None) -> list[Path]:
    """Where the host app's code lies: in this directory, and where its wiring was imported from."""
    places = [Path.cwd()]
    module = sys.modules.get(app.partition(".")[0]) if app else None
    for origin in getattr(module, "__path__", None) or [getattr(module, "__file__", None)]:
        directory = Path(origin) if origin else places[0]
        directory = directory if directory.is_dir() else directory.parent
        if not any(directory.is_relative_to(place) for place in places):
            places.append(directory)
    return places


def begin_anew(launcher_pid: int | None) -> NoReturn:
    """Run this command line again, in this process, which has let go of everything."""
    if launcher_pid is not None:
        os.environ[LAUNCHER_PID] = str(launcher_pid)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    # They wait until the fresh interpreter hears them: `cli/shared/signals` lets them through.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - our own command line
