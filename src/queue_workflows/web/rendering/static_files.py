"""The style sheet and the scripts: from the package, under names that change with their contents."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Final

from starlette.responses import PlainTextResponse, Response

_DIRECTORY: Final = Path(__file__).resolve().parent.parent / "static"
_KINDS: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
FOR_EVER: Final = "public, max-age=31536000, immutable"


@lru_cache(maxsize=64)
def _contents(name: str) -> bytes | None:
    """A file of ours by its name, which is not a path."""
    if name not in _names():
        return None
    return (_DIRECTORY / name).read_bytes()


@lru_cache(maxsize=1)
def _names() -> frozenset[str]:
    return frozenset(path.name for path in _DIRECTORY.iterdir() if path.suffix in _KINDS)


@lru_cache(maxsize=64)
def address_of(name: str) -> str:
    """Where a file is found, below the app."""
    contents = _contents(name)
    if contents is None:
        raise FileNotFoundError(name)
    return f"/static/{hashlib.sha256(contents).hexdigest()[:16]}/{name}"


def address_or_none(name: str) -> str | None:
    """Where a file is found, if there is one of this name."""
    return address_of(name) if name in _names() else None


def answer(name: str, is_current: bool) -> Response:
    """The file, to be kept for ever; under an old hash it is what there is now, and is not kept."""
    contents = _contents(name)
    if contents is None:
        return PlainTextResponse("no such file\n", 404)
    headers = {"Cache-Control": FOR_EVER if is_current else "no-cache"}
    return Response(contents, media_type=_KINDS[Path(name).suffix], headers=headers)
