"""The grants of the docs: each role can do its verbs, and nothing more.

The scripts applied are docs/deploy/roles.sql and docs/deploy/grants.sql themselves, with role names of the
test's own.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from datetime import timedelta
from functools import partial

import psycopg
import pytest
from psycopg import sql
from psycopg.errors import CheckViolation, InsufficientPrivilege
from psycopg.types.json import Jsonb
from support.rows.limited_jobs import LimitedJobs
from support.rows.revisions import HEAD
from support.rows.roles import DEPLOY, Roles, least_privilege
from support.rows.runs import dispatcher, settings, settle
from support.stages.ticking import away_since, pass_once

from queue_workflows import (
    DispatchEventRepository,
    HeartbeatRepository,
    IngestJobRepository,
    InputSubmissionRepository,
    LimitRepository,
    NewIngestJob,
    NodeJobRepository,
    RunRepository,
    ScheduleRepository,
    Unique,
    WorkerControlRepository,
    db,
    enqueue_ingest_job,
    enqueue_many,
    models,
    start_run,
    submit_input,
)
from queue_workflows.engine.schedules.declared import DeclaredSchedules
from queue_workflows.engine.schedules.publish import Declaring
from queue_workflows.engine.upkeep.retention import EVERY_S, Pruning
from queue_workflows.errors import AccessRefused
from queue_workflows.repositories import Ending, NewNodeJob, RateRepository, error_entry
from queue_workflows.repositories.jobs.hooks import HookJobRepository
from queue_workflows.repositories.limits.rates import Rule
from queue_workflows.repositories.schedules.schedules import checked_words
from queue_workflows.roles.probes.figures import FigureReader, read_figures
from queue_workflows.states import JobStatus
from queue_workflows.telemetry.names import FIGURES

TABLES = {*models.Base.metadata.tables, "queue_schema_version"}
SEQUENCES = set(models.Base.metadata._sequences)
SPEC = {"spec": {"name": "film"}, "spec_hash": "x"}

ADVERTISE = "SELECT pg_advisory_lock_shared(qwf_wake_class(), qwf_wake_key('fetch'))"

# A claim, a renewal, a retry with a hold, and its promotion.
NODE_JOB_CHANGES = (
    """status = 'running', attempt = attempt + 1, claimed_by = 'w', lease_expires_at = now(),
       started_at = now()""",
    "lease_expires_at = now() + interval '30 s', progress = '{}'",
    """status = 'scheduled', hold_reason = 'limit', hold_key = 'k', run_at = now(), claimed_by = NULL,
       lease_expires_at = NULL, position = nextval('workflow_node_jobs_position_seq'), failures = 1,
       crash_count = 1, suspect = true, errors = '[]'""",
    "status = 'queued', hold_reason = NULL, hold_key = NULL",
)
MAKES_SCHEMA = (
    "CREATE TABLE mine (id int)",
    "ALTER TABLE ingest_jobs ADD COLUMN mine int",
    "DROP TABLE ingest_jobs",
    "TRUNCATE ingest_jobs",
    "DROP FUNCTION qwf_wake_key(text)",
    "ALTER TABLE ingest_jobs DISABLE TRIGGER ALL",
    "UPDATE queue_schema_version SET version_num = '9999'",
)
REFUSED = {
    "producer": (
        *MAKES_SCHEMA,
        "SELECT args FROM ingest_jobs",
        "SELECT status FROM ingest_jobs",
        "SELECT * FROM ingest_jobs",
        "COPY ingest_jobs TO STDOUT",
        "UPDATE ingest_jobs SET priority = 9",
        "DELETE FROM ingest_jobs",
        "SELECT id FROM ingest_jobs FOR UPDATE",
        "INSERT INTO ingest_jobs (task_name, queue, finished_at) VALUES ('t', 'fetch', now())",
        "INSERT INTO ingest_jobs (task_name, queue, attempt) VALUES ('t', 'fetch', 7)",
        "INSERT INTO ingest_jobs (id, task_name, queue) VALUES (1, 't', 'fetch')",
        "SELECT spec FROM workflow_runs",
        "SELECT status FROM workflow_runs",
        "UPDATE workflow_runs SET status = 'cancelled'",
        "SELECT payload FROM workflow_input_submissions",
        "SELECT id FROM workflow_node_jobs",
        "INSERT INTO workflow_node_jobs (run_id, node_id, queue) VALUES (gen_random_uuid(), 'n', 'cpu')",
        "SELECT nextval('workflow_node_jobs_position_seq')",
        "SELECT setval('ingest_jobs_position_seq', 1)",
        "SELECT 1 FROM worker_heartbeats",
        "SELECT 1 FROM worker_control",
        "SELECT 1 FROM audit_log",
        "INSERT INTO workflow_dispatch_events (kind) VALUES ('x')",
    ),
    "worker": (
        *MAKES_SCHEMA,
        "INSERT INTO ingest_jobs (task_name, queue) VALUES ('t', 'fetch')",
        "DELETE FROM ingest_jobs",
        "UPDATE ingest_jobs SET args = '{}'",
        "UPDATE ingest_jobs SET task_name = 'x'",
        "UPDATE ingest_jobs SET queue = 'x'",
        "UPDATE ingest_jobs SET dedupe_key = NULL",
        "UPDATE ingest_jobs SET generation = generation + 1",
        "UPDATE workflow_node_jobs SET inputs = '{}'",
        "DELETE FROM workflow_node_jobs",
        "UPDATE workflow_runs SET status = 'completed'",
        "INSERT INTO workflow_runs (workflow_name) VALUES ('w')",
        "DELETE FROM workflow_dispatch_events",
        "SELECT payload FROM workflow_input_submissions",
        "INSERT INTO worker_control (host_label, queue, desired, actor) VALUES ('*', '*', 'off', 'me')",
        "INSERT INTO worker_control_clock (version) VALUES (1)",
        "UPDATE concurrency_limits SET max_slots = 100",
        "INSERT INTO audit_log (actor, action, subject_kind, subject_id) VALUES ('me', 'a', 'k', 'i')",
        "UPDATE schedules SET enabled = false",
        "DELETE FROM hook_records",
        "UPDATE hook_records SET payload = '{}'",
        "INSERT INTO workflow_runs (parent_run_id, workflow_name) VALUES (gen_random_uuid(), 'w')",
    ),
    "orchestrator": (
        *MAKES_SCHEMA,
        "UPDATE audit_log SET actor = 'somebody else'",
        "DELETE FROM audit_log",
        "SELECT setval('ingest_jobs_position_seq', 1)",
    ),
    "scheduler": (
        *MAKES_SCHEMA,
        "UPDATE schedules SET enabled = true",
        "UPDATE schedules SET name = 'x'",
        "DELETE FROM schedules",
        "INSERT INTO schedules (name, cron, task_name, queue, enabled) VALUES ('n', 'c', 't', 'q', false)",
        "INSERT INTO ingest_jobs (task_name, queue, dedupe_key) VALUES ('t', 'fetch', 'k')",
        "DELETE FROM ingest_jobs",
        "INSERT INTO audit_log (actor, action, subject_kind, subject_id) VALUES ('me', 'a', 'k', 'i')",
    ),
    "reader": (
        *MAKES_SCHEMA,
        "INSERT INTO ingest_jobs (task_name, queue) VALUES ('t', 'fetch')",
        *(f"DELETE FROM {table}" for table in sorted(TABLES)),
        "UPDATE ingest_jobs SET priority = 9",
        "SELECT id FROM ingest_jobs FOR SHARE",
        "SELECT nextval('ingest_jobs_position_seq')",
    ),
    "migrator": (
        "CREATE ROLE mine",
        "COPY ingest_jobs TO PROGRAM 'true'",
        "ALTER SYSTEM SET work_mem = '1GB'",
    ),
}


@pytest.fixture(scope="module")
def empty_database(qwf_server) -> Iterator[str]:
    """An unmigrated database, so that the migrator makes and owns what is in it."""
    with qwf_server.database(False) as dsn:
        yield dsn


@pytest.fixture(scope="module")
def roles(empty_database, qwf_role_suffix) -> Iterator[Roles]:
    """The six roles after the first deployment: the migrator has migrated and granted."""
    with least_privilege(empty_database, qwf_role_suffix) as roles:
        db.bootstrap(roles.dsn("migrator"))
        roles.grant()
        yield roles


@pytest.fixture
def administrator(empty_database) -> Iterator[psycopg.Connection]:
    with psycopg.connect(empty_database, autocommit=True) as connection:
        yield connection


def test_the_grants_name_every_table_and_sequence():
    """A table that a new revision brings cannot be forgotten in the grants."""
    script = (DEPLOY / "grants.sql").read_text(encoding="utf-8")
    revoked = re.search(r"REVOKE ALL ON\s+(\w[^;]*?)\s+FROM", script)
    sequences = re.search(r"REVOKE ALL ON SEQUENCE\s+([^;]*?)\s+FROM", script)
    assert revoked is not None
    assert sequences is not None
    assert set(re.split(r",\s*", revoked[1])) == TABLES
    assert set(re.split(r",\s*", sequences[1])) == SEQUENCES


@pytest.mark.parametrize(
    ("role", "statement"), [(role, one) for role, statements in REFUSED.items() for one in statements]
)
def test_a_role_may_do_no_more(roles, role, statement):
    """What is not a role's is refused by the server, whatever the program wants."""
    with roles.connect(role) as connection, pytest.raises(InsufficientPrivilege):
        connection.execute(statement)


