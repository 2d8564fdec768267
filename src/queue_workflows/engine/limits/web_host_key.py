"""The key of a web host: every job that fetches from it counts against the same limit."""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from typing import Final
from urllib.parse import urlsplit

from queue_workflows.errors import PayloadError

_DEFAULT_PORTS: Final = {"http": 80, "https": 443, "ws": 80, "wss": 443, "ftp": 21, "ftps": 990, "sftp": 22}
_SECRET: Final = re.compile(r"[^/]*@|[?#].*", re.DOTALL)
_LONGEST_HOST: Final = 253
_LONGEST_LABEL: Final = 63


def host_key(url: str) -> str:
    """`host:example.org` for a URL: one key however the host is written, with a port if it is unusual."""
    if not isinstance(url, str):
        raise PayloadError(f"host_key takes a URL, not {type(url).__name__}", path="url")
    try:
        parts = urlsplit(url.strip())
        host, port = parts.hostname or "", parts.port
    except ValueError as wrong:
        raise _refusal(url, str(wrong)) from None
    if not parts.scheme or not host:
        raise _refusal(url, "it names no host")
    if "\\" in parts.netloc or "%" in host:
        raise _refusal(url, "programs differ in what host this is")
    name = _address(host) or _name(host, url)
    return f"host:{name}" if port in (None, _DEFAULT_PORTS.get(parts.scheme)) else f"host:{name}:{port}"


def _address(host: str) -> str | None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return f"[{address.compressed}]" if address.version == 6 else address.compressed


def _name(host: str, url: str) -> str:
    # What looks alike is the same, as it is for resolvers: full-width letters, the dots of other scripts.
    folded = unicodedata.normalize("NFKC", host.lower()).replace("\u3002", ".").removesuffix(".")
    labels = [_label(label, url) for label in folded.split(".")]
    name = ".".join(labels)
    if len(name) > _LONGEST_HOST:
        raise _refusal(url, f"its host has more than {_LONGEST_HOST} characters")
    if labels[-1].isdigit() or labels[-1].startswith("0x"):
        raise _refusal(url, f"{name} is neither a name nor an address")
    return name


def _label(label: str, url: str) -> str:
    # Beside letters and digits what joins them: some scripts need the invisible ones.
    sound = all(char in "-_\u200c\u200d" or unicodedata.category(char)[0] in "LMN" for char in label)
    if not label or not sound:
        raise _refusal(url, f"{label!r} is no part of a host's name")
    written = label if label.isascii() else f"xn--{label.encode('punycode').decode()}"
    if len(written) > _LONGEST_LABEL:
        raise _refusal(url, f"a part of its host has more than {_LONGEST_LABEL} characters")
    return written


def _refusal(url: str, why: str) -> PayloadError:
    # What stands before the host or after the path may be secret.
    shown = _SECRET.sub("", url)
    return PayloadError(
        f"host_key({shown!r:.120}): {why}",
        path="url",
        advice="give a whole URL, as in https://example.org/page",
    )
