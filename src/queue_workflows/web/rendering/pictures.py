"""From what views say to the pictures that show it."""

from __future__ import annotations

from urllib.parse import quote

from markupsafe import Markup

from queue_workflows.drawing.svg.graph import draw_graph
from queue_workflows.views.runs.graph import RunGraph


def graph_picture(graph: RunGraph, prefix: str) -> Markup:
    """The run as boxes, each leading to its node."""
    named = {box.id: box.named[0] for box in graph.boxes if box.named}

    def href_of(box_id: str) -> str | None:
        node = named.get(box_id)
        return None if node is None else f"{prefix}/runs/{graph.run.id}/nodes/{quote(node, safe='')}"

    return _drawn(draw_graph(graph.boxes, graph.edges, href_of=href_of))


def _drawn(svg: str) -> Markup:
    """Every text in it was escaped where it was drawn."""
    return Markup(svg)  # noqa: S704
