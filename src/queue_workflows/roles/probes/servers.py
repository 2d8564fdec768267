"""Where a probe finds a worker's health: over HTTP, or in a file that is written anew each second."""

from __future__ import annotations

import logging
import os
import threading
from functools import partial
from pathlib import Path
from typing import Final, Self

from queue_workflows.errors import ConfigurationError
from queue_workflows.roles.probes.health import HealthReport
from queue_workflows.roles.probes.http import Answer, AnsweringServer

_log = logging.getLogger(__name__)
_WRITE_EVERY_S: Final = 1.0


class HealthServer(AnsweringServer):
    """GET /live and /ready: 200 if so, else 503, each with the whole answer as JSON."""

    def __init__(self, report: HealthReport, address: tuple[str, int]) -> None:
        super().__init__(
            partial(_answer, report),
            address,
            name="health",
            advice="give another port or address with --health",
        )

    def __enter__(self) -> Self:
        super().__enter__()
        _log.info("health: %s/live and /ready", self.url)
        return self


def _answer(report: HealthReport, path: str) -> Answer:
    health = report.look()
    fine = {"/live": health.live, "/ready": health.ready}.get(path)
    status = 404 if fine is None else 200 if fine else 503
    return Answer(status, "application/json", health.text() + "\n")


class HealthFile:
    """The answer in a file, whole at every moment; its age says whether the worker lives."""

    def __init__(self, report: HealthReport, path: Path, every_s: float = _WRITE_EVERY_S) -> None:
        self._report = report
        self._path = path
        self._beside = path.with_name(f".{path.name}.{os.getpid()}")
        self._every_s = every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="qwf-health-file", daemon=True)

    def __enter__(self) -> Self:
        try:
            self._write()
        except OSError as exc:
            raise ConfigurationError(
                f"the health file {self._path} cannot be written: {exc.strerror or exc}",
                advice="name one in a directory that this user may write to",
            ) from None
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._path.unlink(missing_ok=True)

    def _run(self) -> None:
        failing = False
        while not self._over.wait(self._every_s):
            try:
                self._write()
                failing = False
            except OSError as exc:
                if not failing:
                    _log.warning("the health file cannot be written: %s", exc)
                failing = True

    def _write(self) -> None:
        health = self._report.look()
        if health.live:
            self._beside.write_text(health.text() + "\n", encoding="utf-8")
            self._beside.replace(self._path)
