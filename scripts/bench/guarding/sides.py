"""One tree's process for one measure: it is asked for a round at a time, and ends with what it started."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from bench.guarding.trees import Unusable
from bench.harness.workers import environment

_PATIENCE_S: Final = 600.0
_GRACE_S: Final = 40.0


def migrate(tree: Path, dsn: str, name: str) -> None:
    """Bring a database to the schema of a tree."""
    ran = subprocess.run(
        [sys.executable, "-m", "queue_workflows", "db", "upgrade"],
        env=_environment(tree, dsn),
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        raise Unusable(f"{name} cannot be measured here: {_last_line(ran.stderr)}")


class SideProcess:
    """A session of its own, so that Ctrl-C reaches only the guard, which then ends it in order."""

    def __init__(self, tree: Path, dsn: str, measure: str, *, quick: bool, name: str) -> None:
        self._name = name
        self._heard = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.guarding.measures", dsn, measure, "quick" if quick else "full"],
            env=_environment(tree, dsn),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._heard,
            text=True,
            start_new_session=True,
        )

    def opened(self) -> None:
        """Wait until its workers are there."""
        self._line()

    def round(self, by: str) -> float:
        """Seconds a job, by the clock or of processors."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        cost = json.loads(self._line())
        return max(float(cost[f"{by}_s"]), 1e-9) / int(cost["jobs"])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.communicate(timeout=_GRACE_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._heard.close()

    def _line(self) -> str:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], _PATIENCE_S)[0]:
            raise Unusable(f"{self._name} said nothing for {_PATIENCE_S:.0f} s")
        if not (line := self._process.stdout.readline()):
            self._process.wait()
            self._heard.seek(0)
            raise Unusable(f"{self._name} cannot be measured here: {_last_line(self._heard.read())}")
        return line


def _environment(tree: Path, dsn: str) -> dict[str, str]:
    """That tree's package before any other; the tasks are ours."""
    given = environment(dsn)
    scripts = given["PYTHONPATH"].split(os.pathsep)[0]
    return given | {"PYTHONPATH": os.pathsep.join([scripts, str(tree / "src")])}


def _last_line(said: str) -> str:
    return (said.strip().splitlines() or ["it ended without a word"])[-1]
