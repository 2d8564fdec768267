"""Remarks on stderr beside a command's output: one plain line each."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import click

from queue_workflows.cli.shared.error_exit import PROGRAM
from queue_workflows.cli.shared.root_options import is_quiet

EMBEDDED: Final = "queue_workflows.db.embedded.server"


class FirstNotice(logging.Handler):
    """Tells which embedded server a command uses, once, unless the command logs anyway."""

    def __init__(self) -> None:
        super().__init__()
        self._told = False

    def emit(self, record: logging.LogRecord) -> None:
        logs = logging.getLogger().handlers or logging.getLogger("queue_workflows").handlers
        if not logs and not is_quiet() and (record.levelno > logging.INFO or not self._told):
            self._told = True
            click.echo(f"{PROGRAM}: {record.getMessage()}", err=True)


@contextmanager
def notices_on_stderr() -> Iterator[None]:
    """For the length of a command line, what happens to the embedded server and warnings about variables."""
    logger, handler = logging.getLogger(EMBEDDED), FirstNotice()
    level = logger.level
    logger.addHandler(handler)
    if level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    try:
        with warnings.catch_warnings():
            usual = warnings.showwarning

            def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
                # By name, because help must not wait for the import of the settings.
                if category.__name__ == "UnknownVariable":
                    click.echo(f"{PROGRAM}: {message}", err=True)
                else:
                    usual(message, category, *where, **more)

            warnings.showwarning = show
            yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
