"""One run's part of the outbox, acted on in one transaction, under the run's row lock.

events ──planner──> ready nodes ──decided here──> answers ──planner──> … until nothing is ready
                        │
                        └─> jobs, child runs, parked rows            all of it, or none, with the events

A batch opens so many nodes and elements and no more: what is ready beyond that is put off by events of its
own, so that no transaction takes long, however many nodes become ready at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from queue_workflows.engine.node_inputs.references import load_scope
from queue_workflows.engine.runs.child_runs import ChildRuns
from queue_workflows.engine.runs.close_run import end_of, tell_parent
from queue_workflows.engine.runs.node_cache import Known
from queue_workflows.engine.runs.open_nodes import (
    NotOpened,
    Opening,
    broken_by,
    decided,
    needed_to_open,
    new_jobs,
)
from queue_workflows.engine.runs.parked_inputs import Parking
from queue_workflows.engine.runs.repositories import DispatchTools
from queue_workflows.engine.runs.tree import RunTree
from queue_workflows.errors import PayloadError, RefError
from queue_workflows.repositories.jobs.nodes import NewNodeJob
from queue_workflows.repositories.runs.outbox import (
    ATTEMPTED,
    EXPAND,
    LOST,
    READY,
    REOPEN,
    RUN_FINISHED,
    LockedRun,
    TakenEvent,
)
from queue_workflows.repositories.runs.tree import DESCENDANTS
from queue_workflows.repositories.sql.pipeline_commits import pipeline_ends_at_its_sync
from queue_workflows.states import JOB_TERMINAL, JobStatus, NodeState, RunStatus
from queue_workflows.workflow.document.load import BaseNode, Document, InputNode, SealNode, WorkflowNode
from queue_workflows.workflow.planning.ends_awaited import ends_awaited
from queue_workflows.workflow.planning.graph import Graph
from queue_workflows.workflow.planning.plan import advance
from queue_workflows.workflow.planning.progress import (
    Attempted,
    Begun,
    Broken,
    CancelNode,
    CancelRun,
    Counters,
    Ended,
    Event,
    Lost,
    NodeError,
    Opened,
    Reopened,
    SkippedNode,
    opens_no_more,
    untouched,
)
from queue_workflows.workflow.planning.sessions import lost_session
from queue_workflows.workflow.references.paths import Path

# How much a batch opens, but for the last list, of which a whole part is opened.
NODES_AT_ONCE: Final = 2_000
ROWS_AT_ONCE: Final = 5_000
AHEAD_AT_ONCE: Final = 100
_OF_AN_ATTEMPT: Final[Mapping[str, Callable[[str], Event]]] = {
    ATTEMPTED: Attempted,
    READY: partial(Attempted, has_begun=True),
    LOST: Lost,
}
_NO_NEWS: Final = frozenset({"begin", JobStatus.AWAITING_INPUT.value, DESCENDANTS})


class Advancing:
    """What follows from some events of a run; `act` is called once.

    `known` are nodes as they are stored.
    """

    def __init__(
        self, tools: DispatchTools, run: LockedRun, document: Document, graph: Graph, known: Known
    ) -> None:
        self._tools = tools
        self._run = run
        self._document = document
        self._graph = graph
        self._known = known
        self._parking = Parking(tools, run, document)
        self._tree = RunTree(tools, run, sets_up=document.tree is not None)
        self._openings: dict[str, Opening] = {}
        self._expansions: list[tuple[str, int]] = []
        self._written: dict[str, Counters] = {}
        self._stopped: set[str] = set()
        # Statements with unused rows; they go together, at the end or before what they write is read.
        self._unsent: list[Callable[[], None]] = []
        self._cancel_reason: str | None = None
        self.has_put_off = self.has_ended = self.has_followed = False
        self._nodes_room, self._rows_room = NODES_AT_ONCE, ROWS_AT_ONCE

    def act(self, events: Sequence[TakenEvent]) -> None:
        """Do all that follows; what remains is `send`."""
        begun: list[Event] = [Begun()] if self._run.status is RunStatus.QUEUED else []
        planned = [*begun, *self._planned(events)]
        self._step = advance(self._graph, self._run.counters, planned, self._look)
        while self._settle():
            self.has_followed = True
        for event in events:
            if event.kind == "input_submitted":
                self._parking.answer(event.payload["submission_id"])
        self.has_put_off |= self._tree.act(events, send=self._send_now)
        self._write()
        over, counters, end = self._step.over, self._step.run, None
        if over is not None:
            self.has_ended = True
            self._send_now()
            end = end_of(self._tools, self._run, over, self._document)
            parent_hears = tell_parent(self._tools, self._run, end)
            self._unsent.append(partial(self._tree.end, parent_hears=parent_hears))
            self._unsent.append(partial(self._tools.events.send_event, self._run.id, RUN_FINISHED))
        self._unsent.append(
            partial(self._tools.events.save, self._run, counters, end=end, cancel_reason=self._cancel_reason)
        )

    def send(self) -> None:
        """Write what nobody waits for, in a pipeline; the caller's commit goes with it."""
        unsent, self._unsent = self._unsent, []
        for statement in unsent:
            statement()

    def _send_now(self) -> None:
        """Send what is unsent in a pipeline of its own, before something is read that it writes."""
        if self._unsent:
            with pipeline_ends_at_its_sync(self._tools.connection):
                self.send()

    def ask_ahead(self) -> Callable[[], Known]:
        """Ask for what the ends of the nodes that were opened will concern, behind the commit.

        What it returns gives all that is known of the nodes then, when the pipeline has ended.
        """
        opened = (node for node in self._step.nodes.values() if node.state is NodeState.ACTIVE)
        below = {child for node in opened for child in self._graph.nodes[node.node_id].children}
        self._known.update(self._step.nodes)
        ahead = [child for child in below if child not in self._known]
        if not 0 < len(ahead) <= AHEAD_AT_ONCE:
            return lambda: self._known
        found = self._tools.nodes.ask(self._run.id, ahead)

        def known() -> Known:
            self._learn(ahead, found())
            return self._known

        return known

    def ends_awaited(self, known: Known) -> int:
        """How many jobs must end before anything follows, as far as the nodes are `known` by now."""
        return ends_awaited(self._graph, self._step.run, known.values())

    def _planned(self, events: Iterable[TakenEvent]) -> list[Event]:
        """The events as the planner takes them; ends of one node and kind as one.

        What is told of an attempt comes first: where a session was lost, what ended since runs again.
        """
        ends: dict[tuple[str, JobStatus], Ended] = {}
        attempts: list[Event] = []
        others: list[Event] = []
        for event in events:
            if event.kind in JOB_TERMINAL:
                if event.is_current and event.node_id is not None:
                    status = JobStatus(event.kind)
                    before = ends.get((event.node_id, status))
                    count, error = (before.count, before.error) if before else (0, event.payload.get("error"))
                    ends[event.node_id, status] = Ended(event.node_id, status, count + 1, error)
            elif event.kind in _OF_AN_ATTEMPT:
                if event.is_current and event.node_id is not None:
                    attempts.append(_OF_AN_ATTEMPT[event.kind](event.node_id))
            elif event.kind == "cancel":
                others.append(self._cancel(event.payload))
            elif event.kind == REOPEN:
                others.append(Reopened(tuple(event.payload["nodes"])))
            elif event.kind == EXPAND:
                self._expansions.append((event.payload["node_id"], event.payload["from"]))
            elif event.kind not in _NO_NEWS and event.kind != "input_submitted":
                raise ValueError(f"this version knows no dispatch event of kind {event.kind!r:.80}")
        return [*attempts, *ends.values(), *others]

    def _cancel(self, payload: Mapping[str, Any]) -> Event:
        reason, node_id = payload.get("reason"), payload.get("node_id")
        if node_id is not None:
            return CancelNode(node_id, reason)
        if self._cancel_reason is None:
            self._cancel_reason = reason or ""
            self._unsent.append(partial(self._tools.runs.send_cancel_found, self._run.id, reason))
        return CancelRun(reason)

    # The loop: each turn tells the planner what it made of its last step.

    def _settle(self) -> bool:
        """Do the next thing that the step asks for; whether there was one."""
        answers = self._answers() or self._stops() or self._opened_jobs() or self._expanded()
        if answers is None:
            return False
        if answers:
            self._step = advance(self._graph, self._run.counters, answers, self._look, self._step)
        return True

    def _answers(self) -> list[Event] | None:
        """What becomes of the nodes that are ready, as far as there is room for them."""
        ready, later = self._step.ready[: self._nodes_room], self._step.ready[self._nodes_room :]
        self._step = replace(self._step, ready=())
        self._nodes_room -= len(ready)
        for start in range(0, len(later), NODES_AT_ONCE):
            self._put_off(REOPEN, {"nodes": later[start : start + NODES_AT_ONCE]})
        if not ready:
            return None
        nodes = [(self._document.by_id[node_id], 0) for node_id in ready]
        return [self._answer(decision) for decision in self._decisions(nodes)]

    def _put_off(self, kind: str, payload: dict[str, Any]) -> None:
        """Leave something to a batch of its own."""
        self.has_put_off = True
        self._unsent.append(partial(self._tools.events.send_event, self._run.id, kind, payload))

    def _decisions(self, nodes: Sequence[tuple[BaseNode, int]]) -> list[Opening | NotOpened]:
        """Decide about nodes; of a list, from an element on."""
        paths: list[Path] = []
        malformed: dict[str, NotOpened] = {}
        for node, _ in nodes:
            try:
                paths += needed_to_open(node, self._tools.host)
            except RefError as wrong:
                malformed[node.id] = NotOpened(node, broken_by(wrong))
        scope: Mapping[str, Any] = {}
        if paths:
            self._write()
            self._send_now()
            scope = load_scope(self._tools.connection, self._run.id, paths)
        return [
            malformed.get(node.id) or decided(node, scope, self._tools.host, start=at) for node, at in nodes
        ]

    def _answer(self, decision: Opening | NotOpened) -> Event:
        node_id = decision.node.id
        if isinstance(decision, Opening) and isinstance(decision.node, SealNode):
            self._unsent.append(partial(self._tools.events.send_seal, self._run.id))
            return Opened(node_id, 0)
        if isinstance(decision, Opening) and self._tree.passes(decision.node):
            return Opened(node_id, 0)
        if isinstance(decision, Opening):
            if decision.elements is not None:
                forget = self._tools.jobs.send_forget_beyond
                self._unsent.append(partial(forget, self._run.id, node_id, len(decision.elements)))
            is_again = lost_session(self._row(node_id)) is not None
            self._openings[node_id] = replace(decision, is_again=True) if is_again else decision
            return Opened(node_id, decision.jobs - self._kept(decision))
        return SkippedNode(node_id) if decision.error is None else Broken(node_id, decision.error)

    def _kept(self, opening: Opening) -> int:
        """How many elements keep what they came to before the run was retried."""
        if opening.elements is None:
            return 0
        row = self._row(opening.node.id)
        return row.completed + row.skipped

    def _stops(self) -> list[Event] | None:
        """Cancel the jobs of nodes that are to stop; those that have no rows yet get none."""
        stop = [node_id for node_id in self._step.stop if node_id not in self._stopped]
        if not stop:
            return None
        self._stopped.update(stop)
        never_opened = [node_id for node_id in stop if self._openings.pop(node_id, None) is not None]
        counts = {node_id: left for node_id in never_opened if (left := self._row(node_id).left)}
        self._send_now()
        reason = self._cancel_reason or "its run stopped"
        for node_id, count in self._tools.events.stop(self._run.id, stop, reason).items():
            counts[node_id] = counts.get(node_id, 0) + count
        return [Ended(node_id, JobStatus.CANCELLED, count) for node_id, count in counts.items()]

    def _opened_jobs(self) -> list[Event] | None:
        """Insert the jobs of what was opened and is still to run."""
        if not self._openings:
            return None
        openings, self._openings = self._openings, {}
        return self._insert(
            [opening for node_id, opening in openings.items() if self._row(node_id).state is NodeState.ACTIVE]
        )

    def _expanded(self) -> list[Event] | None:
        """The next parts of long lists, or the end of them where the node was stopped meanwhile."""
        if not self._expansions:
            return None
        expansions, self._expansions = self._expansions, []
        answers: list[Event] = []
        parts: list[Opening] = []
        for node_id, start in expansions:
            row = self._row(node_id)
            if row.state is not NodeState.ACTIVE:
                continue
            if opens_no_more(self._graph, self._step.run, row):
                answers.append(self._rest(node_id, start, JobStatus.CANCELLED))
                continue
            (decision,) = self._decisions([(self._document.by_id[node_id], start)])
            if not isinstance(decision, Opening):
                answers.append(self._rest(node_id, start, JobStatus.FAILED, decision.error))
            elif decision.jobs != row.total:
                answers.append(self._rest(node_id, start, JobStatus.FAILED, _another_list(row, decision)))
            else:
                parts.append(decision)
        return [*answers, *self._insert(parts)]

    def _rest(self, node_id: str, start: int, status: JobStatus, error: NodeError | None = None) -> Event:
        """The end of the elements from `start` on, which have no rows unless from an earlier time."""
        kept = self._tools.jobs.finished_beyond(self._run.id, node_id, start)
        return Ended(node_id, status, max(self._row(node_id).total - start - kept, 0), error)

    def _insert(self, openings: Sequence[Opening]) -> list[Event]:
        """Insert the jobs of these parts and ask for the next ones; what is skipped comes back as ended."""
        plain = [opening for opening in openings if opening.elements is None]
        for is_again, send in (
            (False, self._tools.jobs.send_open),
            (True, self._tools.jobs.send_open_again),
        ):
            jobs = [
                job
                for opening in plain
                if not isinstance(opening.node, WorkflowNode) and opening.is_again is is_again
                for job in self._jobs(opening)
            ]
            if jobs:
                self._unsent.append(partial(send, jobs))
        for opening in plain:
            if isinstance(opening.node, InputNode):
                self._send_now()
                self._parking.welcome(opening.node.id)
        ended: list[Event] = []
        for opening in openings:
            if opening.elements is not None and self._rows_room <= 0:
                self._put_off(EXPAND, {"node_id": opening.node.id, "from": opening.start})
            elif opening.elements is not None or isinstance(opening.node, WorkflowNode):
                self._rows_room -= len(opening.part)
                ended += self._insert_part(opening)
        return ended

    def _insert_part(self, opening: Opening) -> list[Event]:
        """Insert a part of a list, or a job of which the number has to be known."""
        node, part = opening.node, self._jobs(opening)
        try:
            opened = self._tools.jobs.open_many(part)
        except PayloadError as wrong:
            # Elements are put together from results, and may be more than one row takes. None is stored then.
            return [self._rest(node.id, opening.start, JobStatus.FAILED, broken_by(wrong))]
        jobs = {row.map_index: job.id for row, job in zip(part, opened, strict=True) if job.created}
        following = opening.start + len(part)
        if opening.elements is not None and following < len(opening.elements):
            self._put_off(EXPAND, {"node_id": node.id, "from": following})
        if isinstance(node, WorkflowNode):
            self._write()
            self._send_now()
            ChildRuns(self._tools, self._run).start(opening, jobs)
        skipped = len(opening.skipped & jobs.keys())
        return [Ended(node.id, JobStatus.SKIPPED, skipped)] if skipped else []

    def _jobs(self, opening: Opening) -> list[NewNodeJob]:
        return new_jobs(self._run, opening, max_attempts=self._tools.settings.max_attempts)

    # What is known of the rows, and what is written of them.

    def _look(self, node_ids: Collection[str]) -> Mapping[str, Counters]:
        unknown = [node_id for node_id in node_ids if node_id not in self._known]
        if unknown:
            self._learn(unknown, self._tools.nodes.read(self._run.id, unknown))
        return {node_id: row for node_id in node_ids if (row := self._known[node_id]) is not None}

    def _learn(self, node_ids: Iterable[str], found: Mapping[str, Counters]) -> None:
        self._known.update((node_id, found.get(node_id)) for node_id in node_ids)

    def _row(self, node_id: str) -> Counters:
        row = self._step.nodes.get(node_id)
        if row is None:
            found = self._look([node_id])
            row = found.get(node_id) or untouched(self._graph, self._step.run, node_id)
        return row

    def _write(self) -> None:
        """Have the rows written that changed since the last time."""
        changed = [row for node_id, row in self._step.nodes.items() if self._written.get(node_id) != row]
        if not changed:
            return
        mapped = {row.node_id for row in changed if self._graph.nodes[row.node_id].is_mapped}
        self._unsent.append(partial(self._tools.nodes.write, self._run.id, changed, mapped))
        self._written.update((row.node_id, row) for row in changed)


def _another_list(row: Counters, opening: Opening) -> NodeError:
    message = f"its list had {row.total:,} elements when it was begun, and has {opening.jobs:,} now"
    return {"kind": "node", "message": message}
