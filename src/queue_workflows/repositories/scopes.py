"""What references can see of a run, read from its rows: its inputs, its own facts, and its nodes' results."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from queue_workflows.models import WorkflowRun
from queue_workflows.repositories.connection import Handle, Statements

# wanted: what to look up, each with the keys that lead to the part which is needed, as a node may have
# returned megabytes of which somebody wants the title. node: its results count if it has ended with some; a
# `for_each` node that failed or was stopped has those of its other elements, once it had begun. Where the run
# is not the engine's, no node has a row, and the job alone says it. Results are found by the unique key of
# node jobs, whatever the planner believes.
READ: Final = """
WITH wanted AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(%(wanted)s::jsonb) AS wanted (number integer, node text, keys text[])
)
SELECT wanted.number, NULL::integer AS total, NULL::integer AS place, (run.inputs #> wanted.keys)::text
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
SELECT wanted.number, node.total, job.map_index,
    (CASE WHEN node.total IS NULL THEN job.result #> wanted.keys ELSE job.result END)::text
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
LEFT JOIN LATERAL (
    SELECT map_index, COALESCE(context_delta, '{}') AS result FROM workflow_node_jobs
    WHERE run_id = %(run_id)s::uuid AND node_id = wanted.node AND status = 'completed'
        AND (node.total IS NOT NULL OR (map_index = -1 AND COALESCE(node.state, 'completed') = 'completed'))
    OFFSET 0
) AS job ON true
WHERE wanted.node IS NOT NULL
"""


@dataclass(frozen=True, slots=True)
class Want:
    """A part to look up: below a node's result; below the run's inputs; or, without keys, the run itself."""

    node: str | None
    keys: tuple[str, ...] | None = ()


@dataclass(frozen=True, slots=True)
class Part:
    """What was found, as JSON text, None if there is nothing at the keys.

    Of a `for_each` node there is one part per element that has a result, the whole of it, with its `place`
    and how many there are in `total`; if no element has one, a single part without a place.
    """

    total: int | None
    place: int | None
    text: str | None


class ScopeRepository:
    """Reads on the caller's connection, all that is wanted in one statement."""

    def __init__(self, conn: Handle) -> None:
        self._sql = Statements(conn, WorkflowRun)

    def read(self, run_id: uuid.UUID, wants: Sequence[Want]) -> list[list[Part]]:
        """The parts of each want; none of the run's own where there is no such run."""
        wanted = [
            {"number": number, "node": want.node, "keys": want.keys} for number, want in enumerate(wants)
        ]
        found: list[list[Part]] = [[] for _ in wants]
        params = {"run_id": run_id, "wanted": json.dumps(wanted)}
        for number, total, place, text in self._sql.rows(READ, params):
            found[number].append(Part(total, place, text))
        return found
