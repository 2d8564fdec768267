"""An HTTP server that bears only so much, and answers 429 to what is more."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Bears:
    """At most so many requests in any second, or so many at once; what came of them is counted."""

    def __init__(self) -> None:
        self.per_s = self.at_once = float("inf")
        self.accepted = self.refused = 0
        self.url = ""
        self._lock = threading.Lock()
        self._recent: deque[float] = deque()
        self._inside = 0

    def enters(self) -> bool:
        """Whether one more is borne."""
        with self._lock:
            now = time.monotonic()
            while self._recent and self._recent[0] <= now - 1:
                self._recent.popleft()
            if len(self._recent) >= self.per_s or self._inside >= self.at_once:
                self.refused += 1
                return False
            self._recent.append(now)
            self._inside += 1
            return True

    def leaves(self) -> None:
        """One has its answer."""
        with self._lock:
            self.accepted += 1
            self._inside -= 1


@contextmanager
def refusing_server(takes_s: float = 0.0) -> Iterator[Bears]:
    """A server on a free port of this machine; an answer takes so long."""
    bears = Bears()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if not bears.enters():
                self.send_response(429)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            time.sleep(takes_s)
            bears.leaves()
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name for it
            """Nothing on the terminal."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        bears.url = f"http://127.0.0.1:{server.server_address[1]}/"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield bears
        finally:
            server.shutdown()
            thread.join()
