"""One janitor process, put together: the loop over things, and what runs left on the disk of this machine."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psycopg

from queue_workflows.db.connections.engine import Database
from queue_workflows.engine.upkeep.run_files import clear, clear_by, has_places
from queue_workflows.errors import ConfigurationError, EmbeddedSetupError, ExitCode, QwfError
from queue_workflows.host.janitor.decisions import Verdict
from queue_workflows.host.janitor.missing_lock_directory import open_directory
from queue_workflows.host.janitor.resources import registered_kinds
from queue_workflows.host.janitor.teardown import reap_here
from queue_workflows.host.locks.flock import usable
from queue_workflows.host.processes.harden import bound_to_launcher, harden
from queue_workflows.roles.heartbeat_pipe import told
from queue_workflows.roles.janitor.janitor import Janitor, JanitorOptions
from queue_workflows.roles.loop import Halt, Waiter
from queue_workflows.roles.process_exit import end_children
from queue_workflows.settings import Settings

_log = logging.getLogger(__name__)

ROLE: Final = "janitor"
_CLEAR_EVERY_S: Final = 600.0
_TEARDOWN_S: Final = 10.0


@dataclass
class Outcome:
    """What one look came to: of each thing, what could not be looked at, directories that were removed."""

    status: ExitCode
    verdicts: list[Verdict] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    directories: list[Path] = field(default_factory=list)


def run_janitor(
    settings: Settings, options: JanitorOptions, command: Sequence[str], db_url: str | None
) -> Outcome:
    """Look after this machine until told to stop, or once; `command` starts a janitor, for its reapers."""
    bound_to_launcher()
    kinds = registered_kinds()
    if not kinds and not has_places(settings):
        raise ConfigurationError(
            f"there is nothing to look after: no resource kind is registered, and {settings.data_dir} has "
            "no directories of runs",
            advice="name the host app that calls register_resource_kind in its wiring, with --app or QWF_APP",
        )
    # Said at once where somebody can mend it; one that vanishes later may come back, and is waited for.
    directory = open_directory(settings.lock_dir, settings.data_dir)
    with Waiter() as waiter:
        halt = Halt(waiter.ring)
        janitor = Janitor(
            kinds,
            lambda: usable(directory),
            command,
            waiter,
            halt,
            options,
            settings.grace_s,
        )

        def is_fine() -> bool:
            return time.monotonic() - janitor.main_at < settings.stale_heartbeat_s and janitor.is_fine

        def nothing() -> None:
            """Nobody here waits for anything that could be cut."""

        is_single = options.once or options.dry
        with (
            halt.on_signals(),
            told(is_fine, nothing),
            _cleared(settings, db_url, now_and_then=not is_single),
        ):
            status = janitor.run()
    outcome = Outcome(status, list(janitor.verdicts.values()), janitor.failures)
    if is_single and not halt.urgency:
        _clear_once(outcome, settings, db_url, dry=options.dry)
    return outcome


def run_reaper(kind: str, name: str, lock: int, report: int) -> ExitCode:
    """Be the reaper of one orphan, holding its lock; what the reaper starts ends before it does."""
    is_ours = all(_is_open(descriptor) for descriptor in (lock, report))
    for one in registered_kinds():
        if one.name == kind and is_ours:
            with harden(deadline_s=one.timeout_s, on_teardown=end_children, teardown_s=_TEARDOWN_S):
                return reap_here(one, name, lock, report)
    what = f"there is no resource kind {kind!r}" if is_ours else "there is no lock to hold"
    raise ConfigurationError(f"--reap: {what}", advice="this option is the janitor's own")


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except (OSError, OverflowError):
        return False
    return True


def _clear_once(outcome: Outcome, settings: Settings, db_url: str | None, *, dry: bool) -> None:
    """Clear directories by what the database says of runs; without one nothing goes."""
    if not has_places(settings):
        return
    try:
        with _connected(settings, db_url) as connection:
            cleared = clear_by(connection, settings, dry_run=dry)
    except (QwfError, OSError, psycopg.Error) as exc:
        outcome.failures.append(f"directories of runs: {' '.join(str(exc).split())}")
        if not isinstance(exc, EmbeddedSetupError):  # there is no database to ask
            outcome.status = outcome.status or getattr(exc, "exit_code", ExitCode.FAILED)
        return
    outcome.directories = cleared.removed
    if cleared.left:
        outcome.failures += [f"directories of runs: {left}" for left in cleared.left]
        outcome.status = outcome.status or ExitCode.FAILED


@contextmanager
def _connected(settings: Settings, db_url: str | None) -> Iterator[psycopg.Connection[object]]:
    with (
        Database.open(db_url, role=ROLE, settings=settings, creates=False) as database,
        closing(database.connect(autocommit=True)) as connection,
    ):
        yield connection


@contextmanager
def _cleared(settings: Settings, db_url: str | None, *, now_and_then: bool) -> Iterator[None]:
    """Clear directories meanwhile, in a thread of its own: waiting for a database delays no reaper."""
    over = threading.Event()

    def work(wait: Callable[[float], bool] = over.wait) -> None:
        said = ""
        while True:
            try:
                if has_places(settings):
                    with _connected(settings, db_url) as connection:
                        clear(connection, settings)
                    said = ""
            except Exception as exc:
                words = " ".join(str(exc).split())
                if words != said:
                    _log.warning("directories of runs stay as they are: %s", words)
                said = words
            if wait(_CLEAR_EVERY_S):
                return

    if now_and_then:
        threading.Thread(target=work, name="qwf-clearing", daemon=True).start()
    try:
        yield
    finally:
        over.set()
