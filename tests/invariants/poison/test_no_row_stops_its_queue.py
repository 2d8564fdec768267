"""No row that a mere producer may insert keeps the jobs behind it from being run, or ends their worker.

Two defences, each of which is enough: the table refuses what no worker could handle, and a worker that claims
such a row all the same ends its job as failed. Each is tried with every column that its writer may write.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.workers import patiently, running_worker, until
from support.rows.hostile_rows import VALUES, HostileRow, columns_of, insert_hostile
from support.rows.jobs import CLEAR_WITH_WORKERS
from support.rows.roles import Roles, least_privilege
from support.rows.runs import dispatcher, run_through, settle, start
from support.stages.hook_stage import Stage, result
from support.stages.ticking import pass_once

from queue_workflows import submit_input
from queue_workflows.errors import QwfError
from queue_workflows.repositories import IngestJobRepository, NewIngestJob, RunRepository
from queue_workflows.repositories.jobs.hooks import HookJobRepository
from queue_workflows.repositories.jobs.ingest_rows import IngestRows
from queue_workflows.repositories.limits.lane_turns import Reached
from queue_workflows.repositories.limits.lanes import LaneRepository
from queue_workflows.repositories.sql.checks import PayloadLimits
from queue_workflows.repositories.sql.low_water_marks import Marks
from queue_workflows.workflow.document.load import load_document

TABLES = ("ingest_jobs", "workflow_node_jobs", "workflow_runs", "workflow_input_submissions")
TASK = {"task_name": "'reads'", "queue": "'fetch'", "priority": "9"}
NODE = {
    "node_id": "gen_random_uuid()::text",
    "node_module": "'reads'",
    "queue": "'cpu'",
    "priority": "9",
}
HOLDS = [
    {"status": "'scheduled'", "hold_reason": f"'{reason}'", "run_at": "now() + interval '100 years'"}
    for reason in ("limit_full", "unknown_task", "host_lock")
]
BESIDE = {"hold_reason": [{"status": "'scheduled'"}], "hold_key": HOLDS}
FAILS = {"task_name": "'fails'"}
INGEST_BESIDE = {**BESIDE, "backoff_s": [{**FAILS, "max_attempts": "1"}, {**FAILS, "max_attempts": "2"}]}
# What workers count and nothing that anybody asks for can become.
COUNTED = {"generation", "attempt", "failures", "crash_count"}
DOCUMENT = {"name": "film", "nodes": [{"id": "ask", "type": "input"}, {"id": "draw", "module": "reads"}]}
GOOD = 20
NOT_BEGUN = """
SELECT id FROM workflow_runs AS run
WHERE id = ANY (%s) AND status = 'queued' AND mode = 'node' AND NOT EXISTS (
    SELECT FROM workflow_dispatch_events WHERE run_id = run.id AND poisoned_at IS NOT NULL
        AND last_error <> ''
)
"""


@pytest.fixture(scope="module")
def roles(qwf_dsn: str, qwf_role_suffix: str) -> Iterator[Roles]:
    """The roles of the docs, in the test's database."""
    with least_privilege(qwf_dsn, qwf_role_suffix) as roles:
        with psycopg.connect(qwf_dsn, autocommit=True) as admin:
            admin.execute(roles.script("grants.sql"))
        yield roles


@pytest.fixture
def admin(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    """Empty tables."""
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR_WITH_WORKERS + "; TRUNCATE schedules")
        yield connection


@pytest.fixture
def unguarded(admin: psycopg.Connection) -> Iterator[psycopg.Connection]:
    """Empty tables that refuse nothing."""
    for table in TABLES:
        admin.execute(f"ALTER TABLE {table} DISABLE TRIGGER qwf_refused")
    yield admin
    for table in TABLES:
        admin.execute(f"ALTER TABLE {table} ENABLE TRIGGER qwf_refused")


# What a producer's own library refuses, and a table does not look for: it would have to read all of a
# payload, or to know what can be seen.
TOO_DEEP = [value for value in VALUES["jsonb"] if "1e" in value or "repeat('['" in value]
UNSEEN = {"host_lock": ["chr(8203)"], "args": TOO_DEEP}
# What no verb of ours takes from anybody, as it is reckoned.
RECKONED = {"position", "status", "hold_reason", "hold_key", "at_most_once", "begun_generation"}


