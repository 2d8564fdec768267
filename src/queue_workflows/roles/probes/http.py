"""A small web server that answers GET and HEAD, in threads of its own, for probes and scrapers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple, Self

from queue_workflows.errors import ConfigurationError


class Answer(NamedTuple):
    """What is sent back."""

    status: int
    content_type: str
    body: str


class AnsweringServer:
    """Sends what `answer` has for a path, from a thread for each connection."""

    def __init__(
        self, answer: Callable[[str], Answer], address: tuple[str, int], *, name: str, advice: str
    ) -> None:
        """`name` is what the server is for; `advice` what to do where it cannot listen."""
        try:
            self._server = _server_for(address)(address, _handler(answer))
        except (OSError, UnicodeError) as exc:
            host, port = address
            why = exc.strerror if isinstance(exc, OSError) else None
            raise ConfigurationError(
                f"the {name} server cannot listen on {host}:{port}: {why or exc}", advice=advice
            ) from None
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name=f"qwf-{name}", daemon=True)

    @property
    def url(self) -> str:
        """Where it answers, without a path."""
        host, port = self._server.server_address[:2]
        return f"http://{f'[{host!s}]' if ':' in str(host) else host!s}:{port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def _server_for(address: tuple[str, int]) -> type[ThreadingHTTPServer]:
    """The server class for the address's own family; only one of IPv6 has colons."""

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        # A client that still asks when we go is not waited for.
        block_on_close = False

    return Server


def _handler(answer: Callable[[str], Answer]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 5

        def do_GET(self) -> None:
            status, content_type, text = answer(self.path.partition("?")[0])
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """A probe each second is no event."""

    return Handler
