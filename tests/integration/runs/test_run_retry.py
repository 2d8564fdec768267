"""`retry_run`: what failed, or follows a node, runs again; what has a result keeps it."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from support.connections.kept import own_connection
from support.rows.jobs import CLEAR, ending
from support.rows.plans import explain, rows_read
from support.rows.runs import Body, dispatcher, run_through, settle, start, work
from support.rows.schemas import blocked, until

from queue_workflows import RunRefused, UnknownNode, UnknownRun, set_ref_resolver
from queue_workflows.config import reset_config
from queue_workflows.engine.runs import open_nodes
from queue_workflows.engine.runs.retry import RunRetry, foretell_retries, retry_run
from queue_workflows.engine.runs.verbs import cancel_run
from queue_workflows.errors import QwfError
from queue_workflows.repositories import NodeJobRepository, RunRepository
from queue_workflows.repositories.audit_log import AuditRepository
from queue_workflows.repositories.runs.nodes import WorkflowNodeRepository
from queue_workflows.repositories.runs.operator_verbs import LOOK_AT_MANY
from queue_workflows.repositories.sql.claimed_job import ClaimedNodeJob

FILM: dict[str, Any] = {
    "nodes": [
        {"id": "plan", "module": "plan"},
        {"id": "draw", "module": "draw", "for_each": {"$from": "plan.scenes"}},
        {"id": "cut", "module": "cut", "inputs": {"pictures": {"$from": "draw"}}},
        {"id": "tidy", "module": "tidy", "depends_on": ["cut"], "when": "all_done"},
        {"id": "title", "module": "title"},
    ],
    "outputs": {"film": {"$from": "cut.film"}},
    "on_failure": "continue",
}


class Crew:
    """A worker that counts what it did, and fails what it is told to."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.fails: set[str] = set()
        self.scenes: list[Any] = ["a", "b", "c"]

    def __call__(self, job: ClaimedNodeJob) -> dict[str, Any]:
        name = job.node_id if job.map_index < 0 else f"{job.node_id}[{job.map_index}]"
        self.done[name] += 1
        if name in self.fails:
            raise ValueError(f"no {name}")
        if job.node_id == "plan":
            return {"scenes": self.scenes}
        return {"film": "F", "time": self.done[name]}


