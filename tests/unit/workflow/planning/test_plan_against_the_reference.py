"""The planner and a naive interpreter agree about any run: every graph, every order, every outcome."""

from __future__ import annotations

from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.reference.examples import examples
from support.reference.interpreter import OPEN, ReferenceRun
from support.reference.planned_runs import CANCELLED, COMPLETED, FAILED, SKIPPED, PlannedRun
from support.reference.random_graphs import graphs

from queue_workflows.states import NODE_OVER, NodeState, RunStatus
from queue_workflows.workflow.planning.graph import Graph
from queue_workflows.workflow.planning.plan import Step, advance
from queue_workflows.workflow.planning.progress import (
    Begun,
    Broken,
    CancelNode,
    CancelRun,
    Ended,
    Event,
    Opened,
    Reopened,
    SkippedNode,
)
from queue_workflows.workflow.planning.reopening import reopen

ANY_RUN = settings(
    max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)


class Comparison:
    """One run, told event by event to both; they must agree after each batch."""

    def __init__(self, graph: Graph, chance: Random) -> None:
        self.graph, self.chance = graph, chance
        self.planned, self.reference = PlannedRun(graph), ReferenceRun(graph)
        self.stopped: set[str] = set()
        self.told: list[Event] = []

    def do(self, *events: Event) -> Step:
        """A batch, and the answers to what it makes ready, in one write as the dispatcher does it."""
        step = advance(self.graph, self.planned.run, events, self.planned.look)
        self.follow(events, step)
        while step.ready:
            answers = [self.answer(node_id) for node_id in step.ready]
            self.chance.shuffle(answers)
            step = advance(self.graph, step.run, answers, self.planned.look, step)
            self.follow(answers, step)
        self.planned.write(step)
        self.planned.check()
        self.stopped |= set(step.stop)
        assert self.planned.states() == self.reference.states
        assert self.reference.to_stop() <= self.stopped
        return step

    def follow(self, events: list[Event] | tuple[Event, ...], step: Step) -> None:
        for event in events:
            self.told.append(event)
            self.reference.do(event)
        assert set(step.ready) == self.reference.ready()
        assert step.over == self.reference.over()
        assert set(step.stop) <= self.reference.to_stop()

    def answer(self, node_id: str) -> Event:
        luck = self.chance.random()
        if luck < 0.1:
            return SkippedNode(node_id)
        if luck < 0.2:
            return Broken(node_id, {"kind": "ref", "message": "not there"})
        return Opened(node_id, self.chance.choice((0, 1, 2, 5)) if self.graph.nodes[node_id].is_mapped else 1)

    def some_ends(self) -> list[Event]:
        """Ends of open jobs: of stopped ones mostly the cancel, of others anything."""
        open_nodes = [node_id for node_id, jobs in self.reference.jobs.items() if OPEN in jobs]
        ends: list[Event] = []
        for node_id in self.chance.sample(open_nodes, self.chance.randint(1, len(open_nodes))):
            left = self.reference.jobs[node_id].count(OPEN)
            likely = (CANCELLED,) * 8 if node_id in self.stopped else (COMPLETED,) * 8
            status = self.chance.choice((*likely, SKIPPED, FAILED, CANCELLED))
            ends.append(Ended(node_id, status, self.chance.randint(1, left)))
        return ends

    def run_out(self, *, disturb: float) -> None:
        """Until the run is over, with ends of jobs and sometimes somebody who cancels."""
        rounds = 0
        while self.reference.over() is None:
            rounds += 1
            assert rounds < 500, "the run does not end"
            events = self.some_ends()
            if self.chance.random() < disturb:
                events.append(CancelNode(self.chance.choice(list(self.graph.nodes))))
            if self.chance.random() < disturb / 3:
                events.append(CancelRun())
            if self.chance.random() < disturb:
                # Told twice, as by somebody who does not know that it was acted on.
                events.append(self.chance.choice(events))
            self.chance.shuffle(events)
            self.do(*events)


@ANY_RUN
@given(graphs(), st.randoms(use_true_random=False))
def test_any_run_goes_as_the_reference_says(graph: Graph, chance: Random) -> None:
    """States, what is ready, what is stopped, the counters and the end agree after every batch."""
    both = Comparison(graph, chance)
    both.do(Begun())
    both.run_out(disturb=chance.choice((0.0, 0.2)))
    assert all(state in NODE_OVER for state in both.reference.states.values())


