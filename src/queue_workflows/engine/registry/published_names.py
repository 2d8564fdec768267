"""What this process knows by name, as it publishes it for operators and for other workers, and what it lacks.

    start ──> publish ──> claim ──> a job of a name that is not known here: put on hold, the name is lacked
                 ^                     └─ claims pass that name's jobs by from then on
                 └── again when more is known

A worker publishes its tasks, or the node modules that its package has, under the digest of all of them and
of the app's version; its heartbeat names the digest, and what it met and lacks.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from importlib.machinery import all_suffixes
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg import errors

from queue_workflows.config import HOOKS_QUEUE, RESERVED_QUEUES, current_config
from queue_workflows.engine.registry.node_modules import PART
from queue_workflows.engine.registry.tasks import current_tasks
from queue_workflows.repositories.workers.code import WorkerCodeRepository
from queue_workflows.settings import Settings

_log = logging.getLogger(__name__)

EVERY_S: Final = 60.0
# How soon a name is published that was registered or found after the start.
LOOK_EVERY_S: Final = 5.0
# A right that is missing is not there a moment later.
_REFUSED_S: Final = 300.0
# More than any host app has; of more these are published, and that there are others.
MOST: Final = 2_000
# So many names that are not known here are passed by; jobs of further ones are put on hold as they come.
MOST_LACKED: Final = 200
_DEEPEST: Final = 8
# Those that this interpreter imports: an extension that was built for another is no module here.
_SUFFIXES: Final = tuple(all_suffixes())
_PART: Final = re.compile(PART, re.ASCII)


class PublishedNames:
    """What a worker of one queue knows and lacks; the guardian publishes it, the main thread lacks names."""

    def __init__(
        self,
        queue: str,
        app_version: str | None,
        names: Callable[[], tuple[Iterable[str], bool]],
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`names` says what is known, and whether there may be more that only a look finds out."""
        self._queue = queue
        self._app_version = app_version
        self._look = names
        self._now = now
        self._known: tuple[tuple[str, ...], bool] | None = None
        self._seen: frozenset[str] = frozenset()
        self._digest: str | None = None
        self._due = 0.0
        # Names that were met and are not known here, in the order in which they were met.
        self.lacked: tuple[str, ...] = ()

    @classmethod
    def of(cls, settings: Settings, queue: str) -> PublishedNames:
        """What the host app registered, or the modules of its package; of hooks nothing."""
        return cls(queue, settings.app_version, _names_of(queue))

    @property
    def versions(self) -> dict[str, str]:
        """What a heartbeat says of the host app's code beside the engine's version."""
        said = {"app": self._app_version, "code": self._digest}
        return {name: value for name, value in said.items() if value is not None}

    def lack(self, name: str) -> bool:
        """Note a name that is not known here; whether its jobs can be passed by from now on."""
        if name not in self.lacked:
            if len(self.lacked) >= MOST_LACKED:
                return False
            self.lacked = (*self.lacked, name)
        return True

    def find(self, names: Iterable[str]) -> None:
        """Note names that are known here after all, as a module that came into the package later."""
        if self.lacked and not (found := set(names)).isdisjoint(self.lacked):
            self.lacked = tuple(name for name in self.lacked if name not in found)

    def keep(self, connection: psycopg.Connection[Any]) -> float:
        """Publish what is known, if that is new, and say now and then that it still is; when to come again.

        What is registered later, while jobs run, is no longer lacked. What was listed before and is lacked
        all the same cannot be imported: to claim its jobs once more would find nothing again.
        """
        names, is_open = self._look()
        known = tuple(sorted(names))
        before, self._seen = self._seen, frozenset(known)
        self.find(self._seen - before)
        now = self._now()
        is_new = (known, is_open) != self._known
        if not is_new and now < self._due:
            return LOOK_EVERY_S
        try:
            self._publish(WorkerCodeRepository(connection), known, is_open)
        except (errors.InsufficientPrivilege, errors.UndefinedTable) as refused:
            _log.error(
                "what this worker knows is not published: %s; apply docs/deploy/grants.sql after an upgrade",
                " ".join(str(refused).split()),
            )
            return _REFUSED_S
        self._known, self._due = (known, is_open), now + EVERY_S
        return LOOK_EVERY_S

    def seen_last(self, connection: psycopg.Connection[Any]) -> None:
        """Say that it is known until now, as this worker ends."""
        if self._digest is not None:
            WorkerCodeRepository(connection).see(self._digest)

    def _publish(self, repository: WorkerCodeRepository, known: tuple[str, ...], is_open: bool) -> None:
        told, is_open = known[:MOST], is_open or len(known) > MOST
        digest = _digest([self._queue, self._app_version, is_open, *told])
        age_s = repository.age_s(digest)
        if age_s is None:
            repository.publish(
                digest, queue=self._queue, app_version=self._app_version, names=told, is_open=is_open
            )
        elif age_s >= EVERY_S / 2:
            repository.see(digest)
        self._digest = digest


def _digest(words: list[Any]) -> str:
    text = json.dumps(words, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:32]


def _names_of(queue: str) -> Callable[[], tuple[Iterable[str], bool]]:
    if queue == HOOKS_QUEUE:
        return lambda: ((), True)
    if queue not in RESERVED_QUEUES:
        return lambda: ([*current_tasks().names(), *current_tasks().code_names()], False)
    config = current_config()
    has_resolver = config.node_resolver is not None
    if config.node_module_package is None:
        return lambda: ((), has_resolver)
    modules, is_whole = modules_below(config.node_module_package)
    return lambda: (modules, has_resolver or not is_whole)


def modules_below(package: str) -> tuple[tuple[str, ...], bool]:
    """The modules of a package by their files, none of which is imported; and whether those are all.

    In an archive, or of an importer of its own, there may be others.
    """
    from importlib.util import find_spec

    try:
        spec = find_spec(package)
    except (Exception, SystemExit):
        # This imports the packages above it, which may raise anything: a job that needs them says so.
        spec = None
    roots = [] if spec is None else list(spec.submodule_search_locations or ())
    names: set[str] = set()
    is_whole = bool(roots)
    for root in roots:
        if not os.path.isdir(root):
            is_whole = False
            continue
        for name in _below(Path(root), "", _DEEPEST):
            names.add(name)
            if len(names) > MOST:
                return tuple(sorted(names)), False
    return tuple(sorted(names)), is_whole


def _below(directory: Path, prefix: str, levels: int) -> Iterator[str]:
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if entry.is_dir():
            if _PART.fullmatch(entry.name):
                yield prefix + entry.name
                if levels:
                    yield from _below(Path(entry.path), f"{prefix}{entry.name}.", levels - 1)
        elif (name := _module_of(entry.name)) is not None:
            yield prefix + name


def _module_of(file: str) -> str | None:
    """The name of the module that a file is imported as, if any name in a row may lead there."""
    for suffix in _SUFFIXES:
        if file.endswith(suffix) and _PART.fullmatch(name := file.removesuffix(suffix)):
            return name
    return None