class Stage:
    """A database with a dispatcher and a crew."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self.connection = connection
        self.crew = Crew()
        self.dispatcher = dispatcher(connection)

    def ended(self, *fails: str, document: dict[str, Any] = FILM) -> uuid.UUID:
        """A run that is over, in which these failed."""
        self.crew.fails = set(fails)
        run_id = start(self.connection, document)
        self.go_on()
        self.crew.fails = set()
        return run_id

    def go_on(self, body: Body | None = None) -> dict[str, int]:
        """Run on to the end; what was done."""
        before = self.crew.done.copy()
        run_through(self.connection, self.dispatcher, body or self.crew)
        return dict(self.crew.done - before)

    def retry(self, run_id: uuid.UUID, **how: Any) -> RunRetry:
        """Run it again; what is foretold of many says the same of it before."""
        from_node = how.get("from_node")
        foretold = foretell_retries([run_id], conn=self.connection, from_node=from_node)[run_id]
        told: RunRetry | QwfError
        try:
            told = retry_run(run_id, conn=self.connection, **how)
        except QwfError as refused:
            told = refused
        assert (type(foretold), str(foretold)) == (type(told), str(told))
        if isinstance(told, QwfError):
            raise told
        return told

    def run(self, run_id: uuid.UUID) -> Any:
        return RunRepository(self.connection).fetch(run_id)

    def states(self, run_id: uuid.UUID) -> dict[str, str]:
        rows = "SELECT node_id, state FROM workflow_nodes WHERE run_id = %s"
        return dict(self.connection.execute(rows, [run_id]).fetchall())

    def everything(self) -> list[Any]:
        """Every row that a retry may touch."""
        tables = "workflow_runs", "workflow_nodes", "workflow_node_jobs", "workflow_dispatch_events"
        return [
            self.connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall()
            for table in (*tables, "audit_log")
        ]


@pytest.fixture
def stage(qwf_dsn: str) -> Iterator[Stage]:
    """Empty tables."""
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR)
        yield Stage(connection)


def test_what_failed_runs_again_and_what_follows(stage: Stage) -> None:
    """Elements that have a result keep it, and so does all that did not need what failed."""
    run_id = stage.ended("draw[1]")
    assert (stage.run(run_id).status, stage.run(run_id).outputs) == ("failed", None)
    retry = stage.retry(run_id, actor="ann", reason="paper is back")
    assert (retry.was, set(retry.again), retry.ready) == ("failed", {"draw", "cut", "tidy"}, ("draw",))
    assert (set(retry.kept), retry.elements_kept) == ({"plan", "title"}, {"draw": 2})
    row = stage.run(run_id)
    assert (row.status, row.error, row.finished_at, row.nodes_left) == ("running", None, None, 3)
    assert stage.go_on() == {"draw[1]": 1, "cut": 1, "tidy": 1}
    row = stage.run(run_id)
    assert (row.status, row.outputs, row.error) == ("completed", {"film": "F"}, None)
    assert set(stage.states(run_id).values()) == {"completed"}
    (entry,) = AuditRepository(stage.connection).of("run", str(run_id))
    assert (entry.actor, entry.action, entry.reason) == ("ann", "run.retry", "paper is back")
    draw = NodeJobRepository(stage.connection).list(run_id=run_id, node_id="draw", newest_first=False)
    assert [(job.map_index, job.generation, job.attempt) for job in draw] == [(0, 1, 1), (1, 2, 2), (2, 1, 1)]
    assert [len(job.errors) for job in draw] == [0, 1, 0]


def test_it_can_fail_again_and_be_retried_again(stage: Stage) -> None:
    """Each time only what has no result yet."""
    run_id = stage.ended("draw[0]", "draw[2]")
    for left, expected in (("draw[0]", {"draw[0]": 1, "draw[2]": 1, "tidy": 1}), ("", {"draw[0]": 1})):
        stage.crew.fails = {left}
        stage.retry(run_id)
        done = stage.go_on()
        assert {name: done[name] for name in expected} == expected
    assert stage.run(run_id).status == "completed"
    assert stage.crew.done["draw[1]"] == 1


def test_from_a_node_on(stage: Stage) -> None:
    """That node and what follows, whatever it came to; a shorter list leaves nothing of the longer one."""
    run_id = stage.ended()
    stage.crew.scenes = ["a", "z"]
    retry = stage.retry(run_id, from_node="plan")
    assert (set(retry.again), retry.elements_kept) == ({"plan", "draw", "cut", "tidy"}, {})
    assert stage.go_on() == {"plan": 1, "draw[0]": 1, "draw[1]": 1, "cut": 1, "tidy": 1}
    assert stage.run(run_id).status == "completed"
    draw = NodeJobRepository(stage.connection).list(run_id=run_id, node_id="draw", newest_first=False)
    assert [(job.map_index, job.item, job.status) for job in draw] == [
        (0, "a", "completed"),
        (1, "z", "completed"),
    ]


def test_a_dry_run_says_the_same_and_changes_nothing(stage: Stage) -> None:
    """It waits for no lock either."""
    run_id = stage.ended("cut")
    before = stage.everything()
    dry = stage.retry(run_id, dry_run=True, actor="ann")
    assert stage.everything() == before
    assert stage.retry(run_id) == dry
    assert (set(dry.again), set(dry.kept)) == ({"cut", "tidy"}, {"plan", "draw", "title"})


def test_a_cancelled_run_goes_on_where_it_was(stage: Stage) -> None:
    """With nothing left of the cancel, not even of one that came too late."""
    run_id = start(stage.connection, FILM)
    settle(stage.dispatcher)
    cancel_run(run_id, conn=stage.connection, reason="too dear")
    settle(stage.dispatcher)
    assert (stage.run(run_id).status, stage.run(run_id).cancel_reason) == ("cancelled", "too dear")
    stage.connection.execute(
        "INSERT INTO workflow_dispatch_events (run_id, generation, attempt, kind)"
        " VALUES (%s, 1, 0, 'cancel')",
        [run_id],
    )
    stage.retry(run_id)
    row = stage.run(run_id)
    assert (row.status, row.cancel_reason, row.cancel_requested_at, row.stopping) == (
        "running",
        None,
        None,
        None,
    )
    stage.go_on()
    assert stage.run(run_id).status == "completed"


def test_all_of_it_or_nothing_with_the_callers_transaction(stage: Stage, qwf_dsn: str) -> None:
    """Rolled back, the run is as it was; two at once, and the second finds it running."""
    run_id = stage.ended("cut")
    before = stage.everything()
    with psycopg.connect(qwf_dsn) as other:
        retry_run(run_id, conn=other)
        other.rollback()
        assert stage.everything() == before
        retry_run(run_id, conn=other)
        other.commit()
    with pytest.raises(RunRefused, match="is running: only what is over"):
        stage.retry(run_id)
    stage.go_on()
    assert stage.run(run_id).status == "completed"


def test_two_at_once_retry_it_once(stage: Stage, qwf_dsn: str) -> None:
    """The second waits for the first, and then finds a run that goes on."""
    run_id = stage.ended("cut")
    with (
        psycopg.connect(qwf_dsn) as first,
        psycopg.connect(qwf_dsn) as second,
        ThreadPoolExecutor(1) as pool,
    ):
        retry_run(run_id, conn=first)
        waiting = pool.submit(retry_run, run_id, conn=second)
        pid = second.info.backend_pid
        until(lambda: pid in blocked(qwf_dsn, first.info.backend_pid), "the wait for the run")
        first.commit()
        with pytest.raises(RunRefused, match="is running"):
            waiting.result(150)
    assert stage.go_on() == {"cut": 1, "tidy": 1}


def test_a_failure_stops_a_list_in_the_middle(stage: Stage) -> None:
    """Elements that fail_fast cancelled run again beside the one that failed; skipped ones stay so."""
    document = FILM | {
        "on_failure": "fail_fast",
        "nodes": [
            {"id": "plan", "module": "plan"},
            {
                "id": "draw",
                "module": "draw",
                "for_each": {"$from": "plan.scenes"},
                "skip_if": {"$eq": [{"$from": "item"}, "b"]},
            },
        ],
        "outputs": {"pictures": {"$from": "draw"}},
    }
    run_id = start(stage.connection, document)
    settle(stage.dispatcher)
    work(stage.connection, stage.crew)
    settle(stage.dispatcher)
    stage.crew.fails = {"draw[0]"}
    work(stage.connection, stage.crew, limit=1)
    stage.crew.fails = set()
    stage.go_on()
    assert stage.run(run_id).status == "failed"
    assert stage.crew.done == Counter({"plan": 1, "draw[0]": 1})
    retry = stage.retry(run_id)
    assert retry.elements_kept == {"draw": 1}
    assert stage.go_on() == {"draw[0]": 1, "draw[2]": 1}
    row = stage.run(run_id)
    assert (row.status, [one and one["film"] for one in row.outputs["pictures"]]) == (
        "completed",
        ["F", None, "F"],
    )


def test_a_list_in_parts_is_over_when_its_last_job_is(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elements that are kept beyond the part at which it stops count for none that is still running."""
    monkeypatch.setattr(open_nodes, "ELEMENTS_AT_ONCE", 2)
    nodes = [{"id": "draw", "module": "draw", "for_each": [0, 1, 2, 3, 4]}]
    run_id = start(stage.connection, {"nodes": nodes})
    settle(stage.dispatcher)
    jobs = NodeJobRepository(stage.connection)
    first = {job.map_index: job for job in jobs.claim("cpu", worker_id="w", lease_s=60, limit=5)}
    jobs.end_many([ending(first[3]), ending(first[4])])
    settle(stage.dispatcher)
    jobs.end_many([ending(first[0], "failed", error={"kind": "no", "message": "no"})])
    settle(stage.dispatcher)
    jobs.end_many([ending(first[1], "cancelled"), ending(first[2], "cancelled")])
    settle(stage.dispatcher)
    assert stage.run(run_id).status == "failed"

    assert stage.retry(run_id).elements_kept == {"draw": 2}
    stage.dispatcher.turn()
    again = {job.map_index: job for job in jobs.claim("cpu", worker_id="w", lease_s=60, limit=5)}
    assert sorted(again) == [0, 1]
    jobs.end_many([ending(again[0], "failed", error={"kind": "no", "message": "no"})])
    settle(stage.dispatcher)
    assert stage.run(run_id).status == "running"
    jobs.end_many([ending(again[1], "cancelled")])
    settle(stage.dispatcher)
    assert stage.run(run_id).status == "failed"
    assert stage.retry(run_id).elements_kept == {"draw": 2}
    assert stage.go_on() == {"draw[0]": 1, "draw[1]": 1, "draw[2]": 1}
    assert stage.run(run_id).status == "completed"


