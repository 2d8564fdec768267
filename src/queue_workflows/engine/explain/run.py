"""Why a run, or a node of it, does not go on, or how it ended: from its circumstances to sentences.

Pure, as `explain/job`, which tells why a job waits; a run is waiting for what its open jobs wait for, and
for an orchestrator to act on what has ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from queue_workflows.engine.explain.history import Event, Reason, length, moment
from queue_workflows.engine.explain.job import Explanation, Knowledge, explain
from queue_workflows.repositories.explain.explain_run import (
    FailingEvent,
    NodeRow,
    OpenJobs,
    RunCircumstances,
)
from queue_workflows.repositories.jobs.hooks import ANY_HOST
from queue_workflows.repositories.runs.operator_verbs import ENGINE_MODE
from queue_workflows.states import NODE_OVER, RUN_TERMINAL, JobStatus, NodeState, RunStatus
from queue_workflows.workflow.planning.graph import Graph, GraphNode
from queue_workflows.workflow.planning.progress import SESSION_LOST

# What is told of the first job of a group is true of its neighbours, but for these.
_ITS_OWN: Final = frozenset({"behind", "next", "suspect", "waited", "was_held", "progress"})
_TOLD: Final = 10


def explain_run(there: RunCircumstances, known: Knowledge) -> Explanation:
    """The answer to `qwf explain RUN`."""
    run = there.run
    since = run.finished_at or run.started_at or run.created_at
    headline = f"run:{there.run_id} of {run.workflow} is {run.status} since {moment(since)}"
    if run.status in RUN_TERMINAL:
        return Explanation(headline, [*_ended(there)], _history(there))
    return Explanation(headline, [*_goes_on(there, known)], _history(there))


def explain_node(
    there: RunCircumstances, known: Knowledge, graph: Graph, node: GraphNode, rows: Mapping[str, NodeRow]
) -> Explanation:
    """The answer to `qwf explain RUN NODE`; `rows` are those of the node and its parents in the `graph`."""
    row = rows.get(node.id)
    state = _state_of(there, row)
    headline = f"node {node.id} of run:{there.run_id} is {state}"
    reasons: list[Reason] = []
    if there.run.status in RUN_TERMINAL:
        reasons.append(_over(there))
    else:
        reasons += _not_advanced(there)
    if row is not None and row.error is not None:
        code = SESSION_LOST if row.error.get("kind") == SESSION_LOST else "node_error"
        reasons.append(Reason(code, _said(row.error), {"error": row.error}))
    if state is NodeState.WAITING:
        reasons += _waits_for_parents(graph, node, rows)
    reasons += _of_groups(there, known)
    return Explanation(headline, reasons, _history(there))


# How it ended.


def _ended(there: RunCircumstances) -> Iterator[Reason]:
    yield _over(there)
    yield from _given_up(there)
    run = there.run
    if run.started_at is not None and run.finished_at is not None:
        took_s = (run.finished_at - run.started_at).total_seconds()
        yield Reason("took", f"it took {length(took_s)}", {"took_s": took_s})


def _over(there: RunCircumstances) -> Reason:
    run = there.run
    data = {"status": run.status, "error": run.error, "finished_at": run.finished_at}
    text = f"the run {run.status} at {moment(run.finished_at)}"
    if run.status is RunStatus.CANCELLED:
        text = f"the run was cancelled at {moment(run.finished_at)}"
    if run.error is not None:
        where = f"node {run.error['node']}: " if run.error.get("node") else ""
        text += f": {where}{_said(run.error)}"
    if run.status is not RunStatus.COMPLETED:
        text += f" — `qwf run retry {there.run_id}` runs again what has no result"
    return Reason("run_over", text, data)


# What it waits for.


def _goes_on(there: RunCircumstances, known: Knowledge) -> Iterator[Reason]:
    yield from _not_advanced(there)
    yield from _set_up(there)
    yield from _of_groups(there, known)
    run = there.run
    if run.status is RunStatus.RUNNING and (waiting := run.nodes_left - run.nodes_active) > 0:
        text = f"{_count(waiting, 'node')} {'waits' if waiting == 1 else 'wait'} for those before"
        yield Reason("nodes_waiting", f"{text}: `qwf explain {there.run_id} NODE`", {"nodes": waiting})


def _not_advanced(there: RunCircumstances) -> Iterator[Reason]:
    """What keeps anybody from acting on what has happened in the run."""
    run = there.run
    if run.mode != ENGINE_MODE:
        text = (
            f"it is in mode {run.mode!r}: the application that started it advances it, no orchestrator does"
        )
        yield Reason("foreign_mode", text, {"mode": run.mode})
        return
    asked_at = run.cancel_requested_at or there.cancel_asked_at
    if asked_at is not None:
        why = f": {run.cancel_reason}" if run.cancel_reason else ""
        data = {"since": asked_at, "cancel_reason": run.cancel_reason}
        yield Reason("cancelling", f"it is being cancelled since {moment(asked_at)}{why}", data)
    elif run.stopping is not None:
        yield Reason("stopping", "a node failed, and the run stops: nothing new starts but `all_done` nodes")
    yield from _given_up(there)
    if run.hold_reason is not None:
        yield _on_hold(there, run.hold_reason)
    elif run.status is RunStatus.QUEUED and not there.failing:
        yield Reason("not_begun", "no orchestrator has begun it yet", {"priority": run.priority})
    if there.due:
        text = f"{_count(there.due, 'event')} not acted upon yet, the oldest of {moment(there.due_since)}"
        yield Reason("events_due", text, {"events": there.due, "since": there.due_since})
    if run.orchestrators == 0:
        text = "no orchestrator is connected to this database: start `qwf orchestrator`"
        yield Reason("no_orchestrator", text)


def _set_up(there: RunCircumstances) -> Iterator[Reason]:
    """That another run has set up its tree, on the host on which it belongs by that."""
    root, host, is_over = there.tree.set_up_by, there.tree.host, there.tree.setup_is_over
    if root is None or root == there.run_id:
        return
    data = {"run_id": root, "host": host}
    if is_over:
        text = f"its tree was set up by run:{root}, which is over: what that had set up is not there any more"
        yield Reason("setup_over", text, data)
    elif host is not None and not host.startswith(ANY_HOST):
        text = f"its tree was set up by run:{root} on {host}, so it belongs to that host too"
        yield Reason("set_up", text, data)


def _on_hold(there: RunCircumstances, hold_reason: str) -> Reason:
    """Why a run is not to begin yet, though nothing else is in its way."""
    tree = there.tree
    data = {"capped_by": tree.capped_by, "open": tree.open_of_tree, "most": tree.max_open_runs}
    most = "no more" if tree.max_open_runs is None else f"{tree.max_open_runs:,}"
    text = (
        f"its tree has {_count(tree.open_of_tree, 'open run')} and may have {most}: it begins when one"
        f" of them is over, or waits for those below it: `qwf explain {tree.capped_by}`"
    )
    return Reason(hold_reason, text, data)


def _given_up(there: RunCircumstances) -> Iterator[Reason]:
    for event in there.failing:
        data = {"event": event.id, "kind": event.kind, "node": event.node_id, "error": event.last_error}
        what = f"event {event.id} ({event.kind}{f' of {event.node_id}' if event.node_id else ''})"
        if event.poisoned_at is not None:
            text = f"{what} was given up at {moment(event.poisoned_at)} after {_tries(event)}"
            text += f": {event.last_error} — `qwf run unpoison {there.run_id}` tries it again"
            yield Reason("poisoned", text, data | {"poisoned_at": event.poisoned_at})
        else:
            text = f"{what} failed, {_tries(event)}: {event.last_error}; again at {moment(event.next_try_at)}"
            yield Reason("event_failing", text, data | {"next_try_at": event.next_try_at})


def _tries(event: FailingEvent) -> str:
    return "1 try" if event.tries == 1 else f"{event.tries} tries"


def _of_groups(there: RunCircumstances, known: Knowledge) -> Iterator[Reason]:
    for group in there.groups:
        if group.status is JobStatus.AWAITING_INPUT:
            yield _parked(there, group)
        else:
            yield from _at_work(there, known, group)


def _parked(there: RunCircumstances, group: OpenJobs) -> Reason:
    data: dict[str, Any] = {"node": group.node_id, "since": group.since, "until": group.expires_at}
    until = f", until {moment(group.expires_at)}" if group.expires_at else ""
    if group.kind == "wait":
        return Reason("wait", f"node {group.node_id} waits until {moment(group.expires_at)}", data)
    if group.kind == "descendants":
        below = there.tree.open_below
        shown = f", such as run:{below[0]}: `qwf explain {below[0]}`" if below else ""
        text = f"node {group.node_id} waits until all runs below this one are over{shown}"
        return Reason("descendants", text, data | {"run_id": below[0] if below else None})
    if group.kind == "workflow":
        child, wait = there.children.get(group.first), "wait" if group.count > 1 else "waits"
        if child is None:
            return Reason("child_run", f"{_jobs_of(group)} {wait} for a run that is not there", data)
        runs = f"a run each, the first for run:{child[0]}" if group.count > 1 else f"run:{child[0]}"
        text = f"{_jobs_of(group)} {wait} for {runs}, which is {child[1]}: `qwf explain {child[0]}`"
        return Reason("child_run", text, data | {"run_id": child[0], "status": child[1]})
    if group.expires_at is not None and group.expires_at <= there.run.now:
        text = (
            f"nobody answered node {group.node_id} until {moment(group.expires_at)}: an orchestrator ends it"
        )
        return Reason("expired", text, data)
    text = (
        f"node {group.node_id} waits for an answer since {moment(group.since)}{until}:"
        f" `qwf run submit-input {there.run_id} {group.node_id}`"
    )
    return Reason("awaiting_input", text, data)


def _at_work(there: RunCircumstances, known: Knowledge, group: OpenJobs) -> Iterator[Reason]:
    """The group, and what is true of its first job."""
    data: dict[str, Any] = {"node": group.node_id, "jobs": group.count}
    data |= {"queue": group.queue, "first": f"node:{group.first}"} | ({} if group.counted else {"more": True})
    name = f"{_jobs_of(group)} on {group.queue} "
    yield Reason(f"jobs_{group.status}", name + ("are " if group.count > 1 else "is ") + group.status, data)
    circumstances = there.jobs.get(group.first)
    if circumstances is None:
        return
    for reason in explain(circumstances, known).reasons:
        if group.count == 1 or reason.code not in _ITS_OWN:
            node = f"node:{group.first}: " if group.count > 1 else ""
            yield replace(reason, text=f"{node}{reason.text}", data=reason.data | {"node": group.node_id})


def _jobs_of(group: OpenJobs) -> str:
    more = "" if group.counted else "+"
    return f"node {group.node_id}" + (f": {group.count:,}{more} jobs" if group.count > 1 else "")


def _waits_for_parents(graph: Graph, node: GraphNode, rows: Mapping[str, NodeRow]) -> Iterator[Reason]:
    states = {parent: rows[parent].state if parent in rows else NodeState.WAITING for parent in node.parents}
    passed = {
        parent
        for parent in node.parents
        if parent in rows
        and rows[parent].attempted
        and not rows[parent].parents_left
        and node.is_barrier_below(graph.nodes[parent])
    }
    waited = {
        parent: state for parent, state in states.items() if state not in NODE_OVER and parent not in passed
    }
    if not waited:
        yield Reason("ready", "all that it depends on is over: it is opened with the next event of its run")
        return
    shown = ", ".join(f"{parent} ({state})" for parent, state in list(waited.items())[:_TOLD])
    more = f" and {len(waited) - _TOLD:,} more" if len(waited) > _TOLD else ""
    over = len(states) - len(waited)
    done = f"; {over} of {len(states)} are over" if over else ""
    text = f"it waits for {shown}{more}{done} (when: {node.when})"
    yield Reason("parents", text, {"waits_for": list(waited)[:100], "when": str(node.when)})


def _state_of(there: RunCircumstances, row: NodeRow | None) -> NodeState:
    """A node that nobody has touched waits, or is given up with its run."""
    if row is not None:
        return row.state
    given_up = there.run.status in RUN_TERMINAL or there.run.stopping == "cancel"
    return NodeState.CANCELLED if given_up else NodeState.WAITING


def _history(there: RunCircumstances) -> list[Event]:
    run = there.run
    events = [Event(run.created_at, "started by its row")]
    if run.started_at is not None:
        events.append(Event(run.started_at, "begun by an orchestrator"))
    if run.cancel_requested_at is not None:
        events.append(Event(run.cancel_requested_at, "cancel taken up"))
    if run.finished_at is not None:
        events.append(Event(run.finished_at, str(run.status)))
    for done in there.done_to_it:
        why = f": {done.reason}" if done.reason else ""
        events.append(Event(done.at, f"{done.action} by {done.actor}{why}"))
    return sorted(events, key=lambda event: event.at)


def _said(error: Mapping[str, Any]) -> str:
    kind = f"{error['type']}: " if error.get("type") else ""
    return f"{kind}{error.get('message') or error.get('kind') or 'no reason given'}"


def _count(number: int, what: str) -> str:
    return f"1 {what}" if number == 1 else f"{number:,} {what}s"
