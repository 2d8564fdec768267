"""One look for what there is to sweep, of both families: most ticks of most processes have nothing to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from queue_workflows.repositories.claims.sweep import DUE, LAPSED
from queue_workflows.repositories.limits.lanes import IN_LANE
from queue_workflows.repositories.sql.connection import Handle, Question, Rows, Statements
from queue_workflows.repositories.sql.families import FAMILIES

# The words of the sweeps themselves, and in an index's order: an EXISTS could read the table.
LOOK: Final = (
    """
SELECT
    (SELECT true FROM workflow_node_jobs WHERE {due} ORDER BY run_at LIMIT 1) IS NOT NULL,
    (SELECT true FROM workflow_node_jobs WHERE status = 'running' AND {lapsed} ORDER BY claimed_by LIMIT 1)
        IS NOT NULL,
    (SELECT true FROM workflow_node_jobs WHERE {in_lane} AND hold_key > '' ORDER BY hold_key LIMIT 1)
        IS NOT NULL,
    false,
    (SELECT true FROM ingest_jobs WHERE {due} ORDER BY run_at LIMIT 1) IS NOT NULL,
    (SELECT true FROM ingest_jobs WHERE status = 'running' AND {lapsed} ORDER BY claimed_by LIMIT 1)
        IS NOT NULL,
    (SELECT true FROM ingest_jobs WHERE {in_lane} AND hold_key > '' ORDER BY hold_key LIMIT 1) IS NOT NULL,
    qwf_has_news()
""".replace("{due}", DUE)
    .replace("{lapsed}", LAPSED)
    .replace("{in_lane}", IN_LANE)
)


class Sweepable(NamedTuple):
    """What a family has: jobs that are due, attempts with a lapsed lease, lanes, news for durable functions.

    News of both families are told with those of ingest jobs.
    """

    due: bool
    lapsed: bool
    lanes: bool
    news: bool


def look(handle: Handle) -> Mapping[str, Sweepable]:
    """What there is to sweep, by the families' names."""
    return _sweepable(Statements(handle, "ingest_jobs").rows(LOOK, {}))


def looking() -> Question[Mapping[str, Sweepable]]:
    """`look` as a question, to be asked with others."""
    return Question(LOOK, {}, _sweepable)


def _sweepable(rows: Rows) -> Mapping[str, Sweepable]:
    """The statement has the families in the order of `FAMILIES`."""
    (row,) = rows
    size = len(Sweepable._fields)
    return {
        family.name: Sweepable(*row[number * size : (number + 1) * size])
        for number, family in enumerate(FAMILIES)
    }
