"""The mark of a state, alone: beside a word in a table, or in the legend of a picture."""

from __future__ import annotations

from typing import Final

from queue_workflows.drawing.svg.looks import look_of, word_of
from queue_workflows.drawing.svg.markup import number_of, text_of

_DOTS: Final = "M6.5 5.9a1.6 1.6 0 1 0 .01 0zM6.5 14.9a1.6 1.6 0 1 0 .01 0zM17.5 10.4a1.6 1.6 0 1 0 .01 0z"


def icon(state: str, *, label: str | None = None) -> str:
    """The state's shape in its tone; with `label` it is told aloud, else it stands beside a word that is."""
    look = look_of(state)
    told = 'aria-hidden="true"' if label is None else f'role="img" aria-label="{text_of(label)}"'
    return f'<svg class="icon {look.css}" viewBox="0 0 16 16" {told}>{look.shape}</svg>'


def icon_at(state: str, x: float, y: float) -> str:
    """The shape within another picture, where something around it has the tone."""
    place = f'x="{number_of(x)}" y="{number_of(y)}" width="16" height="16"'
    return f'<svg class="icon" {place} viewBox="0 0 16 16">{look_of(state).shape}</svg>'


def state_mark(state: str, word: str | None = None) -> str:
    """The shape and the word, in the state's tone; `word` for what looks like it and is called otherwise."""
    said = text_of(word or word_of(state), 40)
    return f'<span class="state {look_of(state).css}">{icon(state)}{said}</span>'


def brand() -> str:
    """The mark of the page itself: steps that lead into one another."""
    ground = '<rect class="brand-a" width="24" height="24" rx="6"/>'
    ways = '<path class="brand-c" d="M6.5 7.5 12 12l-5.5 4.5M12 12h5.5"/>'
    dots = f'<path class="brand-b" d="{_DOTS}"/>'
    return f'<svg viewBox="0 0 24 24" aria-hidden="true">{ground}{ways}{dots}</svg>'
