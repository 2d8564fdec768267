"""How much of a machine our containers use, from cgroup v2 and the container engine's socket.

The engine says which containers are ours, by their names; the kernel says what each uses. Both are only read,
and where either is missing there is nothing to tell.
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

TREE: Final = Path("/sys/fs/cgroup")
_ANSWER_WITHIN_S: Final = 2.0
_MOST_BYTES: Final = 4 * 2**20
# Directories of a tree that are looked at for containers; beyond that it is no machine that we know.
_MOST_PLACES: Final = 20_000
_FIND_AGAIN_S: Final = 60.0
_ID: Final = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")


@dataclass(frozen=True, slots=True)
class Share:
    """What our containers use: CPU in percent of the whole machine, None at the first look."""

    containers: int
    cpu_percent: float | None
    memory_mb: int


class Attribution:
    """Looks again and again; processor time is what was used since the look before."""

    def __init__(
        self,
        prefix: str,
        *,
        tree: Path = TREE,
        sockets: Sequence[Path] | None = None,
        now: Callable[[], float] = time.monotonic,
        cores: int | None = None,
    ) -> None:
        self._prefix = prefix
        self._tree = tree
        self._sockets = engine_sockets(os.environ) if sockets is None else sockets
        self._now = now
        self._cores = cores or os.cpu_count() or 1
        self._places: dict[str, Path] = {}
        self._used_us: dict[str, int] = {}
        self._looked_at = self._found_at = now()
        self._missing: frozenset[str] = frozenset()

    def look(self) -> Share | None:
        """Our share now; None without cgroup v2, or an engine that answers, or any group of what it lists.

        So it is in a container with a tree of its own, even if the engine's socket is there.
        """
        if not (self._tree / "cgroup.controllers").is_file():
            return None
        ours = next((ids for ids in map(self._ours, self._sockets) if ids is not None), None)
        if ours is None:
            return None
        at = self._now()
        self._find(frozenset(ours - self._places.keys()), at)
        used = {one: _used_us(self._places[one]) for one in ours & self._places.keys()}
        told = {one: us for one, us in used.items() if us is not None}
        share = Share(len(told), self._percent(told, at), sum(_memory_mb(self._places[one]) for one in told))
        self._used_us, self._looked_at = told, at
        return share if told or not ours else None

    def _find(self, missing: frozenset[str], at: float) -> None:
        """Look for groups of containers that are new; for those that were not there, not at each look."""
        if missing and (missing != self._missing or at - self._found_at >= _FIND_AGAIN_S):
            self._places = containers_in(self._tree)
            self._missing, self._found_at = missing - self._places.keys(), at

    def _percent(self, used_us: Mapping[str, int], at: float) -> float | None:
        """A container that was not there before counts from the next look on."""
        before, seconds = self._used_us, at - self._looked_at
        if used_us and not before:
            return None
        spent = sum(max(0, us - before[one]) for one, us in used_us.items() if one in before)
        return round(min(100.0, spent / 1e4 / seconds / self._cores), 1) if seconds > 0 else None

    def _ours(self, path: Path) -> set[str] | None:
        listed = list_containers(path)
        if listed is None:
            return None
        return {one for one, names in listed.items() if any(name.startswith(self._prefix) for name in names)}


def engine_sockets(environ: Mapping[str, str]) -> list[Path]:
    """Where Docker and Podman listen, as far as they do so in a file."""
    named = environ.get("DOCKER_HOST", "")
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    return [
        *([Path(named.removeprefix("unix://"))] if named.startswith("unix://") else []),
        Path("/var/run/docker.sock"),
        Path("/run/podman/podman.sock"),
        *([Path(runtime) / "podman" / "podman.sock"] if runtime else []),
    ]


def list_containers(path: Path) -> dict[str, list[str]] | None:
    """The names of the containers that run, by their ids; None if nobody answers there."""
    if not path.is_socket():
        return None
    import http.client  # for those alone that have an engine

    try:
        answer = _get(path, "/containers/json")
    except (OSError, http.client.HTTPException, ValueError, RecursionError):
        return None
    if not isinstance(answer, list):
        return None
    entries = [one for one in answer if isinstance(one, dict) and isinstance(one.get("Id"), str)]
    return {one["Id"]: _names(one.get("Names")) for one in entries}


def _names(told: object) -> list[str]:
    return (
        [name.removeprefix("/") for name in told or () if isinstance(name, str)]
        if isinstance(told, list)
        else []
    )


def _get(path: Path, target: str) -> Any:
    """The JSON that the engine answers with, in no more time and no more bytes than it should take."""
    import http.client

    until = time.monotonic() + _ANSWER_WITHIN_S
    connection = http.client.HTTPConnection("localhost", timeout=_ANSWER_WITHIN_S)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.settimeout(_ANSWER_WITHIN_S)
        line.connect(str(path))
        connection.sock = line
        connection.request("GET", target)
        with connection.getresponse() as response:
            if response.status != http.client.OK:
                raise ValueError(f"status {response.status}")
            body = b""
            while chunk := response.read1(65_536):
                body += chunk
                if len(body) > _MOST_BYTES or time.monotonic() > until:
                    raise ValueError("too much, or too slow")
    return json.loads(body)


def containers_in(tree: Path) -> dict[str, Path]:
    """The groups of containers by their ids, as Docker and Podman name them under each of their drivers.

    The outermost one counts: what a container has within it is its own affair.
    """
    found: dict[str, Path] = {}
    waiting, seen = [tree], 0
    while waiting and seen < _MOST_PLACES:
        place = waiting.pop()
        seen += 1
        with suppress(OSError), os.scandir(place) as entries:
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False):
                    continue
                # Podman's monitor has a group with the id in its name, too.
                named = None if "conmon" in entry.name else _ID.search(entry.name)
                if named is None:
                    waiting.append(Path(entry.path))
                else:
                    found.setdefault(named[0], Path(entry.path))
    return found


def _used_us(place: Path) -> int | None:
    return _figures(place / "cpu.stat").get("usage_usec")


def _memory_mb(place: Path) -> int:
    """Without the page cache that the kernel would give up first, as the engines reckon it."""
    try:
        current = int((place / "memory.current").read_text())
    except (OSError, ValueError):
        return 0
    return max(0, current - _figures(place / "memory.stat").get("inactive_file", 0)) >> 20


def _figures(path: Path) -> dict[str, int]:
    try:
        lines = path.read_text().splitlines()
    except (OSError, ValueError):
        return {}
    pairs = (line.split() for line in lines)
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
