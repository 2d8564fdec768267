"""Jobs of a limit's key that are inserted many at once: which go into the queue, and which into the lane."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from queue_workflows.repositories.jobs.bulk_insert import BulkTable
from queue_workflows.repositories.limits.lanes import LANE_DELAY_S, LIMIT_FULL

# Where a job goes of which `laned` says whether it waits in the lane.
_LANED: Final = {
    "run_at": f"""CASE
            WHEN laned THEN statement_timestamp() + make_interval(secs => {LANE_DELAY_S})
            ELSE COALESCE(
                COALESCE({{run_at}}, statement_timestamp() + make_interval(secs => {{delay_s}})),
                statement_timestamp()
            )
        END""",
    "hold_reason": f"CASE WHEN laned THEN '{LIMIT_FULL}' END",
    "hold_key": "CASE WHEN laned THEN {limit_key} END",
}


def with_lanes(table: BulkTable, *, status: str, source: str) -> BulkTable:
    """The insert for jobs of which some have a key; apart, so that others neither pay nor need the rights.

    `source` is the rows with a column `laned`, and `status` goes by it. At SERIALIZABLE nobody looks, as the
    caller would then depend on others of the key; there the claim puts aside what is too much.
    """
    made = dict(table.made) | {"status": status} | _LANED
    return replace(table, made=tuple(made.items()), source=source)