def test_the_migrator_owns_what_it_made(roles, administrator):
    """Whoever logged in, tables and functions belong to the group, and the schema is as the models say."""
    owners = "SELECT tablename, tableowner FROM pg_tables WHERE schemaname = 'public'"
    assert dict(administrator.execute(owners).fetchall()) == dict.fromkeys(TABLES, roles.name("migrator"))
    functions = "SELECT proname, proowner::regrole::text FROM pg_proc WHERE proname LIKE 'qwf%'"
    assert {owner for _, owner in administrator.execute(functions)} == {roles.name("migrator")}
    assert db.bootstrap(roles.dsn("migrator")) == []


def test_a_producer_enqueues_and_wakes(roles):
    """One, many, keyed, for later; and the trigger that wakes an idle worker has the rights it needs."""
    with roles.connect("worker") as idle, roles.connect("producer") as producer:
        idle.execute("LISTEN ingest_job_ready")
        idle.execute(ADVERTISE)
        jobs = IngestJobRepository(producer)
        first = jobs.enqueue("invoice", queue="fetch", args={"secret": 1}, dedupe_key="a")
        again = jobs.enqueue("invoice", queue="fetch", dedupe_key="a")
        assert (first.created, again) == (True, (first.id, False))
        many = jobs.enqueue_many(
            NewIngestJob(task_name="invoice", queue="fetch", dedupe_key=key, priority=n)
            for n, key in enumerate("abb")
        )
        assert [one.created for one in many] == [False, True, False]
        jobs.enqueue(
            "invoice", queue="fetch", delay=timedelta(hours=1), max_attempts=1, limit_key="x", reason="r"
        )
        woken = {(one.channel, one.payload) for one in idle.notifies(timeout=150, stop_after=1)}
        assert woken == {("ingest_job_ready", "fetch")}
        jobs.enqueue("invoice", queue="fetch", limit_key="x")
        jobs.enqueue_many(NewIngestJob(task_name="invoice", queue="fetch", limit_key="x") for _ in range(20))
        lane = idle.execute("SELECT count(*) FROM ingest_jobs WHERE hold_reason = 'limit_full'").fetchone()
        assert lane == (5,)