def test_a_table_refuses_what_the_library_refuses(roles: Roles, admin: psycopg.Connection) -> None:
    """Column by column of those that a producer may write: no more, and next to no less."""
    columns = columns_of(admin, roles.name("producer"), "ingest_jobs")
    with roles.connect("producer") as producer:
        bad = insert_hostile(producer, "ingest_jobs", columns, TASK, INGEST_BESIDE)
    assert {row.column for row in bad} == {name for name, _ in columns}
    differ = [
        (row.column, row.value)
        for row in bad
        if row.column not in RECKONED
        and (row.refused is not None) != _is_refused_by_the_library(admin, row.column, row.value)
    ]
    assert differ == [(column, value) for column, values in UNSEEN.items() for value in values]
    kept = {row.column for row in bad if row.refused is None}
    assert not {"position", "begun_generation"} & kept
    # By name and with the rule, which is all that the inserting role gets to see.
    told = {row.column: row.refused for row in bad if row.refused and "cannot be so" in row.refused}
    assert all(f"ingest_jobs.{column} cannot be so: it " in said for column, said in told.items())
    assert set(told) >= {"task_name", "queue", "args", "limit_key", "host_lock", "timeout_s", "hold_key"}


def _is_refused_by_the_library(admin: psycopg.Connection, column: str, value: str) -> bool:
    kind = dict(columns_of(admin, "postgres", "ingest_jobs"))[column]
    try:
        ((given,),) = admin.execute(f"SELECT ({value})::{kind}").fetchall()
        words = {"task_name": "reads", "queue": "fetch", column: given}
        if column == "args" and not isinstance(given, dict):
            return True
        IngestRows(PayloadLimits()).row(NewIngestJob(**words))
    except (psycopg.Error, QwfError, ValueError, RecursionError):
        return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("concurrency", ["1", "8"])
def test_no_ingest_job_stops_a_worker(
    qwf_dsn: str, roles: Roles, unguarded: psycopg.Connection, concurrency: str
) -> None:
    """Whatever stands before them, the good jobs run, all in the process that was started."""
    columns = columns_of(unguarded, roles.name("producer"), "ingest_jobs")
    with roles.connect("producer") as producer:
        bad = insert_hostile(producer, "ingest_jobs", columns, TASK, INGEST_BESIDE)
        good = _insert_good(producer, "ingest_jobs", {**TASK, "priority": "5"})
    _outlived(qwf_dsn, unguarded, "ingest_jobs", bad, good, "--concurrency", concurrency)


@pytest.mark.slow
def test_a_row_that_cannot_be_written_out_loses_no_claim(roles: Roles, unguarded: psycopg.Connection) -> None:
    """100 KB of JSON are more text than a server can make of them: that job fails, others are claimed."""
    args = "('{\"x\": [' || repeat('1e131071,', 9000) || '1]}')::jsonb"
    with roles.connect("producer") as producer:
        (bomb,) = _insert_good(producer, "ingest_jobs", {**TASK, "args": args}, 1)
        good = _insert_good(producer, "ingest_jobs", {**TASK, "priority": "5"}, 3)
    jobs = IngestJobRepository(unguarded)
    claimed = jobs.claim("fetch", worker_id="w", lease_s=300, limit=4, durable=False)
    assert [job.id for job in claimed] == good
    seen = "SELECT status, failures, errors -> 0 ->> 'kind' FROM ingest_jobs WHERE id = %s"
    assert unguarded.execute(seen, [bomb]).fetchone() == ("failed", 1, "unusable_row")


@pytest.mark.slow
def test_a_background_hook_that_cannot_be_written_out_loses_no_claim(
    roles: Roles, unguarded: psycopg.Connection
) -> None:
    """As any other job: it fails, and those beside it are claimed."""
    inputs = "('{\"x\": [' || repeat('1e131071,', 9000) || '1]}')::jsonb"
    run = RunRepository(unguarded).insert("film", spec={}, spec_hash="h").id
    hook = {**NODE, "run_id": f"'{run}'", "queue": "'hooks'", "background": "true"}
    with roles.connect("orchestrator") as orchestrator:
        (bomb,) = _insert_good(orchestrator, "workflow_node_jobs", {**hook, "inputs": inputs}, 1)
        good = _insert_good(orchestrator, "workflow_node_jobs", hook, 3)
    hooks = HookJobRepository.at("here")(unguarded)
    claimed = hooks.claim_background(worker_id="here:hooks:1", lease_s=300, limit=4)
    assert [job.id for job in claimed] == good
    seen = "SELECT status, failures, errors -> 0 ->> 'kind' FROM workflow_node_jobs WHERE id = %s"
    assert unguarded.execute(seen, [bomb]).fetchone() == ("failed", 1, "unusable_row")