def test_a_child_goes_on_where_it_was(stage: Stage) -> None:
    """The same run, by the document that it began with; with other inputs another run, by the newest."""
    scene = {
        "name": "scene",
        "nodes": [
            {"id": "shoot", "module": "shoot"},
            {"id": "sound", "module": "sound", "depends_on": ["shoot"]},
        ],
        "outputs": {"of": {"$from": "inputs.of"}, "film": {"$from": "sound.film"}},
    }
    stage.dispatcher = dispatcher(stage.connection, scene)
    each = {"id": "scene", "type": "workflow", "workflow": "scene", "for_each": {"$from": "plan.scenes"}}
    film = FILM | {
        "nodes": [{"id": "plan", "module": "plan"}, each | {"inputs": {"of": {"$from": "item"}}}],
        "outputs": {"scenes": {"$from": "scene"}},
    }
    run_id = stage.ended("sound", document=film)
    runs = RunRepository(stage.connection)
    children = {run.id for run in runs.list(parent_run_id=run_id)}
    assert (stage.run(run_id).status, len(children)) == ("failed", 3)
    newest = scene | {"outputs": scene["outputs"] | {"cut": {"$value": "newest"}}}
    stage.dispatcher = dispatcher(stage.connection, newest)
    stage.retry(run_id)
    assert stage.go_on() == {"sound": 3}
    row = stage.run(run_id)
    assert row.status == "completed"
    assert row.outputs == {"scenes": [{"of": of, "film": "F"} for of in "abc"]}
    assert {run.id for run in runs.list(parent_run_id=run_id)} == children

    stage.crew.scenes = ["a", "z"]
    stage.retry(run_id, from_node="plan")
    assert stage.go_on() == {"plan": 1, "shoot": 2, "sound": 2}
    scenes = stage.run(run_id).outputs["scenes"]
    assert [(one["of"], one["cut"]) for one in scenes] == [("a", "newest"), ("z", "newest")]


