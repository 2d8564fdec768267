"""How a command line ends: the one place where an exception becomes a line on stderr and an exit status."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from contextlib import suppress
from typing import Final

import click

from queue_workflows.cli import Invocation
from queue_workflows.errors import ExitCode, QwfError, SchemaError
from queue_workflows.telemetry.provider import is_configured

PROGRAM: Final = "qwf"
_THREADS_END_WITHIN_S: Final = 5.0
# Longer than any path or address that says something; the last character may be a quote that is closed.
_LONGEST_WORD: Final = 1000
_SHOWN: Final = 100


class Stopped(KeyboardInterrupt):
    """A signal, as an exception, so that every `with` on the way out is left properly.

    A kind of interrupt, because on one of those the driver cancels the statement that the server is at.
    """


class Terminated(Stopped):
    """SIGTERM."""


class Interrupted(Stopped):
    """SIGINT, Ctrl-C."""


def report(exc: BaseException, invocation: Invocation) -> int:
    """Tell the user what happened, and return the status to end with."""
    if isinstance(exc, BrokenPipeError):
        _silence_stdout()
        return ExitCode.PIPE_CLOSED
    lost = _lost_output(exc)
    text, status = lost or _verdict(exc, invocation)
    if lost:
        _silence_stdout()
    with suppress(OSError):
        if invocation.debug:
            traceback.print_exception(exc, file=sys.stderr)
        print(text, file=sys.stderr, flush=True)
    return status


def wait_for_no_thread(status: int) -> None:
    """Let this process end with its status though a thread that a job left behind may never end.

    The interpreter waits for every thread that is no daemon, for ever; and an OpenTelemetry SDK, at its end,
    for what takes the rest that it has to send.
    """
    left = [each for each in threading.enumerate() if each is not threading.main_thread() and not each.daemon]
    if left or is_configured():
        timer = threading.Timer(_THREADS_END_WITHIN_S, _end_beside, [status, left])
        timer.daemon = True
        timer.start()


def _end_beside(status: int, threads: list[threading.Thread]) -> None:
    names = ", ".join(each.name for each in threads if each.is_alive())
    what = f"as they do not end: the threads {names}" if names else "as nobody takes it: some telemetry"
    with suppress(OSError, ValueError, AttributeError):
        print(f"{PROGRAM}: left behind, {what}", file=sys.stderr, flush=True)
    os._exit(status)


def _lost_output(exc: BaseException) -> tuple[str, int] | None:
    """Whether it was printing that failed: click says so, or what is still in stdout's buffer fails again."""
    if not isinstance(exc, OSError) or sys.stdout is None or sys.stdout.closed:
        return None
    frames = [frame for frame, _line in traceback.walk_tb(exc.__traceback__)]
    printing = bool(frames) and frames[-1].f_globals.get("__name__") == "click.utils"
    try:
        sys.stdout.flush()
    except OSError:
        printing = True
    words = f"{PROGRAM}: the output could not be written: {exc.strerror} — make room, or send it elsewhere"
    return (words, ExitCode.CONFIGURATION) if printing else None


def in_one_line(exc: BaseException) -> str:
    """An exception's name and text."""
    return _squeezed(f"{type(exc).__name__}: {exc}").removesuffix(":")


def _verdict(exc: BaseException, invocation: Invocation) -> tuple[str, int]:
    if isinstance(exc, click.ClickException):
        return _click_verdict(exc)
    if isinstance(exc, Terminated):
        return f"{PROGRAM}: terminated", ExitCode.TERMINATED
    if isinstance(exc, (KeyboardInterrupt, click.Abort)):
        return f"{PROGRAM}: interrupted", ExitCode.INTERRUPTED
    if isinstance(exc, UnicodeEncodeError) and exc.encoding == "utf-8":
        # Nothing that is stored has such characters: Python makes them of bytes that it is started with.
        word = exc.object.encode(errors="backslashreplace").decode()
        return (
            f"{PROGRAM}: {word[:80]!r} is no text in UTF-8 — see how the command line writes it",
            ExitCode.USAGE,
        )
    known = exc if isinstance(exc, QwfError) else _database_failure(exc, invocation.db_url)
    if known is not None:
        return f"{PROGRAM}: {_squeezed(str(known))}", known.exit_code
    return f"{PROGRAM}: {in_one_line(exc)} — run it again with --debug to see where", ExitCode.FAILED


def _click_verdict(exc: click.ClickException) -> tuple[str, int]:
    if isinstance(exc, click.exceptions.NoArgsIsHelpError):
        return exc.format_message(), ExitCode.USAGE
    text = _squeezed(exc.format_message())
    if isinstance(exc, click.UsageError):
        path = exc.ctx.command_path if exc.ctx else PROGRAM
        return f"{PROGRAM}: {text} — see `{path} --help`", ExitCode.USAGE
    return f"{PROGRAM}: {text}", exc.exit_code


def _database_failure(exc: BaseException, db_url: str | None) -> QwfError | None:
    """What a driver's complaint means; None for what did not come from a driver."""
    # Looked up, not imported: what was never loaded cannot have raised.
    sqlalchemy, psycopg = sys.modules.get("sqlalchemy.exc"), sys.modules.get("psycopg")
    kinds: tuple[type[BaseException], ...] = ()
    if sqlalchemy is not None:
        kinds += (sqlalchemy.DBAPIError, sqlalchemy.TimeoutError)
    if psycopg is not None:
        kinds += (psycopg.Error,)
    if not isinstance(exc, kinds):
        return None
    from queue_workflows.config import resolve_dsn
    from queue_workflows.db.connections.engine import classify_failure

    try:
        known = classify_failure(exc, resolve_dsn(db_url).dsn or "")
    except QwfError as worse:
        return worse
    return (_behind(db_url) or known) if type(known) is SchemaError else known


def _behind(db_url: str | None) -> SchemaError | None:
    """Why a table or column is not there, asked of the database: as a rule it waits for an upgrade."""
    from queue_workflows.db import wait_for_schema
    from queue_workflows.db.shipped_chain import head

    try:
        wait_for_schema(head(), 0, dsn=db_url, role="cli")
    except SchemaError as why:
        return why
    except QwfError:
        pass
    return None


def _squeezed(text: str) -> str:
    """In one line that can be read: of a word that was pasted at length its beginning is enough."""
    return " ".join(
        word if len(word) <= _LONGEST_WORD else f"{word[:_SHOWN]}…{word[-1]}" for word in text.split()
    )


def _silence_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's last flush has nobody to complain to."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