def test_a_position_at_the_end_of_all_keeps_nobody(unguarded: psycopg.Connection) -> None:
    """What is enqueued after it stands before it: a poll later it is claimed, also out of lanes."""
    jobs, marks = IngestJobRepository(unguarded), Marks(1.0)
    clock = count(step=0.1)
    unguarded.execute("INSERT INTO concurrency_limits (key_pattern, max_slots) VALUES ('k', 1000)")
    last = {**TASK, "position": str(2**63 - 1)}
    _insert_good(unguarded, "ingest_jobs", last, 130)

    def claim(limit: int) -> list[int]:
        claimed = jobs.claim(
            "fetch", worker_id="w", lease_s=300, limit=limit, positions=marks.positions(next(clock))
        )
        marks.claimed(claimed, limit)
        return [job.id for job in claimed]

    assert len(claim(1)) == 1
    keyed = [made.id for made in jobs.enqueue_many([_keyed() for _ in range(40)])]
    good = _insert_good(unguarded, "ingest_jobs", TASK, 2)
    reached = Reached("fetch")
    reached.by(marks)
    assert LaneRepository(unguarded, jobs.family).admit({"k": 30}, reached) > 0
    # At ten claims a poll.
    found = [job for _ in range(10) for job in claim(1)]
    found = [job for _ in range(len(keyed + good)) for job in claim(1)]
    assert sorted(found) == sorted(keyed + good)


def _keyed() -> NewIngestJob:
    return NewIngestJob(task_name="reads", queue="fetch", limit_key="k", priority=9)


@pytest.mark.slow
@pytest.mark.parametrize("queue", ["cpu", "gpu"])
def test_no_node_job_stops_a_worker(
    qwf_dsn: str, roles: Roles, unguarded: psycopg.Connection, queue: str
) -> None:
    """An orchestrator's rows too, which it makes of documents that are others'."""
    bad, good = _hostile_nodes(roles, unguarded, queue)
    _outlived(qwf_dsn, unguarded, "workflow_node_jobs", bad, good, "--queue", queue)


@pytest.mark.slow
def test_no_hook_stops_a_worker(
    qwf_dsn: str, roles: Roles, unguarded: psycopg.Connection, tmp_path: Path
) -> None:
    """Nor does the row of a hook, in the foreground and behind it."""
    stage = Stage(qwf_dsn, unguarded, tmp_path)
    stage.put("tidy/on_Page__10_do.sh", result("succeeded"))
    hook = {"plugin": "'tidy'", "node_module": "'on_Page__10_do.sh'", "step": "1"}
    bad, _ = _hostile_nodes(roles, unguarded, "hooks", hook, good=0)
    run = [stage.start() for _ in range(GOOD)]
    sql = "SELECT id FROM workflow_node_jobs WHERE run_id = ANY (%s)"
    good = [job_id for (job_id,) in unguarded.execute(sql, [run])]
    assert len(good) == GOOD
    unguarded.execute("UPDATE workflow_node_jobs SET priority = 5 WHERE id = ANY (%s)", [good])
    paths = {"QWF_HOOK_DIRS": str(stage.plugins), "QWF_DATA_DIR": str(stage.data)}
    _outlived(qwf_dsn, unguarded, "workflow_node_jobs", bad, good, "--queue", "hooks", pid=False, **paths)


def test_a_table_refuses_node_jobs(roles: Roles, admin: psycopg.Connection) -> None:
    """What the library would not make."""
    bad, _ = _hostile_nodes(roles, admin, "cpu")
    kept = {(row.column, row.value) for row in bad if row.refused is None}
    for column in ("node_id", "node_module", "required_model", "limit_key", "host_lock", "hold_key"):
        assert not {(column, value) for value in ("''", "repeat('x', 60000)")} & kept
    for column in ("timeout_s", "stall_timeout_s", "backoff_s"):
        assert not {(column, value) for value in ("'NaN'", "'Infinity'", "-1", "1e308")} & kept
    assert not {("limit_key", "'*'"), ("limit_key", "'a*'"), ("run_at", "'infinity'")} & kept
    assert ("inputs", "'[]'") not in kept
    assert not {column for column, _ in kept} & {"position", "begun_generation"}


