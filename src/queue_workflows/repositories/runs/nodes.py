"""The nodes of a run: their counters, read and written by the holder of the run's row lock."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields
from typing import Any, Final

from queue_workflows.repositories.sql.arrays import array, texts
from queue_workflows.repositories.sql.connection import Handle, Statements
from queue_workflows.states import NODE_OVER, NodeState
from queue_workflows.workflow.planning.progress import Counters

# Counters by name, and the columns that hold them.
_COUNTS: Final = {
    field.name: field.name if field.name.startswith("parents_") else f"jobs_{field.name}"
    for field in fields(Counters)
    if field.name not in ("node_id", "state", "error")
}
_COLUMNS: Final = ", ".join(_COUNTS.values())
_OVER: Final = ", ".join(f"'{state}'" for state in sorted(NODE_OVER))

READ: Final = f"""
SELECT node_id, state, {_COLUMNS}, error::text FROM workflow_nodes
WHERE run_id = %(run_id)s::uuid AND node_id = ANY (%(node_ids)s::text[])
"""  # noqa: S608 - column names of our own
READ_OF: Final = f"""
SELECT run_id, node_id, state, {_COLUMNS}, error::text FROM workflow_nodes
WHERE run_id = ANY (%(run_ids)s::uuid[])
"""  # noqa: S608 - column names of our own
# given: the rows as they are now, in the order of their keys. A node starts with its first job, and once more
# after a retry let it wait.
WRITE: Final = f"""
WITH given AS (
    SELECT * FROM unnest(
        %(node_id)s::text[], %(state)s::text[], %(mapped)s::boolean[], {{counts}}, %(error)s::text[]
    ) AS given (node_id, state, mapped, {_COLUMNS}, error)
)
INSERT INTO workflow_nodes AS node (
    run_id, node_id, state, mapped, {_COLUMNS}, error, started_at, finished_at
)
SELECT %(run_id)s::uuid, node_id, state, mapped, {_COLUMNS}, NULLIF(error, '')::jsonb,
    CASE state WHEN 'active' THEN statement_timestamp() END,
    CASE WHEN state IN ({_OVER}) THEN statement_timestamp() END
FROM given
ORDER BY node_id COLLATE "C"
ON CONFLICT (run_id, node_id) DO UPDATE SET
    (state, {_COLUMNS}, error) = (excluded.state, {{excluded}}, excluded.error),
    started_at = CASE
        WHEN excluded.state = 'active' THEN COALESCE(node.started_at, excluded.started_at)
        WHEN excluded.state <> 'waiting' THEN node.started_at
    END,
    finished_at = CASE WHEN excluded.finished_at IS NOT NULL
        THEN COALESCE(node.finished_at, excluded.finished_at) END
RETURNING node_id
""".format(  # noqa: S608 - column names of our own
    counts=", ".join(f"%({column})s::integer[]" for column in _COUNTS.values()),
    excluded=", ".join(f"excluded.{column}" for column in _COUNTS.values()),
)
ACTIVE: Final = """
SELECT node_id FROM workflow_nodes WHERE run_id = %(run_id)s::uuid AND state = 'active'
"""
FIRST_FAILURE: Final = """
SELECT node_id, error::text FROM workflow_nodes
WHERE run_id = %(run_id)s::uuid AND state = 'failed'
ORDER BY finished_at, node_id
LIMIT 1
"""


class WorkflowNodeRepository:
    """The counters of runs on the caller's connection."""

    def __init__(self, conn: Handle) -> None:
        self._sql = Statements(conn, "workflow_nodes")

    def read(self, run_id: uuid.UUID, node_ids: Collection[str]) -> dict[str, Counters]:
        """The rows that exist, by node."""
        return self.ask(run_id, node_ids)()

    def read_of(self, run_ids: Collection[uuid.UUID]) -> dict[uuid.UUID, dict[str, Counters]]:
        """The rows that exist of each of these runs, by node."""
        found: dict[uuid.UUID, dict[str, Counters]] = {run_id: {} for run_id in run_ids}
        for run_id, *row in self._sql.rows(READ_OF, {"run_ids": list(run_ids)}):
            found[run_id][row[0]] = _counters(row)
        return found

    def ask(self, run_id: uuid.UUID, node_ids: Collection[str]) -> Callable[[], dict[str, Counters]]:
        """What gives them; in a pipeline when that has ended."""
        rows = self._sql.ask(READ, {"run_id": run_id, "node_ids": list(node_ids)})
        return lambda: {row[0]: _counters(row) for row in rows()}

    def write(self, run_id: uuid.UUID, rows: Iterable[Counters], mapped: Collection[str]) -> None:
        """Insert or change rows; `mapped` are those with a `for_each`."""
        given = list(rows)
        if not given:
            return
        params: dict[str, Any] = {
            "run_id": run_id,
            "node_id": texts(row.node_id for row in given),
            "state": array(row.state.value for row in given),
            "mapped": array("t" if row.node_id in mapped else "f" for row in given),
            "error": texts("" if row.error is None else json.dumps(row.error) for row in given),
        }
        for name, column in _COUNTS.items():
            params[column] = array(str(getattr(row, name)) for row in given)
        self._sql.send(WRITE, params)

    def active(self, run_id: uuid.UUID) -> list[str]:
        """The nodes that have open jobs."""
        return [node_id for (node_id,) in self._sql.rows(ACTIVE, {"run_id": run_id})]

    def first_failure(self, run_id: uuid.UUID) -> tuple[str, Mapping[str, Any] | None] | None:
        """The node that failed first, and what it said."""
        rows = self._sql.rows(FIRST_FAILURE, {"run_id": run_id})
        return (rows[0][0], _loaded(rows[0][1])) if rows else None


def _counters(row: Any) -> Counters:
    node_id, state, *counts, error = row
    named = dict(zip(_COUNTS, counts, strict=True))
    return Counters(node_id, NodeState(state), error=_loaded(error), **named)


def _loaded(text: str | None) -> Any:
    return None if text is None else json.loads(text)
