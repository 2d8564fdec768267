"""A worker may claim anew what it holds, before it has seen that it was taken from it.

Where no timer kills a process whose leases have lapsed, as without a kernel's timer, under a debugger, or for
a job that survives outages, the earlier attempt is at work still. It is ended as any that has lost its lease.
"""

from __future__ import annotations

import pytest
from support.processes.workers import patiently
from support.stages.floor import Floor

from queue_workflows.errors import ExitCode

# The guardian looks for what was lost once in two seconds; until then nobody else tells the worker.
SETTINGS = {"QWF_POLL_S": "0.05", "QWF_RENEW_S": "9", "QWF_LEASE_S": "30"}
TAKE_BACK = (
    "UPDATE {table} SET status = 'queued', claimed_by = NULL, lease_expires_at = NULL, suspect = false"
    " WHERE id = %s AND status = 'running'"
)


@pytest.mark.parametrize("deadman", ["on", "off"])
def test_the_attempt_that_was_lost_is_ended(floor: Floor, deadman: str) -> None:
    """It holds a place of the worker that nothing else would give back, and no guard looked after it."""
    job = floor.enqueue(gated=True)
    with floor.worker("--concurrency", "3", QWF_DEADMAN=deadman, **SETTINGS) as worker:
        floor.until_begun(job, 1)
        floor.connection.execute(TAKE_BACK.format(table=floor.jobs.table), [job])
        patiently(lambda: worker.poll() is not None)
        assert worker.returncode == ExitCode.LEASE_LOST
    floor.ledger.open_gate(job, floor.row(job)["attempt"] + 1)
    with floor.worker() as second:
        floor.until_completed(job)
        assert floor.jobs.row(job)["result"]["pid"] == second.pid
