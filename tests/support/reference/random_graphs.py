"""Graphs of any shape, for tests that try them all."""

from __future__ import annotations

from hypothesis import strategies as st

from queue_workflows.workflow.planning.graph import Graph, Shape, graph_from

WHENS = ("all_success", "all_done", "any_success")


@st.composite
def graphs(draw: st.DrawFn, max_nodes: int = 9) -> Graph:
    """Up to so many nodes, each with any earlier ones as parents; the simplest are chains that fail fast."""
    shapes: list[Shape] = []
    for number in range(draw(st.integers(1, max_nodes))):
        parents = draw(st.sets(st.sampled_from(range(number)), max_size=3)) if number else set()
        shapes.append(
            Shape(
                f"n{number}",
                tuple(f"n{parent}" for parent in sorted(parents)),
                when=draw(st.sampled_from(WHENS)),
                on_failure=draw(st.sampled_from(("fail_fast", "continue"))),
                is_mapped=draw(st.booleans()),
            )
        )
    return graph_from(shapes)
