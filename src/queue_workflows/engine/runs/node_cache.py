"""The node rows of runs that moved last, kept from batch to batch, so that the next one need not read them.

Every transaction that writes nodes of a run writes the run's row too. So where that row is still the one
that our own last batch left, its nodes are as we know them; else they are forgotten.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from queue_workflows.states import NODE_OVER
from queue_workflows.workflow.planning.progress import Counters

MOST_NODES: Final = 20_000
_MOST_RUNS: Final = 4_096

# By node; None is known to have no row.
Known = dict[str, Counters | None]


class KeptNodes:
    """What one dispatcher knows on one connection; what is taken out is gone until it is kept again."""

    def __init__(self) -> None:
        self._kept: OrderedDict[uuid.UUID, tuple[str, Known]] = OrderedDict()
        self._nodes = 0

    def take(self, run_id: uuid.UUID, version: str) -> Known:
        """The nodes of a run if its row is of this version; none if others have written it since."""
        was, known = self._kept.pop(run_id, (version, {}))
        self._nodes -= len(known)
        return known if was == version else {}

    def keep(self, run_id: uuid.UUID, version: str, known: Mapping[str, Counters | None]) -> None:
        """After the commit of the transaction that gave the run's row this version; of very many, none.

        What is over matters to nobody below it any more.
        """
        open_ = {node_id: row for node_id, row in known.items() if row is None or row.state not in NODE_OVER}
        if len(open_) > MOST_NODES:
            return
        self._kept[run_id] = version, open_
        self._nodes += len(open_)
        while self._nodes > MOST_NODES or len(self._kept) > _MOST_RUNS:
            _, (_, forgotten) = self._kept.popitem(last=False)
            self._nodes -= len(forgotten)