def _hostile_nodes(
    roles: Roles,
    admin: psycopg.Connection,
    queue: str,
    more: Mapping[str, str] | None = None,
    *,
    good: int = GOOD,
) -> tuple[list[HostileRow], list[int]]:
    columns = columns_of(admin, roles.name("orchestrator"), "workflow_node_jobs")
    columns = [(name, kind) for name, kind in columns if name not in COUNTED]
    run = RunRepository(admin).insert("film", spec={}, spec_hash="h").id
    node = {**NODE, "run_id": f"'{run}'", "queue": f"'{queue}'", **(more or {})}
    with roles.connect("orchestrator") as orchestrator:
        bad = insert_hostile(orchestrator, "workflow_node_jobs", columns, node, BESIDE)
        return bad, _insert_good(orchestrator, "workflow_node_jobs", {**node, "priority": "5"}, good)


@pytest.mark.parametrize("is_guarded", [True, False])
def test_no_run_and_no_answer_stops_an_orchestrator(
    request: pytest.FixtureRequest, roles: Roles, is_guarded: bool
) -> None:
    """Runs and answers that nobody can read are set aside with their error; the others are advanced."""
    eyes: psycopg.Connection = request.getfixturevalue("admin" if is_guarded else "unguarded")
    document = load_document(DOCUMENT)
    spec = json.dumps(document.snapshot()).replace("'", "''")
    run = {
        "id": "gen_random_uuid()",
        "workflow_name": "'film'",
        "spec": f"'{spec}'",
        "spec_hash": f"'{document.hash}'",
        "priority": "9",
    }
    # A hash of its own, or the document that is known by it would be taken.
    beside = {"spec": [{"spec_hash": "gen_random_uuid()::text"}]}
    with roles.connect("producer") as producer:
        columns = columns_of(eyes, roles.name("producer"), "workflow_runs")
        bad = insert_hostile(producer, "workflow_runs", columns, run, beside)
        parked = producer.execute(
            f"INSERT INTO workflow_runs ({', '.join(run)}) VALUES ({', '.join(run.values())}) RETURNING id"
        ).fetchall()[0][0]
    orchestrator = dispatcher(eyes, DOCUMENT, dispatch_max_tries=2)
    settle(orchestrator)
    with roles.connect("producer") as producer:
        columns = columns_of(eyes, roles.name("producer"), "workflow_input_submissions")
        answer = {"run_id": f"'{parked}'", "node_id": "'ask'", "payload": "'{}'"}
        answers = insert_hostile(producer, "workflow_input_submissions", columns, answer)
        good = [start(producer, DOCUMENT) for _ in range(GOOD)]
        for each in good:
            submit_input(each, "ask", {}, conn=producer)
    run_through(eyes, orchestrator, lambda _job: {})
    done = "SELECT count(*) FROM workflow_runs WHERE id = ANY (%s) AND status = 'completed'"
    assert eyes.execute(done, [good]).fetchone() == (GOOD,)
    ids = [row.key for row in bad if row.key is not None]

    def left() -> list[tuple[object, ...]]:
        """Runs that nobody has begun, and that are not set aside with an error."""
        settle(orchestrator)
        return eyes.execute(NOT_BEGUN, [ids]).fetchall()

    until(lambda: not left())
    if is_guarded:
        kept = {(row.column, row.value) for row in [*bad, *answers] if row.refused is None}
        assert not {("spec", "'[]'"), ("labels", "'1'"), ("payload", "'null'"), ("node_id", "''")} & kept


def test_no_schedule_stops_a_scheduler(roles: Roles, admin: psycopg.Connection) -> None:
    """A schedule that nobody can read is refused, or left alone with a word in the log; the others tick."""
    columns = columns_of(admin, roles.name("scheduler"), "schedules")
    schedule = {
        "name": "gen_random_uuid()::text",
        "cron": "'* * * * *'",
        "task_name": "'reads'",
        "queue": "'fetch'",
    }
    checks = admin.execute(
        "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint"
        " WHERE conrelid = 'schedules'::regclass AND contype = 'c'"
        " AND pg_get_constraintdef(oid) LIKE '%NOT enabled%'"
    ).fetchall()
    with roles.connect("scheduler") as scheduler:
        refused = insert_hostile(scheduler, "schedules", columns, schedule, key="name")
        kept = {(row.column, row.value) for row in refused if row.refused is None}
        assert not {("cron", "''"), ("limit_key", "'a*'"), ("jitter_s", "'NaN'"), ("args", "'[]'")} & kept
    for name, _ in checks:
        admin.execute(f"ALTER TABLE schedules DROP CONSTRAINT {name}")
    try:
        with roles.connect("scheduler") as scheduler:
            insert_hostile(scheduler, "schedules", columns, schedule, key="name")
        # A tick of each is due.
        admin.execute(
            "UPDATE schedules SET updated_at = now() - interval '90 s'"
            " WHERE updated_at BETWEEN now() - interval '1 min' AND now()"
        )
        good = [f"good {number}" for number in range(GOOD)]
        for name in good:
            admin.execute(
                "INSERT INTO schedules (name, cron, task_name, queue, updated_at)"
                " VALUES (%s, '* * * * *', 'reads', 'fetch', now() - interval '90 s')",
                [name],
            )
        pass_once(lambda: roles.connect("scheduler"))
        ticked = "SELECT count(DISTINCT schedule_name) FROM ingest_jobs WHERE schedule_name = ANY (%s)"
        assert admin.execute(ticked, [good]).fetchone() == (GOOD,)
    finally:
        admin.execute("TRUNCATE schedules")
        for name, definition in checks:
            admin.execute(f"ALTER TABLE schedules ADD CONSTRAINT {name} {definition}")


