"""What a run's retry runs again keeps its row, its attempts and its errors; so do the elements of a list."""

from __future__ import annotations

from typing import Any

import psycopg
from support.rows.jobs import CLEAR
from support.rows.runs import dispatcher, run_through, start

from queue_workflows.engine.runs.retry import retry_run
from queue_workflows.repositories import NodeJobRepository
from queue_workflows.repositories.sql.claimed_job import ClaimedNodeJob

LIST = {
    "nodes": [
        {"id": "plan", "module": "plan"},
        {"id": "draw", "module": "draw", "for_each": {"$from": "plan.scenes"}, "retry": {"max_attempts": 1}},
        {"id": "cut", "module": "cut", "inputs": {"pictures": {"$from": "draw"}}},
    ],
    "outputs": {"pictures": {"$from": "draw"}},
    "on_failure": "continue",
}


def test_from_a_list_and_from_before_it(qwf_dsn: str) -> None:
    """Each element runs again in its row; one that the list has no more is gone, a new one is new."""
    scenes: list[Any] = ["a", "b", None]
    fails = {1}

    def body(job: ClaimedNodeJob) -> dict[str, Any]:
        if job.node_id == "plan":
            return {"scenes": list(scenes)}
        if job.node_id == "draw" and job.map_index in fails:
            raise ValueError("no ink")
        return {"of": job.item, "attempt": job.attempt}

    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        connection.execute(CLEAR)
        crew = dispatcher(connection)
        run = start(connection, LIST)
        run_through(connection, crew, body)

        def rows() -> dict[int, tuple[Any, ...]]:
            return {
                job.map_index: (job.id, job.item, job.status, job.generation, job.attempt, len(job.errors))
                for job in NodeJobRepository(connection).list(run_id=run, node_id="draw")
            }

        first = rows()
        ids = {index: row[0] for index, row in first.items()}
        assert {index: row[1:] for index, row in first.items()} == {
            0: ("a", "completed", 1, 1, 0),
            1: ("b", "failed", 1, 1, 1),
            2: (None, "completed", 1, 1, 0),
        }
        fails.clear()
        retry_run(run, conn=connection, from_node="draw")
        run_through(connection, crew, body)
        assert rows() == {
            0: (ids[0], "a", "completed", 2, 2, 0),
            1: (ids[1], "b", "completed", 2, 2, 1),
            2: (ids[2], None, "completed", 2, 2, 0),
        }
        scenes[:] = ["a", "z"]
        retry_run(run, conn=connection, from_node="plan")
        run_through(connection, crew, body)
        assert rows() == {
            0: (ids[0], "a", "completed", 3, 3, 0),
            1: (ids[1], "z", "completed", 3, 3, 1),
        }
        scenes[:] = ["a", "z", "new"]
        retry_run(run, conn=connection, from_node="plan")
        run_through(connection, crew, body)
        found = rows()
        assert {index: row[1:] for index, row in found.items()} == {
            0: ("a", "completed", 4, 4, 0),
            1: ("z", "completed", 4, 4, 1),
            2: ("new", "completed", 1, 1, 0),
        }
        assert found[2][0] not in ids.values()
        scenes.clear()
        retry_run(run, conn=connection, from_node="plan")
        run_through(connection, crew, body)
        assert rows() == {}