def test_a_producer_has_unique_jobs(roles):
    """What it may not read or change itself, the server looks for and replaces; a reader may not."""
    unique, like = Unique(by=("args.order",), replace=("priority",)), {"order": 7}
    with roles.connect("producer") as producer:
        send = partial(enqueue_ingest_job, "send", queue="fetch", args=like, unique=unique, conn=producer)
        first, again = send(priority=2), send(priority=9)
        row = NewIngestJob(task_name="send", queue="fetch", args=like, unique=unique, priority=8)
        (among,) = enqueue_many([row], conn=producer)
        said = {"unique": {"by": ["args.order"], "replace": ["priority"]}, "priority": 4}
        sql = "SELECT * FROM qwf_enqueue('send', 'fetch', %s, %s)"
        by_sql = producer.execute(sql, [Jsonb(like), Jsonb(said)]).fetchone()
    assert (first.created, again, among, by_sql) == (True, *[(first.id, False)] * 3)
    with roles.connect("reader") as reader:
        shown = reader.execute("SELECT priority FROM ingest_jobs WHERE id = %s", [first.id]).fetchone()
        assert shown == (4,)
        with pytest.raises(InsufficientPrivilege):
            reader.execute(sql, [Jsonb(like), Jsonb(said)])


def test_a_producer_starts_runs_and_answers_nodes(roles):
    """Starting a run is as idempotent as enqueueing, and an answer is a row."""
    with roles.connect("producer") as producer:
        runs = RunRepository(producer)
        run = runs.insert("film", **SPEC, inputs={"brief": "x"}, dedupe_key="producer")
        assert runs.insert("film", **SPEC, dedupe_key="producer") == (run.id, False)
        assert InputSubmissionRepository(producer).insert(run.id, "approve", {"ok": True}) > 0
        ask = {"name": "ask", "nodes": [{"id": "approve", "type": "input"}]}
        asked = start_run(ask, conn=producer)
        answer = submit_input(asked, "approve", {"ok": True}, conn=producer)
        misnamed = submit_input(asked, "aprove", {"ok": True}, conn=producer)
    with roles.connect("orchestrator") as orchestrator:
        settle(dispatcher(orchestrator))
        answers = InputSubmissionRepository(orchestrator)
        row, other = answers.fetch(answer), answers.fetch(misnamed)
        assert row is not None
        assert other is not None
        assert (row.status, other.status) == ("accepted", "rejected")
        assert "is not in the run's document" in (other.error or "")
        # What follows is about the rows that it makes itself.
        orchestrator.execute("DELETE FROM workflow_runs")


