"""What a request must look like before its user is asked about: its host and, to change anything, its origin.

A page on the internet can have a browser send requests to an address on the same machine, also under a name
of its own that it lets lead there. The first is told by the origin, the second by the host name.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from typing import Final

from starlette.requests import Request

from queue_workflows.errors import QwfError

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class RequestRefused(QwfError):
    """A request that is not answered as it is; `status` says to programs in which way it is wrong."""

    def __init__(self, status: int, message: str, *, advice: str | None = None) -> None:
        super().__init__(message, advice=advice)
        self.status = status


def host_of(request: Request) -> str:
    """The name that the request was sent to, without its port, in lower case."""
    given = request.headers.get("host", "").strip().lower()
    if given.startswith("["):
        return given[1:].partition("]")[0]
    return given.rpartition(":")[0] if given.count(":") == 1 else given


def is_known_host(request: Request, hosts: Collection[str] | None) -> bool:
    """Whether the page answers to this name; None is any, where the host app checks names itself."""
    return hosts is None or host_of(request) in hosts


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that is bound to it."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def may_be_program(request: Request) -> bool:
    """Whether a request is from a program, or else from a page of ours.

    A browser that another site has send a request to us says so by `Sec-Fetch-Site` or by `Origin`; a program
    sends neither.
    """
    is_browser = "sec-fetch-site" in request.headers or "origin" in request.headers
    return not is_browser or is_from_our_page(request)


def is_from_our_page(request: Request) -> bool:
    """Whether a request that would change something came from a page of ours.

    A browser says so itself by `Sec-Fetch-Site`. Over plain HTTP to a name it sends none; then its `Origin`
    must be our scheme and host. What sends neither is no browser with a form of ours in it.
    """
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = request.headers.get("origin")
    if origin is None or origin == "null":
        return False
    return origin.lower() == f"{request.url.scheme}://{request.headers.get('host', '').strip().lower()}"