def test_a_late_end_of_a_child_is_not_that_of_its_successor(stage: Stage) -> None:
    """A run that was cancelled may be retried while the runs that it had started still stop."""
    scene = {"name": "scene", "nodes": [{"id": "shoot", "module": "shoot"}]}
    stage.dispatcher = dispatcher(stage.connection, scene)
    film = {
        "nodes": [{"id": "scene", "type": "workflow", "workflow": "scene"}],
        "outputs": {"s": {"$from": "scene"}},
    }
    run_id = start(stage.connection, film)
    settle(stage.dispatcher)
    jobs, runs = NodeJobRepository(stage.connection), RunRepository(stage.connection)
    (shooting,) = jobs.claim("cpu", worker_id="w", lease_s=60, limit=5)
    cancel_run(run_id, conn=stage.connection)
    settle(stage.dispatcher)
    assert (stage.run(run_id).status, stage.run(shooting.run_id).status) == ("cancelled", "running")

    stage.retry(run_id)
    settle(stage.dispatcher)
    jobs.end_many([ending(shooting, "failed", error={"kind": "no", "message": "no"})])
    settle(stage.dispatcher)
    assert (stage.run(run_id).status, stage.run(shooting.run_id).status) == ("running", "failed")
    stage.go_on()
    assert stage.run(run_id).status == "completed"
    assert sorted(run.status for run in runs.list(parent_run_id=run_id)) == ["completed", "failed"]


def test_a_list_that_the_host_app_gives_is_gone_through_anew(stage: Stage) -> None:
    """It may be another one by now, so nothing of it is kept."""
    scenes = ["a", "b"]
    nodes = [{"id": "draw", "module": "draw", "for_each": {"$from": "host.scenes"}}]
    stage.dispatcher = dispatcher(stage.connection, host=lambda path, run: list(scenes))
    run_id = stage.ended("draw[1]", document={"nodes": nodes})
    scenes[:] = ["c"]
    assert stage.retry(run_id).elements_kept == {}
    assert stage.go_on() == {"draw[0]": 1}
    row = stage.run(run_id)
    assert row.status == "completed"
    assert len(NodeJobRepository(stage.connection).list(run_id=run_id)) == 1


