"""How far a command has come, on stderr: drawn in one place of a terminal, else a line now and then."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Final

import click

from queue_workflows.cli.shared.operator import say
from queue_workflows.cli.shared.root_options import is_quiet
from queue_workflows.drawing.terminal import Terminal
from queue_workflows.drawing.words import say_span

_DRAWN_EVERY_S: Final = 0.1
_TOLD_EVERY_S: Final = 10.0
_BAR: Final = 16


class Progress:
    """Call it as often as you like with a share from 0 to 1, if known, and words; `done` ends the line."""

    def __init__(
        self, environ: Mapping[str, str] = os.environ, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._terminal = Terminal() if sys.stderr is None else Terminal.of(sys.stderr, environ)
        self._draws = self._terminal.columns is not None and environ.get("TERM") != "dumb"
        self._now = now
        self._started = now()
        self._next = self._started + (_DRAWN_EVERY_S if self._draws else _TOLD_EVERY_S)
        self._is_drawn = False
        # Asked for here: a thread that is handed this has no command line of its own.
        self._is_quiet = is_quiet()

    @property
    def seconds(self) -> float:
        """Since it began."""
        return self._now() - self._started

    def __call__(self, share: float | None, words: str) -> None:
        """Show how far it is, if it is time to."""
        now = self._now()
        if self._is_quiet or now < self._next:
            return
        self._next = now + (_DRAWN_EVERY_S if self._draws else _TOLD_EVERY_S)
        if not self._draws:
            say(words if share is None else f"{share:.0%}  {words}")
            return
        line = words
        if share is not None:
            filled = round(_BAR * share)
            left = f", {say_span(self.seconds / share * (1 - share))} left" if share > 0.01 else ""
            line = (
                f"{self._terminal.glyphs('█' * filled + '░' * (_BAR - filled))} {share:4.0%}  {words}{left}"
            )
        columns = (Terminal.of(sys.stderr, {}).columns or 80) - 1
        click.echo(f"\r\x1b[K{self._terminal.cut(line, columns)}", nl=False, err=True)
        self._is_drawn = True

    def say(self, words: str) -> None:
        """A remark of its own, above the line."""
        self.done()
        if not self._is_quiet:
            say(words)

    def done(self) -> None:
        """Take the line away; what is written next begins at its place."""
        if self._is_drawn:
            click.echo("\r\x1b[K", nl=False, err=True)
            self._is_drawn = False
