"""Jobs of a limit's key that are inserted many at once: which go into the queue, and which into the lane."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from queue_workflows.repositories.jobs.bulk_insert import IS_LATER, RUN_AT, BulkTable
from queue_workflows.repositories.limits.lanes import FRONT, LANE_RUN_AT, LIMIT_FULL

# A job's number among those of its key that come with it.
NTH: Final = "row_number() OVER (PARTITION BY {queue}, {limit_key} ORDER BY position)"


def with_lanes(table: BulkTable, *, is_full: str, elsewhere: str = "false") -> BulkTable:
    """The insert for jobs of which some have a key; apart, so that others neither pay nor need the rights.

    `is_full` says of the n-th of its key whether there is no room in front, and is asked of the first few
    alone; `elsewhere` says of a job that it waits neither in the queue nor in a lane. At SERIALIZABLE nobody
    looks, as the caller would then depend on others of the key; there the claim puts aside what is too much.
    """
    made = dict(table.made)
    laned = f"""CASE
        WHEN {{limit_key}} IS NULL OR {elsewhere} OR {IS_LATER}
            OR current_setting('transaction_isolation') = 'serializable' THEN false
        WHEN {NTH} > {FRONT} THEN true
        ELSE {is_full}
    END"""
    made |= {
        "status": f"CASE WHEN laned THEN 'scheduled' ELSE {made['status']} END",
        "run_at": f"CASE WHEN laned THEN {LANE_RUN_AT} ELSE {RUN_AT} END",
        "hold_reason": f"CASE WHEN laned THEN '{LIMIT_FULL}' END",
        "hold_key": "CASE WHEN laned THEN {limit_key} END",
    }
    return replace(table, made=tuple(made.items()), beside=("laned", laned))
