"""Where a probe finds a worker's health: over HTTP, or in a file that is written anew each second."""

from __future__ import annotations

import logging
import os
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from queue_workflows.errors import ConfigurationError
from queue_workflows.roles.health import HealthReport

_log = logging.getLogger(__name__)
_WRITE_EVERY_S: Final = 1.0


class HealthServer:
    """GET /live and /ready: 200 if so, else 503, each with the whole answer as JSON."""

    def __init__(self, report: HealthReport, address: tuple[str, int]) -> None:
        try:
            self._server = _server_for(address)(address, _handler(report))
        except OSError as exc:
            host, port = address
            raise ConfigurationError(
                f"the health server cannot listen on {host}:{port}: {exc.strerror or exc}",
                advice="give another port or address with --health",
            ) from None
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="qwf-health", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        host, port = self._server.server_address[:2]
        _log.info("health: http://%s:%d/live and /ready", f"[{host!s}]" if ":" in str(host) else host, port)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


def _server_for(address: tuple[str, int]) -> type[ThreadingHTTPServer]:
    """Of the address's own family; only one of IPv6 has colons."""

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET

    return Server


def _handler(report: HealthReport) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 5

        def do_GET(self) -> None:
            health = report.look()
            answers = {"/live": health.live, "/ready": health.ready}
            fine = answers.get(self.path.partition("?")[0])
            self.send_response(404 if fine is None else 200 if fine else 503)
            body = health.text().encode() + b"\n"
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """A probe each second is no event."""

    return Handler


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

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
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