def test_a_list_that_the_host_app_may_replace_is_gone_through_anew(stage: Stage) -> None:
    """A resolver of every reference may say another one by now, whatever the path is."""
    run_id = stage.ended("draw[1]")
    assert stage.retry(run_id, dry_run=True).elements_kept == {"draw": 2}
    set_ref_resolver(lambda _path, _run, found: found(), every=True)
    try:
        assert stage.retry(run_id, dry_run=True).elements_kept == {}
    finally:
        reset_config()


def test_outputs_that_could_not_be_had_are_put_together_again(stage: Stage) -> None:
    """Nothing runs again for it, and a dry run says so."""
    buckets: dict[str, str] = {}
    stage.dispatcher = dispatcher(stage.connection, host=lambda path, run: buckets[path])
    document = {"nodes": [{"id": "draw", "module": "draw"}], "outputs": {"to": {"$from": "host.bucket"}}}
    run_id = stage.ended(document=document)
    assert stage.run(run_id).error["kind"] == "outputs"
    before = stage.everything()
    for dry_run in (True, False):
        assert stage.everything() == before
        said = stage.retry(run_id, dry_run=dry_run)
        assert (said.was, said.again, said.kept) == ("failed", (), ("draw",))
    assert stage.go_on() == {}
    assert stage.run(run_id).error["kind"] == "outputs"
    buckets["bucket"] = "s3"
    stage.retry(run_id)
    assert stage.go_on() == {}
    row = stage.run(run_id)
    assert (row.status, row.outputs, row.error) == ("completed", {"to": "s3"}, None)


def test_of_what_goes_on_no_jobs_and_nodes_are_read_to_foretell(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused anyway, and may be large; of what is over both are."""
    over, open_ = stage.ended("draw[1]"), stage.ended()
    stage.connection.execute(
        "UPDATE workflow_runs SET status = 'running', finished_at = NULL WHERE id = %s", [open_]
    )
    read: list[int] = []
    for run_id in (over, open_):
        plan = explain(stage.connection, "force_generic_plan", LOOK_AT_MANY, {"ids": [run_id]})
        read.append(rows_read(plan, "workflow_nodes", "workflow_node_jobs"))
    assert (read[0] > 0, read[1]) == (True, 0)
    asked_of: list[Any] = []
    read_of = WorkflowNodeRepository.read_of

    def heard(nodes: WorkflowNodeRepository, run_ids: Any) -> Any:
        asked_of.extend(run_ids)
        return read_of(nodes, run_ids)

    monkeypatch.setattr(WorkflowNodeRepository, "read_of", heard)
    told = foretell_retries([open_, over], conn=stage.connection)
    assert asked_of == [over]
    assert [(run_id, type(one)) for run_id, one in told.items()] == [(open_, RunRefused), (over, RunRetry)]


def test_what_cannot_be_retried_says_why(stage: Stage) -> None:
    """Nothing is changed then."""
    run_id, open_ = stage.ended(), start(stage.connection, FILM)
    with pytest.raises(RunRefused, match=r"is completed: there is nothing to run again.*--from"):
        stage.retry(run_id)
    with pytest.raises(RunRefused, match="is queued: only what is over"):
        stage.retry(open_)
    with pytest.raises(UnknownNode, match="'draft'"):
        stage.retry(run_id, from_node="draft")
    with pytest.raises(UnknownRun):
        stage.retry(uuid.uuid4())
    child = start(stage.connection, FILM)
    stage.connection.execute(
        """UPDATE workflow_runs SET parent_run_id = %s, parent_node_job_id = 1, status = 'failed',
           finished_at = now() WHERE id = %s""",
        [run_id, child],
    )
    with pytest.raises(RunRefused, match=f"qwf run retry {run_id}"):
        stage.retry(child)
    stage.connection.execute("UPDATE workflow_runs SET mode = 'shop' WHERE id = %s", [run_id])
    with pytest.raises(RunRefused, match="mode 'shop'"):
        stage.retry(run_id)
