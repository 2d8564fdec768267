"""How each state looks, everywhere: one tone and one shape, so that it is told without colour as well."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

TONES: Final = ("good", "bad", "work", "ask", "hold", "due", "idle", "void")

_RING: Final = '<circle class="draw" cx="8" cy="8" r="6.25"/>'
_DISC: Final = '<circle class="fill" cx="8" cy="8" r="7"/>'
_DOTS: Final = '<circle class="draw dots" cx="8" cy="8" r="6.25"/>'
_CHEST: Final = '<rect class="draw" x="1.75" y="1.75" width="12.5" height="12.5" rx="2.5"/>'


def _draw(path: str) -> str:
    return f'<path class="draw" d="{path}"/>'


def _hole(path: str) -> str:
    return f'<path class="hole" d="{path}"/>'


def _fill(path: str) -> str:
    return f'<path class="fill" d="{path}"/>'


@dataclass(frozen=True, slots=True)
class Look:
    """The tone, and the shape within a square of 16."""

    tone: str
    shape: str

    @property
    def css(self) -> str:
        """The class that gives an element its tone."""
        return f"tone-{self.tone}"


UNKNOWN: Final = Look("idle", _DOTS + _draw("M6.2 6.3a1.9 1.9 0 1 1 2.7 1.8c-.6.3-.9.7-.9 1.3M8 11.6v.01"))

LOOKS: Final[Mapping[str, Look]] = {
    # Jobs, runs and nodes.
    "waiting": Look("idle", _DOTS),
    "scheduled": Look("due", _RING + _draw("M8 4.75V8l2.25 1.5")),
    "queued": Look("idle", _RING),
    "active": Look("work", _RING + _fill("M8 3a5 5 0 0 1 0 10z")),
    "running": Look("work", _DISC + '<path class="dot" d="M6.25 4.9v6.2L11.2 8z"/>'),
    "awaiting_input": Look("ask", _fill("M8 .6 15.4 8 8 15.4.6 8z") + _hole("M8 4.6v4M8 11.2v.01")),
    "completed": Look("good", _DISC + _hole("M4.9 8.3 7.1 10.5 11.2 5.9")),
    "skipped": Look("idle", _draw("M3 4l4 4-4 4M8.5 4l4 4-4 4")),
    "failed": Look("bad", _fill("M5 .8h6L15.2 5v6L11 15.2H5L.8 11V5z") + _hole("M5.5 5.5l5 5M10.5 5.5l-5 5")),
    "cancelled": Look("void", _RING + _draw("M3.7 12.3l8.6-8.6")),
    # Workers, and what is wished of them.
    "starting": Look("due", _RING + _draw("M8 11V5.2M5.6 7.4 8 5l2.4 2.4")),
    "idle": Look("good", _RING + '<circle class="fill" cx="8" cy="8" r="2.5"/>'),
    "busy": Look("work", _CHEST + _fill("M4.5 4.5h7v7h-7z")),
    "paused": Look("hold", _RING + _draw("M6.25 5.6v4.8M9.75 5.6v4.8")),
    "parked": Look("ask", _draw("M8 1.2 14.8 8 8 14.8 1.2 8z")),
    "stopping": Look("due", _RING + _draw("M8 5v5.8M5.6 8.6 8 11l2.4-2.4")),
    "quarantined": Look("bad", _draw("M8 1.8 14.8 13.8H1.2zM8 6v3.6M8 11.6v.01")),
    "gone": Look("void", _DOTS + _draw("M5.75 5.75l4.5 4.5M10.25 5.75l-4.5 4.5")),
    "on": Look("good", _draw("M4.3 4.2a5.6 5.6 0 1 0 7.4 0M8 1.6v5.6")),
    "pause": Look("hold", _fill("M3.5 2.5h3v11h-3zM9.5 2.5h3v11h-3z")),
    "off": Look("void", _CHEST + _draw("M5.2 8h5.6")),
    # Binaries, answers, and what an operator reads of a thing that has no state of its own.
    "installed": Look("good", _CHEST + _draw("M5 8.2 7.2 10.4 11 5.9")),
    "pending": Look("ask", _DOTS + _draw("M5.4 8h.01M8 8h.01M10.6 8h.01")),
    "accepted": Look("good", _draw("M2.2 8.6 6 12.4 13.8 4")),
    "rejected": Look("bad", _draw("M3.2 3.2l9.6 9.6M12.8 3.2l-9.6 9.6")),
    "loaded": Look(
        "good", _fill("M8 .8 14.4 4.4v7.2L8 15.2 1.6 11.6V4.4z") + _hole("M8.8 4 5.8 8.6h4L7.2 12")
    ),
    "cached": Look("idle", _draw("M8 1.6 13.7 4.8v6.4L8 14.4 2.3 11.2V4.8z")),
    "wanted": Look("hold", _draw("M8 1.6 13.7 4.8v6.4L8 14.4 2.3 11.2V4.8zM8 5.2v3.4M8 10.8v.01")),
    "held": Look("hold", _fill("M2.5 7h11v7.5h-11z") + _draw("M4.9 7V4.8a3.1 3.1 0 0 1 6.2 0V7")),
    "ok": Look(
        "good",
        _fill("M8 .8 14.5 3v5c0 4-2.9 6.4-6.5 7.4C4.4 14.4 1.5 12 1.5 8V3z") + _hole("M5 8l2.2 2.2 3.9-4.3"),
    ),
    "warning": Look("hold", _fill("M8 .9 15.6 14.6H.4z") + _hole("M8 5.8v3.8M8 11.9v.01")),
    "error": Look("bad", _DISC + _hole("M8 4.2v4.6M8 11.5v.01")),
    "info": Look("work", _RING + _draw("M8 7.4v3.6M8 4.9v.01")),
}


def look_of(state: str) -> Look:
    """The look of a state; of a word that is none, that it is not known."""
    return LOOKS.get(state, UNKNOWN)


def word_of(state: str) -> str:
    """The state as it is read."""
    return state.replace("_", " ")