def test_a_producer_cannot_fake_an_end(roles):
    """The status alone is its to write, and CHECK constraints refuse one that the rest of the row belies."""
    with roles.connect("producer") as producer:
        for status in ("running", "completed", "failed", "cancelled", "skipped"):
            with pytest.raises(CheckViolation):
                producer.execute(
                    "INSERT INTO ingest_jobs (task_name, queue, status) VALUES ('t', 'fetch', %s)", [status]
                )


def test_a_worker_claims_completes_and_gives_back(roles):
    """The whole life of an ingest job that a producer made, and the wake that giving back sends."""
    with roles.connect("producer") as producer, roles.connect("worker") as worker:
        made = IngestJobRepository(producer).enqueue_many(
            [NewIngestJob(task_name="t", queue="load", args={"n": n}) for n in range(2)]
        )
        jobs = IngestJobRepository(worker)
        mine, other = jobs.claim("load", worker_id="w:load:1", lease_s=30, limit=2)
        assert [mine.id, other.id] == [one.id for one in made]
        assert mine.args == {"n": 0}
        jobs.complete(mine, {"done": True})
        jobs.release(other)
        assert [jobs.fetch(one.id).status for one in made] == ["completed", "queued"]
        jobs.complete(*jobs.claim("load", worker_id="w:load:1", lease_s=30))


