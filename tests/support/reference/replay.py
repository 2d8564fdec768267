"""Whether what the rows of a run say can have happened, by the semantics of the reference interpreter.

The rows do not say in which order things happened, and the order matters where a failure stops a run. So the
replay lets everything happen as early as it can, but for what stops the run: that comes when nothing else is
left. Whatever had begun before the stop began in the replay too, and the rest must be cancelled in both.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import psycopg
from support.node_modules.scripted import summary
from support.reference.interpreter import OVER, ReferenceRun
from support.reference.random_workflows import child

from queue_workflows.states import JobStatus, RunStatus
from queue_workflows.workflow.document.load import TaskNode, load_document
from queue_workflows.workflow.planning.graph import graph_of
from queue_workflows.workflow.planning.progress import Begun, CancelRun, Ended, Opened, SkippedNode
from queue_workflows.workflow.references.references import paths_in

_FIRST, _LAST = (node["inputs"] for node in child("complete")["nodes"])
CHILD_VALUE = summary(_LAST | {"above": summary(_FIRST)})


@dataclass
class Job:
    """A row that executed a node."""

    status: str
    result: dict[str, Any] | None
    item: Any
    replayed: bool = False

    @property
    def value(self) -> Any:
        return self.result if self.status == "completed" else None


@dataclass
class Recorded:
    """What the database says of a run."""

    status: str
    outputs: Any
    cancelled: bool
    states: dict[str, str]
    # Of nodes that were opened: how many jobs they were to have.
    totals: dict[str, int]
    jobs: dict[str, dict[int, Job]] = field(default_factory=dict)


def recorded(connection: psycopg.Connection, run_id: Any) -> Recorded:
    row = connection.execute(
        "SELECT status, outputs, cancel_requested_at IS NOT NULL FROM workflow_runs WHERE id = %s", [run_id]
    ).fetchone()
    assert row is not None
    nodes = connection.execute(
        "SELECT node_id, state, jobs_total FROM workflow_nodes WHERE run_id = %s", [run_id]
    ).fetchall()
    states = {node_id: state for node_id, state, _ in nodes}
    run = Recorded(*row, states=states, totals={node_id: total for node_id, _, total in nodes if total})
    for node_id, index, *job in connection.execute(
        "SELECT node_id, map_index, status, context_delta, item FROM workflow_node_jobs WHERE run_id = %s",
        [run_id],
    ):
        run.jobs.setdefault(node_id, {})[index] = Job(*job)
    return run


class Replay:
    """One run's rows, held against its document."""

    def __init__(self, spec: dict[str, Any], rows: Recorded) -> None:
        self.document = load_document(spec)
        self.rows = rows
        self.reference = ReferenceRun(graph_of(self.document))

    def check(self) -> None:
        """Every row can be explained, and says what its node was to say."""
        self.reference.do(Begun())
        while self._openings() or self._ends(stopping=False) or self._ends(stopping=True) or self._cancel():
            pass
        rows, reference = self.rows, self.reference
        assert {
            node_id: rows.states.get(node_id, "cancelled") for node_id in reference.states
        } == reference.states
        assert all(job.replayed for jobs in rows.jobs.values() for job in jobs.values())
        assert rows.status == reference.over()
        for node_id, jobs in rows.jobs.items():
            for index, job in jobs.items():
                self._check_job(node_id, index, job)
        if rows.status == RunStatus.COMPLETED:
            assert rows.outputs == {"last": self._value(self.document.nodes[-1].id)}

    def _openings(self) -> bool:
        """Open what is ready, as far as the rows say that it was."""
        done = False
        for node_id in self.reference.ready():
            jobs, state = self.rows.jobs.get(node_id, {}), self.rows.states.get(node_id)
            if jobs or (state == "completed" and self.reference.graph.nodes[node_id].is_mapped):
                self.reference.do(Opened(node_id, len(jobs)))
            elif state == "skipped":
                assert self._is_to_be_skipped(node_id)
                self.reference.do(SkippedNode(node_id))
            else:
                continue
            done = True
        return done

    def _ends(self, *, stopping: bool) -> bool:
        """Let jobs end that can have ended; with `stopping`, the first of those that stop the run."""
        for node_id, state in self.reference.states.items():
            for job in self.rows.jobs.get(node_id, {}).values() if state == "active" else ():
                if job.replayed or not self._can_have_ended(node_id, job, stopping):
                    continue
                job.replayed = True
                self.reference.do(Ended(node_id, JobStatus(job.status)))
                return True
        return False

    def _can_have_ended(self, node_id: str, job: Job, stopping: bool) -> bool:
        if job.status == "cancelled":
            return node_id in self.reference.to_stop()
        stops = job.status == "failed" and self.reference.graph.nodes[node_id].on_failure == "fail_fast"
        return stopping or not stops or self.reference.stopping is not None

    def _cancel(self) -> bool:
        if (
            not self.rows.cancelled
            or self.reference.stopping == "cancel"
            or self.reference.over() is not None
        ):
            return False
        self.reference.do(CancelRun())
        return True

    def _is_to_be_skipped(self, node_id: str) -> bool:
        """All conditions of whole nodes ask whether the node above had no result."""
        condition = self.document.by_id[node_id].skip_if
        return bool(condition) and self._value(paths_in(condition)[0].root) is None

    def _check_job(self, node_id: str, index: int, job: Job) -> None:
        assert job.status in OVER
        node = self.document.by_id[node_id]
        if not isinstance(node, TaskNode):
            self._check_unworked(node, job)
            return
        inputs = dict(node.inputs)
        if index >= 0:
            inputs |= {"script": job.item, "index": index}
        does = inputs["script"]["does"]
        ends = {"complete": "completed", "fail once": "completed", "fail": "failed", "skip": "skipped"}
        assert job.status in (ends[does], "cancelled")
        if job.status == "completed":
            inputs["above"] = [self._value(ref["$from"]) for ref in inputs["above"]]
            assert job.result == {"value": summary(inputs), "list": inputs["script"].get("list", [])}

    def _check_unworked(self, node: Any, job: Job) -> None:
        """Pauses and questions complete, a child run ends as its name says."""
        fails = node.type == "workflow" and node.workflow == "child-fail"
        assert job.status in ("failed" if fails else "completed", "cancelled")
        if job.status == "completed" and node.type == "input":
            assert job.result == {"by": node.id}
        if job.status == "completed" and node.type == "workflow":
            assert job.result == {"value": CHILD_VALUE}

    def _value(self, node_id: str) -> Any:
        """What a reference to a node yields."""
        jobs = self.rows.jobs.get(node_id, {})
        if getattr(self.document.by_id[node_id], "for_each", None) is not None:
            if not jobs and self.rows.states.get(node_id) != "completed":
                return None
            return [
                jobs[index].result if jobs[index].status == "completed" else None for index in sorted(jobs)
            ]
        job = jobs.get(-1)
        return job.result if job is not None and job.status == "completed" else None
