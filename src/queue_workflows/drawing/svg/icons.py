"""The mark of a state, alone: beside a word in a table, or in the legend of a picture."""

from __future__ import annotations

from queue_workflows.drawing.svg.looks import look_of, word_of
from queue_workflows.drawing.svg.markup import text_of


def icon(state: str, *, label: str | None = None) -> str:
    """The state's shape in its tone; with `label` it is told aloud, without it stands beside a word that is."""
    look = look_of(state)
    told = 'aria-hidden="true"' if label is None else f'role="img" aria-label="{text_of(label)}"'
    return f'<svg class="icon {look.css}" viewBox="0 0 16 16" {told}>{look.shape}</svg>'


def state_mark(state: str) -> str:
    """The shape and the word, in the state's tone."""
    return f'<span class="state {look_of(state).css}">{icon(state)}{text_of(word_of(state), 40)}</span>'


def brand() -> str:
    """The mark of the page itself: steps that lead into one another."""
    return (
        '<svg viewBox="0 0 24 24" aria-hidden="true"><rect class="brand-a" width="24" height="24" rx="6"/>'
        '<path class="brand-b" d="M6 7h5a3 3 0 0 1 3 3v4a3 3 0 0 0 3 3h1M6 12h4M6 17h4"/></svg>'
    )
