"""kill -9 around the end of a node: its row and its dispatch event are both there, or neither is."""

from __future__ import annotations

import pytest
from support.processes.workers import until
from support.rows.jobs import jobs_of
from support.servers.statement_proxy import Moment, StatementProxy
from support.stages.floor import Floor

from queue_workflows.repositories.claims.end import END, END_ALIKE, END_ALIKE_AND_CLAIM, END_AND_CLAIM

ENDS = tuple(sql["node"] for sql in (END, END_ALIKE, END_AND_CLAIM, END_ALIKE_AND_CLAIM))


@pytest.mark.parametrize(
    "moment",
    [
        Moment.UNREAD,
        # What was executed and not committed is where a row could come without its event.
        pytest.param(Moment.UNCOMMITTED, marks=pytest.mark.slow),
        pytest.param(Moment.UNSENT, marks=pytest.mark.nightly),
    ],
    ids=lambda moment: moment.value,
)
def test_both_or_neither(floor: Floor, proxy: StatementProxy, moment: Moment) -> None:
    """Whoever ends it at last, there is one event, of the attempt whose result the row has."""
    with jobs_of("node", floor.dsn) as nodes:
        node, behind = nodes.enqueue(2, node_module="echo")
        trap = proxy.trap(*ENDS, moment=moment)
        with floor.worker("--queue", "cpu", dsn=proxy.dsn) as victim:
            trap.sprung()
            victim.kill()
            victim.wait()
        trap.drop()
        accepted = moment is Moment.UNREAD
        assert nodes.seen(node, "status", "attempt") == ("completed" if accepted else "running", 1)
        assert nodes.events(node) == ([(1, 1, "completed")] if accepted else [])
        nodes.lapse(*(each for each in (node, behind) if nodes.seen(each, "status") == ("running",)))
        with floor.worker("--queue", "cpu"):
            until(lambda: all(nodes.seen(each, "status") == ("completed",) for each in (node, behind)))
        # The next one comes with an end, unless there is something else to be asked before it.
        was_held = accepted and trap.has_caught(END_AND_CLAIM["node"], END_ALIKE_AND_CLAIM["node"])
        for each, attempt in ((node, 1 if accepted else 2), (behind, 2 if was_held else 1)):
            assert nodes.seen(each, "attempt") == (attempt,)
            assert nodes.events(each) == [(1, attempt, "completed")]
