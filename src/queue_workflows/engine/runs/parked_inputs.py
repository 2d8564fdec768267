"""The answers to parked nodes: one that fits completes its node, another is refused and says why.

An answer that comes before its node is there waits for it.
"""

from __future__ import annotations

import json
from typing import Any, Final

from queue_workflows.engine.runs.repositories import DispatchTools
from queue_workflows.errors import PayloadError
from queue_workflows.repositories.runs.outbox import LockedRun
from queue_workflows.repositories.sql.connection import Statements
from queue_workflows.states import JobStatus, SubmissionStatus
from queue_workflows.workflow.document.load import Document, InputNode
from queue_workflows.workflow.document.schemas import filled

# job: the parked row of the node that is answered, if it has one yet; and whether the answer came too late,
# which counts from when it was given.
LOOK: Final = """
SELECT answer.node_id, answer.payload::text, job.id, job.status, job.expires_at <= answer.created_at
FROM workflow_input_submissions AS answer LEFT JOIN LATERAL (
    SELECT id, status, expires_at FROM workflow_node_jobs
    WHERE run_id = answer.run_id AND node_id = answer.node_id AND map_index = -1
    LIMIT 1
) AS job ON true
WHERE answer.id = %(id)s::bigint AND answer.run_id = %(run_id)s::uuid AND answer.status = 'pending'
"""
AT_ONCE: Final = 100
# By run and node, where the planner might else read what is pending of all runs, or all there ever was.
PENDING: Final = f"""
SELECT id FROM workflow_input_submissions
WHERE run_id = %(run_id)s::uuid AND node_id = %(node_id)s::text AND COALESCE(status = 'pending', false)
ORDER BY id + 0
LIMIT {AT_ONCE}
"""  # noqa: S608 - a number of our own
# What came early besides those, each as if it came now.
ANNOUNCE: Final = """
INSERT INTO workflow_dispatch_events (run_id, generation, attempt, kind, payload)
SELECT run_id, 1, 0, 'input_submitted', jsonb_build_object('submission_id', id, 'node_id', node_id)
FROM workflow_input_submissions
WHERE run_id = %(run_id)s::uuid AND node_id = %(node_id)s::text AND COALESCE(status = 'pending', false)
RETURNING id
"""
PROCESS: Final = """
UPDATE workflow_input_submissions
SET status = %(status)s::text, error = %(error)s::text, processed_at = statement_timestamp()
WHERE id = %(id)s::bigint AND status = 'pending'
RETURNING id
"""


class Parking:
    """The answers to nodes of one locked run; without a document the run is over."""

    def __init__(self, tools: DispatchTools, run: LockedRun, document: Document | None) -> None:
        self._sql = Statements(tools.connection, "workflow_input_submissions")
        self._jobs = tools.jobs
        self._run = run
        self._document = document

    def welcome(self, node_id: str) -> None:
        """Take up the answers that came before a node was parked; of very many, the rest by later batches."""
        which = {"run_id": self._run.id, "node_id": node_id}
        answers = self._sql.rows(PENDING, which)
        for (answer_id,) in answers:
            self.answer(answer_id)
        if len(answers) >= AT_ONCE:
            self._sql.rows(ANNOUNCE, which)

    def answer(self, answer_id: int) -> None:
        """Take up one answer, unless it is done with or came too early."""
        rows = self._sql.rows(LOOK, {"id": answer_id, "run_id": self._run.id})
        if not rows:
            return
        node_id, payload, job_id, status, is_late = rows[0]
        if self._document is None:
            self._process(answer_id, f"the run is over: it is {self._run.status}")
            return
        node = self._document.by_id.get(node_id)
        if not isinstance(node, InputNode):
            what = "takes no answer" if node is not None else "is not in the run's document"
            self._process(answer_id, f"node {node_id} {what}")
        elif status is None:
            return
        elif status != JobStatus.AWAITING_INPUT:
            self._process(answer_id, f"node {node_id} waits for no answer any more: it is {status}")
        elif is_late:
            self._process(answer_id, f"node {node_id} waits for no answer any more: its time is over")
        else:
            self._take(answer_id, node, json.loads(payload), job_id)

    def _take(self, answer_id: int, node: InputNode, payload: Any, job_id: int) -> None:
        try:
            answer = filled(node.answer_schema, payload, what="payload")
            self._jobs.mark_completed(job_id, answer)
        except PayloadError as wrong:
            self._process(answer_id, str(wrong))
            return
        self._process(answer_id, None)

    def _process(self, answer_id: int, error: str | None) -> None:
        status = SubmissionStatus.ACCEPTED if error is None else SubmissionStatus.REJECTED
        self._sql.rows(PROCESS, {"id": answer_id, "status": status.value, "error": error})
