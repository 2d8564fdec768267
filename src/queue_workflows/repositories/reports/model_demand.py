"""How many queued jobs want each model, and how many are on hold because no worker could load theirs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from queue_workflows.repositories.reports.queue_statistics import COUNTED
from queue_workflows.repositories.sql.connection import Handle, Statements

# Of more models than this the first by name are counted.
MODELS_COUNTED: Final = 200
# In the words of the indexes of what wants a model, which no other index serves.
_HERE: Final = "COALESCE(status = 'queued' AND queue = 'gpu', false)"
# wanted: each model that a queued job wants, found by a jump to the next one in the index of models; then how
# many want it, counted to the bound.
QUEUED: Final = """
WITH RECURSIVE wanted AS (
    (
        SELECT required_model AS model, 1 AS number FROM workflow_node_jobs
        WHERE {here} AND required_model IS NOT NULL
        ORDER BY required_model LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT next.required_model FROM workflow_node_jobs AS next
        WHERE {here} AND next.required_model > wanted.model
        ORDER BY next.required_model LIMIT 1
    ), number + 1
    FROM wanted WHERE wanted.model IS NOT NULL AND number < %(models)s::bigint
)
SELECT wanted.model, counted.count FROM wanted
CROSS JOIN LATERAL (
    SELECT count(*) FROM (
        SELECT FROM workflow_node_jobs WHERE {here} AND required_model = wanted.model LIMIT %(most)s::bigint
    ) AS job
) AS counted
WHERE wanted.model IS NOT NULL
""".replace("{here}", _HERE)
# By the index of holds, in which the models are the keys.
HELD: Final = """
SELECT hold_key, count(*) FROM (
    SELECT hold_key FROM workflow_node_jobs
    WHERE hold_reason = 'model_unknown' AND hold_key IS NOT NULL
    LIMIT %(most)s::bigint
) AS job
GROUP BY hold_key
"""


@dataclass(frozen=True, slots=True)
class ModelDemand:
    """A model that jobs want; a count that has come to its bound is a lower one."""

    model: str
    queued: int
    held: int
    at_least: bool


class ModelDemandRepository:
    """Reads on the caller's connection."""

    def __init__(self, conn: Handle) -> None:
        self._sql = Statements(conn, "workflow_node_jobs")

    def read(self, *, most: int = COUNTED) -> list[ModelDemand]:
        """Each model that is wanted, by name."""
        params = {"most": most, "models": MODELS_COUNTED}
        queued = {model: int(count) for model, count in self._sql.rows(QUEUED, params)}
        held = {model: int(count) for model, count in self._sql.rows(HELD, params)}
        are_many = sum(held.values()) >= most
        return [
            ModelDemand(
                model,
                queued.get(model, 0),
                held.get(model, 0),
                queued.get(model, 0) >= most or (are_many and model in held),
            )
            for model in sorted(queued.keys() | held.keys())
        ]