@ANY_RUN
@given(graphs(), st.randoms(use_true_random=False))
def test_any_batching_of_the_same_events_comes_to_the_same(graph: Graph, chance: Random) -> None:
    """A batch is what happened one by one, so it does not matter how the events are cut into batches."""
    both = Comparison(graph, chance)
    both.do(Begun())
    both.run_out(disturb=chance.choice((0.0, 0.2)))
    single = PlannedRun(graph)
    for event in both.told:
        single.do(event)
        single.check()
    assert (single.run, single.over) == (both.planned.run, both.planned.over)
    assert single.states() == both.planned.states()


@ANY_RUN
@given(graphs(), st.randoms(use_true_random=False), st.booleans())
def test_any_retry_runs_again_what_failed_and_what_follows(graph: Graph, chance: Random, named: bool) -> None:
    """It keeps what is above, goes on as the reference says, and where all goes well the run completes."""
    both = Comparison(graph, chance)
    both.do(Begun())
    both.run_out(disturb=0.2)
    before = dict(both.planned.states())
    from_node = chance.choice(list(graph.nodes)) if named else None
    reopening = reopen(graph, both.planned.rows, from_nodes=[] if from_node is None else [from_node])

    assert set(reopening.again) | set(reopening.kept) == set(graph.nodes)
    assert not set(reopening.again) & set(reopening.kept)
    assert {node_id for node_id, state in before.items() if state == "failed"} <= set(reopening.again)
    for node_id in reopening.again:
        assert set(graph.nodes[node_id].children) <= set(reopening.again)
    if from_node:
        assert from_node in reopening.again
    elif not {"failed", "cancelled"} & set(before.values()):
        assert reopening.again == ()
    if not reopening.again:
        return

    again = Comparison(graph, chance)
    again.planned.rows = {
        node_id: row for node_id, row in both.planned.rows.items() if node_id not in reopening.dropped
    }
    again.planned.rows.update(reopening.nodes)
    again.planned.run = reopening.run
    states = {node_id: before[node_id] for node_id in reopening.kept}
    kept = {node_id: elements_that_stay(both.reference.jobs[node_id]) for node_id in reopening.elements_kept}
    again.reference = ReferenceRun(graph, begun=True, states=states, jobs=kept)
    assert again.planned.states() == again.reference.states
    again.planned.check()
    assert set(reopening.ready) == again.reference.ready() | {
        node_id for node_id in reopening.ready if not again.reference.may_run(node_id)
    }
    again.do(Reopened(reopening.ready))
    again.run_out(disturb=0.1)
    for node_id in reopening.kept:
        assert again.reference.states[node_id] == before[node_id]


def elements_that_stay(jobs: list[str]) -> list[str]:
    return [status for status in jobs if status in ("completed", "skipped")]


@ANY_RUN
@given(graphs(), st.randoms(use_true_random=False))
def test_a_retry_in_which_all_goes_well_leaves_nothing_failed(graph: Graph, chance: Random) -> None:
    """And only what nothing above it completed for stays cancelled."""
    both = Comparison(graph, chance)
    both.do(Begun())
    both.run_out(disturb=0.2)
    reopening = reopen(graph, both.planned.rows)
    run = PlannedRun(graph)
    run.rows = {k: v for k, v in both.planned.rows.items() if k not in reopening.dropped}
    run.rows.update(reopening.nodes)
    run.run = reopening.run
    step = run.do(Reopened(reopening.ready))
    while step.over is None:
        if step.ready:
            step = run.do(*(Opened(node_id) for node_id in step.ready))
        else:
            active = [row for row in run.rows.values() if row.state is NodeState.ACTIVE]
            step = run.do(*(Ended(row.node_id, COMPLETED, row.left) for row in active))
    assert step.over is RunStatus.COMPLETED
    for node_id, state in run.states().items():
        assert state in ("completed", "skipped") or stays_cancelled(run, node_id)


def stays_cancelled(run: PlannedRun, node_id: str) -> bool:
    node, states = run.graph.nodes[node_id], run.states()
    above = {states[parent] for parent in node.parents}
    return (node.when == "any_success" and "completed" not in above) or (
        node.when == "all_success" and "cancelled" in above
    )