def test_a_worker_works_on_node_jobs(roles):
    """Claim, renewal and end of a node job with its event, the pin of its run, and slots of limits."""
    with roles.connect("orchestrator") as orchestrator:
        run = RunRepository(orchestrator).insert("film", **SPEC)
        (job,) = NodeJobRepository(orchestrator).insert_many(
            [NewNodeJob(run_id=run.id, node_id="draw", queue="cpu")]
        )
    with roles.connect("worker") as worker:
        for change in NODE_JOB_CHANGES:
            assert worker.execute(f"UPDATE workflow_node_jobs SET {change}").rowcount == 1
        worker.execute(
            "SELECT id FROM workflow_node_jobs WHERE status = 'queued' FOR NO KEY UPDATE SKIP LOCKED"
        )
        with worker.transaction():
            worker.execute(
                "UPDATE workflow_node_jobs"
                " SET status = 'completed', finished_at = now(), context_delta = '{}' WHERE id = %s",
                [job.id],
            )
            events = DispatchEventRepository(worker)
            made = events.insert(run.id, "completed", node_job_id=job.id, generation=1, attempt=1)
            assert made.created
        worker.execute("UPDATE workflow_runs SET pinned_host = 'here' WHERE id = %s", [run.id])
        worker.execute(
            "INSERT INTO limit_slots"
            " (limit_key, slot, job_family, job_id, attempt, claimed_by, lease_expires_at)"
            " VALUES ('k', 0, 'node', 1, 1, 'w', now())"
        )
        assert worker.execute("DELETE FROM limit_slots WHERE limit_key = 'k'").rowcount == 1


def test_a_worker_of_hooks_pins_the_run_and_an_operator_frees_it(roles):
    """The claim writes where a run belongs, in the worker's role, and `run unpin` takes it back."""
    with roles.connect("orchestrator") as orchestrator, roles.connect("worker") as worker:
        run = RunRepository(orchestrator).insert("film", **SPEC).id
        NodeJobRepository(orchestrator).insert_many(
            NewNodeJob(run_id=run, node_id=f"n{n}", queue="hooks", background=n > 1) for n in range(4)
        )
        jobs = HookJobRepository.at("here")(worker)
        first, second = (
            jobs.claim("hooks", worker_id="hooks", lease_s=30, limit=1)[0],
            jobs.claim_background(worker_id="hooks", lease_s=30, limit=1)[0],
        )
        ending = Ending(first.fence, JobStatus.COMPLETED)
        assert len(jobs.end_and_claim([ending], "hooks", worker_id="hooks", lease_s=30)[1]) == 1
        assert jobs.sealed([second.id]) == set()
        assert not jobs.trust(second.fence)
        jobs.end_many([Ending(second.fence, JobStatus.COMPLETED)])
        assert len(jobs.reclaim_worker("hooks", max_crashes=3)) == 1
        assert HookJobRepository(orchestrator).unpin(run, actor="ann") == ("here", 4)


def test_a_worker_of_hooks_marks_a_shared_directory_and_tells_of_a_beginning(roles):
    """The run goes by the mark, and the event is the orchestrator's to take."""
    with roles.connect("orchestrator") as orchestrator, roles.connect("worker") as worker:
        run = RunRepository(orchestrator).insert("film", **SPEC).id
        shared = NewNodeJob(run_id=run, node_id="n", queue="hooks", pinned_host="*", background=True)
        NodeJobRepository(orchestrator).insert_many([shared])
        jobs = HookJobRepository.at("here")(worker)
        (job,) = jobs.claim_background(worker_id="hooks", lease_s=30, limit=1)
        assert jobs.directory_mark(run) is None
        assert jobs.mark_directory(job, "mine") == "mine"
        jobs.tell_ready(job.fence)
        told = orchestrator.execute("SELECT kind FROM workflow_dispatch_events WHERE run_id = %s", [run])
        assert told.fetchall() == [("ready",)]
        jobs.end_many([Ending(job.fence, JobStatus.COMPLETED)])