def _insert_good(
    writer: psycopg.Connection, table: str, words: dict[str, str], count: int = GOOD
) -> list[int]:
    sql = f"INSERT INTO {table} ({', '.join(words)}) VALUES ({', '.join(words.values())}) RETURNING id"
    return [writer.execute(sql).fetchall()[0][0] for _ in range(count)]


def _outlived(
    dsn: str,
    admin: psycopg.Connection,
    table: str,
    bad: Sequence[HostileRow],
    good: Sequence[int],
    *options: str,
    pid: bool = True,
    **settings: str,
) -> None:
    """A worker does the good jobs and lives; what is bad was refused, ended, or waits and harms nobody."""
    result = "result" if table == "ingest_jobs" else "context_delta"
    ids = [row.key for row in bad if row.key is not None]
    wanted = f"SELECT count(*) = {GOOD} FROM {table} WHERE id = ANY (%s) AND status = 'completed'"
    # What this worker may claim has ended, or waits for a retry or what it is on hold for. A suspect that is
    # claimed last has to have its turn too: a worker that stops gives it back as if nothing had come of it.
    here = "" if table == "ingest_jobs" else "AND pinned_host IS NULL"
    over = f"""
        SELECT count(*) = 0 FROM {table} WHERE id = ANY (%s)
            AND status IN ('queued', 'running') AND queue IN ('fetch', 'cpu', 'gpu', 'hooks') {here}
            AND position > 0 AND priority BETWEEN 0 AND 9
    """
    with running_worker(
        dsn, *options, "--log-level=critical", QWF_APP="support.tasks.hostile_tasks", **settings
    ) as worker:
        patiently(lambda: worker.poll() is not None or admin.execute(wanted, [list(good)]).fetchone()[0])
        patiently(lambda: worker.poll() is not None or admin.execute(over, [ids]).fetchone()[0])
        assert worker.poll() is None, worker.stderr and worker.stderr.read()[-3000:]
        done = f"SELECT DISTINCT {result} ->> 'pid' FROM {table} WHERE id = ANY (%s)"
        # A hook is a process of its own.
        assert not pid or admin.execute(done, [list(good)]).fetchall() == [(str(worker.pid),)]
        worker.terminate()
        assert worker.wait(150) == 0
        assert worker.stderr is not None
        assert "Traceback" not in worker.stderr.read()
    seen = _seen(admin, table, ids)
    assert not [
        (row.column, row.value, seen[row.key]) for row in bad if row.key and not _is_fine(seen[row.key])
    ]


def _seen(admin: psycopg.Connection, table: str, ids: Sequence[Any]) -> dict[Any, tuple[Any, ...]]:
    sql = f"""
        SELECT id, status, left(queue, 20), hold_reason, attempt, crash_count, left(errors::text, 300)
        FROM {table} WHERE id = ANY (%s)
    """
    return {row[0]: row[1:] for row in admin.execute(sql, [list(ids)])}


def _is_fine(row: tuple[Any, ...]) -> bool:
    status, _, hold_reason, attempt, crash_count, errors = row
    # A busy worker gives back what it claimed ahead and does not come to, which is another attempt.
    if crash_count or attempt > 10:
        return False
    if status == "failed":
        return '"message": "' in errors
    # Else it was done, was never anybody's to do, or waits for what it says.
    is_over_or_ahead = status in {"completed", "cancelled"} or attempt == 0
    return is_over_or_ahead or bool(hold_reason) or errors != "[]"
