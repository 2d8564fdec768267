"""The rows of a run's nodes as far as the planner has looked at them, and what it has changed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping

from queue_workflows.workflow.planning.graph import Graph
from queue_workflows.workflow.planning.progress import Counters, RunCounters, untouched

Look = Callable[[Collection[str]], Mapping[str, Counters]]


class KnownRows:
    """The rows that are known, and what became of them; None is known to have no row."""

    def __init__(self, graph: Graph, run: RunCounters, look: Look) -> None:
        self.graph, self.run, self.look = graph, run, look
        self.rows: dict[str, Counters | None] = {}
        self.changed: dict[str, Counters] = {}
        self.cascaded = 0

    def row(self, node_id: str) -> Counters:
        """A row that was fetched, as it is by now."""
        return self.rows[node_id] or untouched(self.graph, self.run, node_id)

    def put(self, row: Counters) -> None:
        """Have a row written."""
        self.rows[row.node_id] = self.changed[row.node_id] = row

    def fetch(self, node_ids: Iterable[str]) -> None:
        """Look for those that are not known, all of them at once."""
        missing = [node_id for node_id in node_ids if node_id not in self.rows]
        if missing:
            found = self.look(missing)
            self.rows.update((node_id, found.get(node_id)) for node_id in missing)

    def fetch_ahead(self, node_ids: Iterable[str]) -> None:
        """Fetch these, and below them as many nodes as the cascade has ended so far.

        So a long chain that is cancelled node by node takes few looks, and a look no more than the cascade.
        """
        wanted = {node_id: None for node_id in node_ids if node_id not in self.rows}
        room = self.cascaded
        for node_id in list(wanted) if room else ():
            below = deque(self.graph.nodes[node_id].children)
            while below and room > 0:
                child = below.popleft()
                if child not in self.rows and child not in wanted:
                    wanted[child] = None
                    room -= 1
                    below.extend(self.graph.nodes[child].children)
        self.fetch(wanted)