@pytest.mark.parametrize("family", ["node", "ingest"])
def test_a_worker_has_what_the_core_of_claiming_needs(roles, family):
    """A worker's verbs work as the worker's role, those that decide about others as the orchestrator's."""
    with roles.connect("orchestrator") as orchestrator, roles.connect("worker") as worker:
        queue = "core"
        if family == "node":
            run = RunRepository(orchestrator).insert("film", **SPEC).id
            theirs = NodeJobRepository(orchestrator)
            ids = [
                made.id
                for made in theirs.insert_many(
                    NewNodeJob(run_id=run, node_id=f"n{n}", queue=queue) for n in range(6)
                )
            ]
            jobs = NodeJobRepository(worker)
        else:
            theirs = IngestJobRepository(orchestrator)
            ids = [theirs.enqueue("t", queue=queue).id for _ in range(6)]
            jobs = IngestJobRepository(worker)
        first, second, third = jobs.claim(queue, worker_id="w", lease_s=30, limit=3, durable=False)
        assert len(jobs.renew([first.fence, second.fence], lease_s=30)) == 2
        assert jobs.beat(first.fence, {"fraction": 0.5}) is None
        assert jobs.watch([first.fence], host_label="h", queue=queue).lost == frozenset()
        endings = [
            Ending(first.fence, JobStatus.COMPLETED, result="{}"),
            Ending(second.fence, JobStatus.SCHEDULED, delay_s=0.0, counts=True, error=error_entry("x", "y")),
        ]
        ended, claimed = jobs.end_and_claim(endings, queue, worker_id="w", lease_s=30)
        assert [len(ended.statuses), len(claimed)] == [2, 1]
        jobs.hold(third, "limit", "core", delay_s=3600)
        assert [jobs.promote(), jobs.promote_held("limit", ["core"], queue=queue)] == [1, 1]
        assert jobs.reclaim(max_crashes=3, lease_s=30) == []
        assert [each.status for each in jobs.reclaim_worker("w", max_crashes=1)] == ["failed"]
        assert jobs.mark_completed(jobs.claim(queue, worker_id="w", lease_s=30)[0].id).status == "completed"
        assert theirs.cancel(ids[-1], actor="ann") == "cancelled"
        assert theirs.retry_many([ids[0]], actor="ann") == {ids[0]: 2}


def test_a_worker_beats_and_obeys(roles):
    """It writes its own sign of life, reads what the operator wants of it, and leaves."""
    with roles.connect("worker") as worker:
        beats = HeartbeatRepository(worker)
        beats.beat("h:fetch:1", host_label="h", queue="fetch", pid=1, state="idle")
        beats.beat("h:fetch:1", host_label="h", queue="fetch", pid=1, state="busy", jobs_held=1)
        assert beats.fetch("h:fetch:1").state == "busy"
        assert WorkerControlRepository(worker).effective("h", "fetch") is None
        assert LimitRepository(worker).effective("example.org") is None
        assert beats.delete("h:fetch:1")


def test_a_worker_uses_buckets_and_rules_none(roles):
    """It takes, gives back and blocks; who set a rate, and why, is the orchestrator's to say."""
    with roles.connect("orchestrator") as orchestrator, roles.connect("worker") as worker:
        RateRepository(orchestrator).set("host:*", 1, actor="ann")
        rates = RateRepository(worker)
        taken = rates.take("host:example.org", 1)
        assert taken.granted
        assert rates.refund("host:example.org", 1, taken.epoch)
        assert rates.penalize("k", 10, rule=Rule(1, 1))
        assert rates.is_void("k", None)
        with pytest.raises(InsufficientPrivilege):
            rates.set("k", 9, actor="ann")
        with pytest.raises(InsufficientPrivilege):
            rates.clear("k", actor="ann")
        assert RateRepository(orchestrator).clear("k", actor="ann").rate_key == "k"


