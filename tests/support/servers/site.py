"""A small site to be archived: pages, an image, a PDF, a feed, a sound and a redirect."""

from __future__ import annotations

import re
import struct
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# What each page has of its own, by its number.
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Canal {n}</title>
<meta name="description" content="All about canal {n}">
<link rel="icon" href="/favicon.png"><link rel="alternate" type="application/rss+xml" href="/feed.xml">
</head><body><h1>Canal {n}</h1>
<article><p>{words}</p><p>{words}</p><p>{words}</p></article>
<p><a href="/page/{next}">The next canal</a>
<a href="/paper.pdf">A paper</a> <a href="/song.wav">A song</a></p>
<img src="/boat.png" alt="A boat"><script>console.log("canal {n} is open")</script></body></html>
"""
WORDS = (
    "Boats on canal {n} wait at the lock until the water has risen, and the keeper opens the gates for them."
)
FEED = """<?xml version="1.0"?><rss version="2.0"><channel><title>Canals</title><link>/</link>
<item><title>Canal 1</title><link>/page/1</link></item></channel></rss>"""


# Names pages, and nothing else that is of use.
LIST = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Canals</title></head>
<body><h1>Canals {first} to {last}</h1><ul>{links}</ul>
<script>console.log("the list is open")</script></body></html>
"""


def list_of_pages(first: int, last: int) -> str:
    """A page that names all pages of these numbers."""
    links = "".join(f'<li><a href="/page/{n}">Canal {n}</a></li>' for n in range(first, last + 1))
    return LIST.format(first=first, last=last, links=links)


def page(number: int) -> str:
    """The page of a number, as it is served."""
    return PAGE.format(n=number, next=number + 1, words=WORDS.format(n=number))


def picture(size: int = 16) -> bytes:
    """A PNG of one colour."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + b"\x20\x60\xa0" * size for _ in range(size))
    head = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def paper() -> bytes:
    """A PDF of one empty page."""
    return (
        b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n"
        b"2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj\n"
        b"3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 200 200]>>endobj\n"
        b"trailer<</Root 1 0 R>>\n%%EOF\n"
    )


def song(seconds: int = 1) -> bytes:
    """A WAV of silence."""
    data = b"\x80" * 8_000 * seconds
    fmt = struct.pack("<IHHIIHH", 16, 1, 1, 8_000, 8_000, 1, 8)
    return (
        b"RIFF"
        + struct.pack("<I", 36 + len(data))
        + b"WAVEfmt "
        + fmt
        + b"data"
        + struct.pack("<I", len(data))
        + data
    )


class _Site(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """The file, or 404."""
        path = self.path.partition("?")[0]
        if path == "/old":
            self._send(302, "text/plain", b"", location="/page/1")
        elif path.startswith("/page/") and path.removeprefix("/page/").isdecimal():
            self._send(200, "text/html; charset=utf-8", page(int(path.removeprefix("/page/"))).encode())
        elif (numbers := re.fullmatch(r"/list/([0-9]+)-([0-9]+)", path)) is not None:
            listed = list_of_pages(int(numbers[1]), int(numbers[2]))
            self._send(200, "text/html; charset=utf-8", listed.encode())
        elif (found := _FILES.get(path)) is not None:
            self._send(200, *found)
        else:
            self._send(404, "text/plain", b"not here")

    do_HEAD = do_GET

    def _send(self, status: int, kind: str, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


_FILES = {
    "/boat.png": ("image/png", picture()),
    "/favicon.png": ("image/png", picture()),
    "/paper.pdf": ("application/pdf", paper()),
    "/song.wav": ("audio/wav", song()),
    "/feed.xml": ("application/rss+xml", FEED.encode()),
}


@contextmanager
def serving_site() -> Iterator[str]:
    """Its address, by a name that a resolver knows."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Site) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://localhost:{server.server_port}"
        server.shutdown()
