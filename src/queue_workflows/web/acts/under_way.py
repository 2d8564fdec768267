"""Acts that have begun: how far each is, what it did, and what stopped it, for the user that began it."""

from __future__ import annotations

import logging
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

from queue_workflows.web.access.requests import RequestRefused
from queue_workflows.web.acts.act import Done, Line
from queue_workflows.web.rendering.refusals import Refusal, refusal_of

_log = logging.getLogger(__name__)

PROGRAM_ENDS: Final = "The program that serves this page ends"
MOST_AT_ONCE: Final = 50
MOST_KEPT: Final = 200
# More of them are counted, and not named.
MOST_LINES: Final = 500


@dataclass(eq=False)
class UnderWay:
    """One act, written by the thread that does it and read by pages; each field is replaced as a whole."""

    number: str
    user: str
    act: str
    headline: str
    back: str
    # What the preview had counted, None where it had not.
    foreseen: int | None
    became: Counter[str] = field(default_factory=Counter)
    lines: tuple[Line, ...] = ()
    left: int = 0
    stopped: Refusal | None = None
    is_over: bool = False

    @property
    def total(self) -> int:
        """How many there were so far."""
        return self.became.total()

    def go(self, pages: Callable[[], Iterator[Done]], is_ending: Callable[[], bool] = lambda: False) -> None:
        """Do it page by page; what stops it is kept, and so is what was done before.

        A program that ends waits for the page that it is at, and not for thousands of others.
        """
        try:
            for done in pages():
                self.became = self.became + done.became
                self.left += done.left
                self.lines = (self.lines + done.lines)[:MOST_LINES]
                if is_ending():
                    raise RequestRefused(
                        503, PROGRAM_ENDS, advice="what was done stays so; do the rest again"
                    )
        except Exception as exc:
            self.stop(exc)
        self.is_over = True

    def stop(self, exc: BaseException) -> None:
        """It is over, by this."""
        self.stopped = refusal_of(exc)
        self.is_over = True
        _log.warning("%s by %r stopped after %d: %s", self.act, self.user, self.total, self.stopped.title)


class ActsUnderWay:
    """The latest acts of this process; of those that are over the oldest are forgotten."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._known: dict[str, UnderWay] = {}

    def check_room(self) -> None:
        """Refuse another act while very many wait for their turn."""
        with self._guard:
            going = sum(not one.is_over for one in self._known.values())
        if going >= MOST_AT_ONCE:
            raise RequestRefused(
                503, f"{going} acts are under way already", advice="try again once some are over"
            )

    def begin(self, user: str, act: str, headline: str, *, back: str, foreseen: int | None) -> UnderWay:
        """A place for one more."""
        begun = UnderWay(secrets.token_hex(8), user, act, headline, back, foreseen)
        with self._guard:
            for number in [number for number, one in self._known.items() if one.is_over]:
                if len(self._known) < MOST_KEPT:
                    break
                del self._known[number]
            self._known[begun.number] = begun
        return begun

    def of(self, number: str, user: str) -> UnderWay | None:
        """An act, for the user that began it and nobody else."""
        found = self._known.get(number)
        return found if found is not None and found.user == user else None


def watch(begun: UnderWay, future: Future[Any]) -> None:
    """Have an act stop by what kept its thread from beginning it, such as a database that is away."""

    def ended(future: Future[Any]) -> None:
        if future.cancelled():
            begun.stop(RequestRefused(503, PROGRAM_ENDS))
        elif (exc := future.exception()) is not None:
            begun.stop(exc)

    future.add_done_callback(ended)