def test_a_worker_opens_windows(roles):
    """It takes slots, gives them back, and lets out who waits in a lane for them."""
    with roles.connect("orchestrator") as orchestrator, roles.connect("worker") as worker:
        LimitRepository(orchestrator).set("host:*", 1, actor="ann")
        jobs = LimitedJobs(worker)
        with jobs.ctx().limit("host:example.org", "resolver", max=2):
            assert [key for key, _ in jobs.taken()] == ["host:example.org", "resolver"]
        assert jobs.taken() == []
        jobs.windows.calls.close()


def test_an_orchestrator_operates(roles):
    """Rows of every kind: operator's wishes, limits and schedules, each with its line in the audit log."""
    with roles.connect("orchestrator") as orchestrator:
        control = WorkerControlRepository(orchestrator)
        control.set("h", "fetch", "pause", actor="me")
        assert control.clear("h", "fetch", actor="me").was.desired == "pause"
        limits = LimitRepository(orchestrator)
        limits.set("host:*", 4, actor="me")
        assert limits.clear("host:*", actor="me").max_slots == 4
        ScheduleRepository(orchestrator).upsert("nightly", cron="0 3 * * *", task_name="t", queue="fetch")
        assert HeartbeatRepository(orchestrator).flag_dead(older_than_s=30) == []
        jobs = IngestJobRepository(orchestrator)
        job = jobs.enqueue("t", queue="fetch")
        orchestrator.execute("UPDATE ingest_jobs SET generation = generation + 1 WHERE id = %s", [job.id])
        assert orchestrator.execute("DELETE FROM ingest_jobs WHERE id = %s", [job.id]).rowcount == 1
        assert orchestrator.execute("SELECT count(*) FROM audit_log WHERE actor = 'me'").fetchone() == (4,)
    assert db.bootstrap(roles.dsn("orchestrator")) == []


def test_a_scheduler_declares_and_ticks(roles, administrator):
    """And sweeps, all in one pass; a version of the host app that has no schedule ends them."""
    words = checked_words(
        name="each",
        cron="0 0 * * *",
        timezone="UTC",
        catch_up="all",
        catch_up_cap=5,
        jitter_s=0,
        task_name="tidy",
        queue="load",
        priority=5,
        limit_key=None,
        host_lock=None,
    )
    declaring = Declaring(DeclaredSchedules("shop", ({**words, "args": {}},)))
    assert pass_once(lambda: roles.connect("scheduler"), declaring) == 0
    away_since(administrator, "each", timedelta(days=10))
    limited = {"limit_key": "site", "host_lock": "disk"}
    assert pass_once(lambda: roles.connect("scheduler"), declaring, lambda _: limited) == 0
    ticks = "SELECT count(*) FROM ingest_jobs WHERE schedule_name = 'each'"
    assert administrator.execute(ticks).fetchone() == (5,)
    assert pass_once(lambda: roles.connect("scheduler"), Declaring(DeclaredSchedules("shop", ()))) == 0
    assert administrator.execute("SELECT declared FROM schedules WHERE name = 'each'").fetchone() == (False,)
    with roles.connect("orchestrator") as orchestrator:
        schedules = ScheduleRepository(orchestrator)
        assert schedules.set_enabled("each", False, actor="me").name == "each"
        assert schedules.trigger("each", actor="me") is not None


def test_a_reader_sees_everything(roles):
    """Every table, through the repositories as well."""
    with roles.connect("reader") as reader:
        for table in TABLES:
            reader.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(table)))
        assert IngestJobRepository(reader).counts().keys() >= {"fetch"}
        assert read_figures(reader, stale_s=30)["qwf.database.up"] == [((), 1.0)]
        assert [run.workflow_name for run in RunRepository(reader).list(limit=1)] == ["film"]


