"""What a run does about the runs below it: it waits for their ends, and lets no more of them be open at once.

    opened ──> nothing below? ──> over at once
           └─> parked ──events of those below, ends of its own hooks──> nothing left? ──> its job completed

The wait holds no worker. What has ended below, whatever it came to, is looked up and never counted: so a
retry, a cancel or pruning changes nothing but what is found next time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from queue_workflows.engine.runs.repositories import DispatchTools
from queue_workflows.repositories.runs.outbox import READY, LockedRun, TakenEvent
from queue_workflows.repositories.runs.tree import DESCENDANTS
from queue_workflows.workflow.document.nodes import BaseNode, DescendantsNode


class RunTree:
    """The tree below one locked run."""

    def __init__(self, tools: DispatchTools, run: LockedRun, *, sets_up: bool = False) -> None:
        """`sets_up` says that the run sets up the tree for the others."""
        self._tools, self._run, self._sets_up = tools, run, sets_up
        self._begins_to_wait = False

    def passes(self, node: BaseNode) -> bool:
        """Whether a node waits for runs below, and there is none now that its time has come."""
        if not isinstance(node, DescendantsNode):
            return False
        self._begins_to_wait = node.always or self._tools.tree.has_children(self._run.id)
        return not self._begins_to_wait

    def act(self, events: Iterable[TakenEvent], *, send: Callable[[], None]) -> bool:
        """See whether the wait is over, and let others begin; whether the dispatcher has more to do by that.

        What others need has begun, it may be on another host than before: there they belong as well.
        `send` sends what is to be written before something is looked up.
        """
        admitted = self._has_admitted(events)
        if self._sets_up and any(event.kind == READY for event in events):
            self._tools.tree.follow(self._run.id)
        if not (self._begins_to_wait or self._run.awaits_descendants):
            return admitted
        send()
        job_id = self._tools.tree.job_at_end(self._run.id)
        if job_id is not None:
            self._tools.jobs.mark_completed(job_id, {})
        elif self._begins_to_wait:
            self._tools.tree.send_awaits(self._run.id)
            self._tools.tree.send_told(self._run.id, cap=True)
        return admitted or job_id is not None

    def end(self, *, parent_hears: bool) -> None:
        """Tell those above that the run is over; not a parent that hears of the end of the job for it."""
        parent = self._run.parent_run_id is not None and not parent_hears
        if parent or self._run.is_capped:
            self._tools.tree.send_told(self._run.id, parent=parent, cap=True)

    def act_when_over(self, events: Iterable[TakenEvent]) -> bool:
        """Pass on what is told to a run that is over; whether others may begin by that."""
        events = list(events)
        if any(event.kind == DESCENDANTS for event in events):
            self._tools.tree.send_told(self._run.id, parent=True)
        return self._has_admitted(events)

    def _has_admitted(self, events: Iterable[TakenEvent]) -> bool:
        most = self._run.max_open_runs
        if most is None or not any(event.kind == DESCENDANTS for event in events):
            return False
        return self._tools.tree.admit(self._run.id, most) > 0
