"""A run as a graph: a box for each node, or for many that are alike, with a bar of their states."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from queue_workflows.drawing.svg.gauges import stacked_rects
from queue_workflows.drawing.svg.icons import icon_at
from queue_workflows.drawing.svg.layers import BOX_HEIGHT, BOX_WIDTH, Layout, laid_out
from queue_workflows.drawing.svg.looks import look_of, word_of
from queue_workflows.drawing.svg.markup import STRONG, fitted, linked, number_of, picture, titled

MOST_BOXES: Final = 300
_TEXT_LEFT: Final = 36
_BAR_TOP: Final = BOX_HEIGHT - 11
_STACK: Final = 4
_SIDE: Final = f"M6 0h-1a5 5 0 0 0-5 5v{BOX_HEIGHT - 10}a5 5 0 0 0 5 5h1z"


class Drawable(Protocol):
    """What is drawn as a box: a node, or `members` of them; `counts` says how many are in which state."""

    @property
    def id(self) -> str: ...
    @property
    def label(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def counts(self) -> Mapping[str, int]: ...
    @property
    def members(self) -> int: ...
    @property
    def note(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Box:
    """A box by its values alone."""

    id: str
    label: str
    kind: str = "task"
    state: str = "waiting"
    counts: Mapping[str, int] = field(default_factory=dict)
    members: int = 1
    note: str = ""


def draw_graph(
    boxes: Sequence[Drawable],
    edges: Sequence[tuple[str, str]],
    *,
    label: str = "The nodes of the run",
    href_of: Callable[[str], str | None] = lambda _id: None,
) -> str:
    """Boxes with parents above children; of more than MOST_BOXES the first ones."""
    shown = {box.id: box for box in boxes[:MOST_BOXES]}
    layout = laid_out(list(shown), edges)
    inner = _edges(layout)
    for box in shown.values():
        inner += _box(box, *layout.corners[box.id], href_of(box.id))
    width, height = number_of(layout.width), number_of(layout.height)
    size = f' width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    return picture(inner, label=label, css="graph", size=size, links=True)


def _edges(layout: Layout) -> str:
    ways = "".join(_way(*piece) for piece in layout.pieces)
    heads = "".join(f"M{number_of(x - 4)} {number_of(y - 6)}h8l-4 6z" for x, y in layout.heads)
    return (f'<path class="edge" d="{ways}"/>' if ways else "") + (
        f'<path class="head" d="{heads}"/>' if heads else ""
    )


def _way(x: float, y: float, to_x: float, to_y: float) -> str:
    """Straight down, or in an even curve."""
    begin = f"M{number_of(x)} {number_of(y)}"
    if abs(x - to_x) < 0.1:
        return f"{begin}V{number_of(to_y)}"
    middle = number_of((y + to_y) / 2)
    return f"{begin}C{number_of(x)} {middle} {number_of(to_x)} {middle} {number_of(to_x)} {number_of(to_y)}"


def _box(box: Drawable, x: float, y: float, href: str | None) -> str:
    look = look_of(box.state)
    frame = f'width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6"'
    has_bar = bool(box.counts) and (box.members > 1 or sum(box.counts.values()) > 1)
    is_many = box.members > 1 or box.kind == "for_each"
    behind = f'<rect class="box many" x="{_STACK}" y="{_STACK}" {frame}/>' if is_many else ""
    room = BOX_WIDTH - _TEXT_LEFT - 8
    inner = (
        f"{titled(_hover(box))}{behind}"
        f'<rect class="box toned" {frame}/><path class="side-mark" d="{_SIDE}"/>'
        f"{icon_at(box.state, 13, 8 if has_bar else 10)}"
        f'<svg x="{_TEXT_LEFT}" y="0" width="{room}" height="{BOX_HEIGHT}">'
        f'<text class="strong" y="{20 if has_bar else 22}">{fitted(box.label, room, letter=STRONG)}</text>'
        f'<text class="tiny muted" y="{35 if has_bar else 39}">{fitted(_second_line(box), room)}</text></svg>'
    )
    if has_bar:
        inner += stacked_rects(box.counts, left=13, width=BOX_WIDTH - 13 - 8, top=_BAR_TOP, height=6)
    place = f"translate({number_of(x)} {number_of(y)})"
    return f'<g class="{look.css}" transform="{place}">{linked(inner, href)}</g>'


def _second_line(box: Drawable) -> str:
    if box.note:
        return box.note
    total = sum(box.counts.values())
    if box.kind == "for_each" and total:
        done = box.counts.get("completed", 0) + box.counts.get("skipped", 0)
        return f"{done:,} of {total:,}"
    if box.members > 1 and box.kind != "counts":
        return f"{box.members:,} nodes"
    return word_of(box.state)


def _hover(box: Drawable) -> str:
    said = [f"{box.label}: {word_of(box.state)}"]
    if len(box.counts) > 1 or box.members > 1:
        said.append(", ".join(f"{count:,} {word_of(state)}" for state, count in box.counts.items() if count))
    said += [box.note] if box.note else []
    return " · ".join(said)