def test_an_upgrade_without_its_grants_stops_nobody(roles, caplog):
    """An orchestrator that may not prune says so and works on; a reader sees all figures but one."""
    with roles.connect("migrator") as migrator:
        for role in ("orchestrator", "reader"):
            migrator.execute(f"REVOKE ALL ON retention_marks FROM {roles.name(role)}")
    try:
        with roles.connect("orchestrator") as orchestrator:
            assert Pruning(settings()).prune(orchestrator) > EVERY_S
        (said,) = caplog.messages
        assert "retention_marks" in said
        assert said.endswith("apply docs/deploy/grants.sql after an upgrade")
        figures = FigureReader(lambda: roles.connect("reader"), stale_s=30, every_s=3600)
        found = figures.figures()
        figures.close()
        assert {metric.name for metric in FIGURES} - set(found) == {"qwf.retention.lag"}
    finally:
        roles.grant()
    with roles.connect("orchestrator") as orchestrator:
        assert Pruning(settings()).prune(orchestrator) <= EVERY_S


def test_running_the_grants_again_takes_back_what_is_too_much(roles):
    """The scripts are safe to repeat, and say all that a role has."""
    with roles.connect("migrator") as migrator:
        for grant in (
            "UPDATE ON ingest_jobs",
            "INSERT (claimed_by) ON ingest_jobs",
            "USAGE ON SEQUENCE ingest_jobs_position_seq",
        ):
            migrator.execute(f"GRANT {grant} TO {roles.name('reader')}")
    with psycopg.connect(roles.admin_dsn, autocommit=True) as admin:
        admin.execute(roles.script("roles.sql"))
    roles.grant()
    with roles.connect("reader") as reader:
        for statement in (
            "UPDATE ingest_jobs SET priority = 9",
            "INSERT INTO ingest_jobs (claimed_by) VALUES ('me')",
            "SELECT nextval('ingest_jobs_position_seq')",
        ):
            with pytest.raises(InsufficientPrivilege):
                reader.execute(statement)


@pytest.mark.slow
def test_an_orchestrator_waits_for_the_migrator(qwf_new_database, qwf_role_suffix):
    """Without DDL it does not migrate but wait: through an empty database, and until it may look."""
    with least_privilege(qwf_new_database(False), qwf_role_suffix) as roles:
        with pytest.raises(AccessRefused, match="lacks the CREATE right on schema public"):
            db.bootstrap(roles.dsn("orchestrator"))
        seen: list[str] = []
        looked = threading.Event()

        def wait() -> None:
            def sleep(seconds: float) -> None:
                looked.set()
                threading.Event().wait(seconds)

            seen.append(db.wait_for_schema(13, 150, dsn=roles.dsn("orchestrator"), sleep=sleep))
            looked.set()

        waiting = threading.Thread(target=wait)
        waiting.start()
        for step in (lambda: db.bootstrap(roles.dsn("migrator")), roles.grant, lambda: None):
            # Each step is done only after the orchestrator has looked at the state before it.
            looked.clear()
            assert seen or looked.wait(150)
            step()
            if seen:
                break
        waiting.join(150)
        assert seen == [HEAD]


@pytest.mark.slow
def test_the_roles_work_in_a_schema_of_their_own(qwf_new_database, qwf_role_suffix):
    """Where the tables are not in `public`, the scripts need that one name changed, as the page says."""
    dsn = qwf_new_database(False)
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute("CREATE SCHEMA film")
    with least_privilege(dsn, qwf_role_suffix, schema="film") as roles:
        db.bootstrap(roles.dsn("migrator"))
        roles.grant()
        with roles.connect("producer") as producer, roles.connect("worker") as worker:
            job = IngestJobRepository(producer).enqueue("t", queue="fetch")
            (claimed,) = IngestJobRepository(worker).claim("fetch", worker_id="w", lease_s=30)
            IngestJobRepository(worker).complete(claimed)
            assert claimed.id == job.id
            assert worker.execute("SELECT to_regclass('public.ingest_jobs')").fetchone() == (None,)
