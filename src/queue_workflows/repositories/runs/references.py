"""What references can see of a run, read from its rows: its inputs, its own facts, and its nodes' results."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from queue_workflows.repositories.sql.checks import INT_MAX
from queue_workflows.repositories.sql.connection import Handle, Statements

# In `keys` all steps are texts, as the server follows them from `from` on; `indexes` lead into a list.
_FOLLOWED: Final = """CASE WHEN (
    SELECT bool_and(jsonb_typeof({value} #> wanted.keys[{from}:at - 1]) = 'array')
    FROM unnest(wanted.indexes) AS at WHERE at >= {from}
) IS NOT false THEN ({value} #> wanted.keys[{from}:])::text END"""


def _followed(value: str, start: str) -> str:
    return _FOLLOWED.replace("{value}", value).replace("{from}", start)


# wanted: what to look up, each with the steps that lead to the part which is needed, as a node may have
# returned megabytes of which somebody wants the title; of a list the element at `place`, if one is meant.
# node: its results count if it has ended with some; a `for_each` node that failed or was stopped has those of
# its other elements, once it had begun. Where the run is not the engine's, no node has a row, and the job
# alone says it. element: which of its jobs are read, and where in the keys their results' own begin.
# Results are found by the unique key of node jobs, whatever the planner believes.
READ: Final = f"""
WITH wanted AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(%(wanted)s::jsonb)
        AS wanted (number integer, node text, keys text[], indexes integer[], place integer)
)
SELECT wanted.number, NULL::integer AS total, NULL::integer AS place,
    {_followed("run.inputs", "1")}
FROM wanted JOIN workflow_runs AS run ON run.id = %(run_id)s::uuid
WHERE wanted.node IS NULL AND wanted.keys IS NOT NULL
UNION ALL
SELECT wanted.number, NULL, NULL, jsonb_build_object(
    'id', run.id, 'workflow', run.workflow_name, 'labels', run.labels, 'parcel_id', run.parcel_id,
    'created_at', run.created_at
)::text
FROM wanted JOIN workflow_runs AS run ON run.id = %(run_id)s::uuid
WHERE wanted.node IS NULL AND wanted.keys IS NULL
UNION ALL
SELECT wanted.number, node.total, job.map_index, CASE
    WHEN node.total IS NOT NULL AND wanted.place IS NULL THEN job.result::text
    ELSE {_followed("job.result", "element.start")}
END
FROM wanted
LEFT JOIN LATERAL (
    SELECT state, CASE
        WHEN mapped AND (
            state = 'completed' OR (state IN ('failed', 'cancelled') AND jobs_failed + jobs_cancelled > 0)
        ) THEN jobs_total
    END AS total
    FROM workflow_nodes WHERE run_id = %(run_id)s::uuid AND node_id = wanted.node
    LIMIT 1
) AS node ON true
CROSS JOIN LATERAL (
    SELECT CASE WHEN place IS NULL THEN 1 ELSE 2 END AS start,
        COALESCE(place, -1) AS first, COALESCE(place, {INT_MAX}) AS last
    FROM (
        SELECT CASE WHEN node.total IS NOT NULL THEN
            wanted.place + CASE WHEN wanted.place < 0 THEN node.total ELSE 0 END
        END AS place
    ) AS known
) AS element
LEFT JOIN LATERAL (
    SELECT map_index, COALESCE(context_delta, '{{}}') AS result FROM workflow_node_jobs
    WHERE run_id = %(run_id)s::uuid AND node_id = wanted.node AND status = 'completed'
        AND map_index BETWEEN element.first AND element.last
        AND (node.total IS NOT NULL OR (map_index = -1 AND COALESCE(node.state, 'completed') = 'completed'))
    OFFSET 0
) AS job ON true
WHERE wanted.node IS NOT NULL
"""  # noqa: S608 - fragments of our own

Steps: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Want:
    """A part to look up: below a node's result; below the run's inputs; or, without steps, the run itself."""

    node: str | None
    steps: Steps | None = ()

    @property
    def place(self) -> int | None:
        """The element that is meant if the node goes through a list."""
        first = self.steps[0] if self.node is not None and self.steps else None
        if isinstance(first, str):
            return int(first) if first.isascii() and first.isdecimal() and len(first) < 10 else None
        return first

    def asked(self, number: int) -> dict[str, Any]:
        """As the statement takes it."""
        steps = self.steps or ()
        return {
            "number": number,
            "node": self.node,
            "keys": None if self.steps is None else [str(step) for step in steps],
            "indexes": [at for at, step in enumerate(steps, start=1) if isinstance(step, int)],
            "place": self.place,
        }


@dataclass(frozen=True, slots=True)
class Part:
    """What was found, as JSON text, None if there is nothing where the steps lead.

    Of a `for_each` node there is one part per element that is wanted and has a result, with its `place` and
    how many there are in `total`; if none has one, a single part without a place.
    """

    total: int | None
    place: int | None
    text: str | None


class ScopeRepository:
    """Reads on the caller's connection, all that is wanted in one statement."""

    def __init__(self, conn: Handle) -> None:
        self._sql = Statements(conn, "workflow_runs")

    def read(self, run_id: uuid.UUID, wants: Sequence[Want]) -> list[list[Part]]:
        """The parts of each want; none of the run's own where there is no such run."""
        wanted = [want.asked(number) for number, want in enumerate(wants)]
        found: list[list[Part]] = [[] for _ in wants]
        params = {"run_id": run_id, "wanted": json.dumps(wanted)}
        for number, total, place, text in self._sql.rows(READ, params):
            found[number].append(Part(total, place, text))
        return found
