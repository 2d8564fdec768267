"""The plans of the hot statements: by index whatever is stored, prepared once, parsed once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg._queries import MAX_CACHED_STATEMENT_LENGTH
from support.rows.jobs import Jobs, ending, jobs_of
from support.rows.plans import as_prepared, explain, nodes

from queue_workflows.db.connections.engine import connect, parse_dsn
from queue_workflows.db.connections.pins import PLANNER, Timeouts
from queue_workflows.repositories import Ending, Fence, Marks, RunRepository
from queue_workflows.repositories.claims import by_host_lock, claim, hold_lease, operator_verbs, sweep
from queue_workflows.repositories.claims import end as ends
from queue_workflows.repositories.claims.claim import claim_params
from queue_workflows.repositories.claims.end import end_params
from queue_workflows.repositories.claims.sweep_look import LOOK
from queue_workflows.repositories.explain import explain_job
from queue_workflows.repositories.sql.arrays import fence_params, id_array, texts
from queue_workflows.repositories.sql.low_water_marks import PRIORITIES, UNMARKED
from queue_workflows.states import JobStatus

FINISHED = 150_000
NOW = "2026-01-01T00:00:00+00:00"
QUEUED = 3_000
WIDE_OFF = ("hashjoin", "mergejoin", "sort", "material", "memoize")
# How the planner may be led: as it likes, or without what would hide that a plan needs it.
PINNED = tuple(name.removeprefix("enable_") for name in PLANNER if name.startswith("enable_"))
SWITCHES = {
    "all nodes": (),
    "nested loops only": WIDE_OFF,
    "no bitmaps": ("bitmapscan",),
    "as a worker": PINNED,
}
STORED = {
    "node": """
        INSERT INTO workflow_node_jobs
            (run_id, node_id, map_index, queue, priority, status, claimed_by, attempt, finished_at,
             lease_expires_at, hold_reason, hold_key, limit_key, run_at)
        SELECT %(run)s, 'n', %(base)s + n, 'cpu', n %% 10, %(status)s, %(worker)s || (n %% 40), 1,
            CASE WHEN %(status)s = 'completed' THEN now() END,
            CASE WHEN %(status)s = 'running' THEN now() + interval '1 h' END,
            %(reason)s, %(key)s || (n %% 50), %(limit)s || (n %% 7), now() + n * interval '1 s'
        FROM generate_series(1, %(count)s) AS n
    """,
    "ingest": """
        INSERT INTO ingest_jobs
            (task_name, queue, priority, status, claimed_by, attempt, finished_at, lease_expires_at,
             hold_reason, hold_key, limit_key, run_at)
        SELECT 'task', 'fetch', n %% 10, %(status)s, %(worker)s || (n %% 40), 1,
            CASE WHEN %(status)s = 'completed' THEN now() END,
            CASE WHEN %(status)s = 'running' THEN now() + interval '1 h' END,
            %(reason)s, %(key)s || (n %% 50), %(limit)s || (n %% 7), now() + n * interval '1 s'
        FROM generate_series(1, %(count)s) AS n
    """,
}


def store(jobs: Jobs, run: Any, base: int, count: int, status: str, **more: Any) -> None:
    """Many rows of one status at once."""
    params = {"worker": None, "reason": None, "key": None, "limit": None} | more
    params |= {"run": run, "base": base, "count": count, "status": status}
    jobs.connection.execute(STORED[jobs.family], params)


def a_run(jobs: Jobs) -> Any:
    """A run for nodes that come past the repositories."""
    return RunRepository(jobs.connection).insert("film", spec={}, spec_hash="h").id


@pytest.fixture(scope="module", params=["node", "ingest"])
def family(request: pytest.FixtureRequest) -> str:
    """Both."""
    return request.param


# When the planner was last told what is stored, if ever.
ANALYZED = ("afterwards", "while empty", "while idle", "while filled", "never")


@pytest.fixture(scope="module", params=ANALYZED, ids=[f"analyzed {when}" for when in ANALYZED])
def crowded(family: str, request: pytest.FixtureRequest, qwf_dsn: str) -> Iterator[Jobs]:
    """150,000 finished jobs beside those that wait, run and are held, with statistics, old ones, and none."""
    when = request.param
    with jobs_of(family, qwf_dsn) as jobs, psycopg.connect(qwf_dsn, autocommit=True) as analyst:
        jobs.connection.execute(f"ALTER TABLE {jobs.table} SET (autovacuum_enabled = off)")
        run = a_run(jobs)

        def analyze() -> None:
            analyst.execute(f"VACUUM ANALYZE {jobs.table}")

        if when == "while empty":
            analyze()
        jobs.connection.execute("SET session_replication_role = replica")
        with jobs.connection.transaction():
            store(jobs, run, 0, FINISHED, "completed", worker="w")
            if when == "while filled":
                # It finds the pages, and no row that it may see.
                analyze()
        if when == "while idle":
            analyze()
        store(jobs, run, 200_000, QUEUED, "queued")
        store(jobs, run, 250_000, 60, "queued", limit="k")
        store(jobs, run, 300_000, QUEUED, "scheduled", reason="limit", key="k")
        store(jobs, run, 400_000, 200, "running", worker="w")
        store(jobs, run, 500_000, QUEUED, "scheduled", reason="host_lock", key="elsewhere:k")
        jobs.connection.execute("RESET session_replication_role")
        if when == "afterwards":
            analyze()
        elif when == "never":
            # What an earlier test had analyzed outlives a TRUNCATE.
            jobs.connection.execute("DELETE FROM pg_statistic WHERE starelid = %s::regclass", [jobs.table])
        yield jobs
        jobs.connection.execute(f"ALTER TABLE {jobs.table} RESET (autovacuum_enabled)")


def indexes(plan: list[dict[str, Any]]) -> set[str]:
    """The indexes that a plan reads."""
    return {node["Index Name"] for node in plan if "Index Name" in node}


def check_by_id_only(jobs: Jobs, plan: list[dict[str, Any]], *also: str) -> None:
    """The table is read by its primary key, and by the other indexes that are named, never as a whole."""
    scanned = [
        node for node in plan if node.get("Relation Name") == jobs.table and "Scan" in node["Node Type"]
    ]
    assert all(node["Node Type"] != "Seq Scan" for node in scanned), scanned
    ours = {name for name in indexes(plan) if jobs.table in name}
    assert ours <= {f"pk_{jobs.table}", *also}, ours


def held_rows(jobs: Jobs, count: int) -> list[Fence]:
    """Some running rows."""
    sql = f"SELECT id, attempt, claimed_by FROM {jobs.table} WHERE status = 'running' ORDER BY id LIMIT %s"
    return [Fence(*row) for row in jobs.connection.execute(sql, [count])]


# Whether a row that is due has to go into the lane of its key is asked of the lanes.
LANES = ("hold", "keyed")
MODES = pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
SWITCHED = pytest.mark.parametrize("off", SWITCHES.values(), ids=SWITCHES.keys())


@MODES
@SWITCHED
@pytest.mark.parametrize("limit", [1, 50])
@pytest.mark.parametrize("passes_by", [False, True], ids=["knows all", "passes by"])
@pytest.mark.slow
def test_claim(crowded: Jobs, mode: str, off: tuple[str, ...], limit: int, passes_by: bool) -> None:
    """A claim walks its partial index from its marks on, locks what it takes, and updates by primary key.

    So does the one of a worker that passes by tasks which it does not know.
    """
    marks = UNMARKED if limit == 1 else (-1 if crowded.family == "ingest" else 1,) * len(PRIORITIES)
    # Other plans were undone, and have left their locks' traces.
    crowded.connection.execute(f"UPDATE {crowded.table} SET status = status WHERE status = 'queued'")
    params = claim_params(
        crowded.queue, worker_id="w", lease_s=30.0, limit=limit, alone=False, positions=marks
    ) | {"relaxed": False}
    sql = claim.CLAIM
    if passes_by:
        sql, params = claim.CLAIM_BUT, params | {"but": texts(["lacked", "lacked too"])}
    plan = explain(crowded.connection, mode, sql[crowded.family], params, off)
    check_by_id_only(crowded, plan, f"ix_{crowded.table}_claim")
    walks = [node for node in plan if node.get("Index Name") == f"ix_{crowded.table}_claim"]
    assert [node["Node Type"] for node in walks] == ["Index Scan"]
    assert walks[0].get("Rows Removed by Filter", 0) == 0
    assert '"position" >' in walks[0]["Index Cond"]
    (locked,) = [node for node in plan if node["Node Type"] == "LockRows"]
    assert round(locked["Actual Rows"] * locked["Actual Loops"]) == limit
    assert "Sort" not in {node["Node Type"] for node in plan}


@MODES
@pytest.mark.parametrize("family", ["node", "ingest"])
@pytest.mark.slow
def test_a_claim_of_a_flood(qwf_dsn: str, family: str, mode: str) -> None:
    """Analyzed as it was being written: none is expected, so all of them, sorted, would seem as cheap."""
    with jobs_of(family, qwf_dsn) as jobs, psycopg.connect(qwf_dsn, autocommit=True) as analyst:
        jobs.connection.execute(f"ALTER TABLE {jobs.table} SET (autovacuum_enabled = off)")
        run = a_run(jobs)
        jobs.connection.execute("SET session_replication_role = replica")
        store(jobs, run, 0, 20_000, "completed", worker="w")
        store(jobs, run, 20_000, 5_000, "queued")
        analyst.execute(f"VACUUM ANALYZE {jobs.table}")
        jobs.connection.execute(f"TRUNCATE {jobs.table} CASCADE")
        with jobs.connection.transaction():
            store(jobs, run, 0, 20_000, "queued")
            jobs.connection.execute(f"UPDATE {jobs.table} SET priority = 5")
            analyst.execute(f"ANALYZE {jobs.table}")
        params = claim_params(
            jobs.queue, worker_id="w", lease_s=30.0, limit=200, alone=False, positions=(1,) * len(PRIORITIES)
        ) | {"relaxed": False}
        plan = explain(jobs.connection, mode, claim.CLAIM[family], params, PINNED)
        (walk,) = [node for node in plan if node.get("Index Name") == f"ix_{jobs.table}_claim"]
        assert round(walk["Actual Rows"] * walk["Actual Loops"]) == 200
        jobs.connection.execute(f"ALTER TABLE {jobs.table} RESET (autovacuum_enabled)")


@MODES
@SWITCHED
@pytest.mark.parametrize("count", [1, 100])
@pytest.mark.slow
def test_ends_renewals_and_beats(crowded: Jobs, mode: str, off: tuple[str, ...], count: int) -> None:
    """What a worker writes for its jobs finds them by id, never by walking what is running."""
    held = held_rows(crowded, count)
    claimed = claim_params(
        crowded.queue, worker_id="w", lease_s=9.0, limit=2, alone=False, positions=UNMARKED
    )
    batch = end_params(crowded.repository._family, [Ending(fence, JobStatus.COMPLETED) for fence in held])
    alike = ends.alike_params(
        crowded.repository._family, [Ending(fence, JobStatus.COMPLETED) for fence in held]
    )
    held_params = fence_params(held)
    walk = f"ix_{crowded.table}_claim"
    for sql, params, more in (
        (ends.END, batch, ()),
        (ends.END_ALIKE, alike, ()),
        (ends.END_AND_CLAIM, batch | claimed, (walk,)),
        (ends.END_ALIKE_AND_CLAIM, alike | claimed, (walk,)),
        (ends.END_ALIKE_AND_CLAIM_BUT, alike | claimed | {"but": texts(["lacked"])}, (walk,)),
        (hold_lease.RENEW, held_params | {"lease_s": 9.0, "relaxed": False}, ()),
        (hold_lease.CLAIM_AGAIN, held_params | {"lease_s": 9.0, "started": texts([NOW] * count)}, ()),
        (hold_lease.BEAT, held_params | {"progress": texts(["{}"] * count), "relaxed": False}, ()),
        (hold_lease.WATCH, held_params | {"host_label": "h", "queue": "q"}, ()),
    ):
        plan = explain(crowded.connection, mode, sql[crowded.family], params, off)
        check_by_id_only(crowded, plan, *more)


@MODES
@SWITCHED
@pytest.mark.slow
def test_the_poll_of_an_idle_worker(crowded: Jobs, mode: str, off: tuple[str, ...]) -> None:
    """It reads the head of its queue, and at most one job on hold for each reason."""
    params = {"queue": crowded.queue, "reasons": texts(["host_lock", "unknown_task"])}
    plan = explain(crowded.connection, mode, hold_lease.FIND[crowded.family], params, off)
    names = {f"ix_{crowded.table}_{name}" for name in ("claim", "hold")}
    check_by_id_only(crowded, plan, *names)
    assert names <= indexes(plan)


@MODES
@SWITCHED
@pytest.mark.slow
def test_a_look_for_what_there_is_to_sweep(crowded: Jobs, mode: str, off: tuple[str, ...]) -> None:
    """It reads an entry of each index, and of what is running no more than there is."""
    plan = explain(crowded.connection, mode, LOOK, {}, off)
    names = {f"ix_{crowded.table}_{name}" for name in ("due", "running", "hold")}
    check_by_id_only(crowded, plan, *names)
    assert names <= indexes(plan)
    # Rows and not entries, of which a bitmap counts also those that other tests have undone.
    found = [
        (node.get("Index Name", "running"), node["Actual Rows"] + node.get("Rows Removed by Filter", 0))
        for node in plan
        if node.get("Relation Name") == crowded.table
    ]
    assert len(found) == len(names)
    assert all(rows <= (200 if name.endswith("running") else 1) for name, rows in found), found


@MODES
@SWITCHED
@pytest.mark.slow
def test_sweeps(crowded: Jobs, mode: str, off: tuple[str, ...]) -> None:
    """Promotion reads what is due or freed by its index, and a reclaim no more than what is running."""
    reclaim = {"max_crashes": 3, "lease_s": 30.0, "recovered_s": None, "beat_s": 5.0, "in_turn": True}
    held = {"reason": "limit", "keys": texts(["k7"]), "queue": crowded.queue, "limit": 1}
    aside = {"queue": crowded.queue, "names": texts(["task"]), "reason": "unknown_task", "delay_s": 60.0}
    aside |= {"crowd": 1}
    of_worker = {"worker_id": "w7", "max_crashes": 3, "crashed": True, "how": "", "kept": "{1,2,3}"}
    # What is passed by makes the planner expect next to nothing; a worker reads by an index all the same.
    passing = (claim.HAS_SUSPECT_BUT, {"queue": crowded.queue, "but": texts(["lacked"])}, "suspect")
    for sql, params, index in (
        *((passing,) if off == PINNED else ()),
        (hold_lease.PUT_ASIDE, aside, "claim"),
        (hold_lease.PUT_LOCKED_ASIDE, aside, "claim"),
        (claim.HAS_SUSPECT, {"queue": crowded.queue}, "suspect"),
        (sweep.PROMOTE, {"in_turn": True}, "due"),
        (sweep.PROMOTE_HELD, held, "hold"),
        (by_host_lock.PROMOTE, {"keys": texts(["camera", "elsewhere:camera"]), "host": "h"}, "hold"),
        (sweep.RECLAIM, reclaim, "running"),
        (sweep.RECLAIM_WORKER, of_worker, "running"),
    ):
        plan = explain(crowded.connection, mode, sql[crowded.family], params, off)
        lanes = LANES if sql is sweep.PROMOTE else ()
        check_by_id_only(crowded, plan, *(f"ix_{crowded.table}_{name}" for name in (index, *lanes)))
        assert f"ix_{crowded.table}_{index}" in indexes(plan)
        if sql is sweep.PROMOTE_HELD:
            # One is freed, so one is read, whoever else waits for the same.
            read = [node for node in plan if node.get("Index Name") == f"ix_{crowded.table}_hold"]
            assert [(node["Actual Rows"], node["Actual Loops"]) for node in read] == [(1, 1)]
        sorted_by = {key for node in plan for key in node.get("Sort Key", ())}
        assert sql is not sweep.PROMOTE or not any("run_at" in key for key in sorted_by)


@MODES
@SWITCHED
@pytest.mark.slow
def test_a_claim_from_holds(crowded: Jobs, mode: str, off: tuple[str, ...]) -> None:
    """The head of the queue and the first of each lock that is offered are read, whoever else waits."""
    # Nobody is passed: what is offered has to stand before the head of the queue.
    offered = ["elsewhere:k7", "elsewhere:k9", "elsewhere:none"]
    first = f"UPDATE {crowded.table} SET priority = 9 WHERE hold_key = ANY (%s)"
    crowded.connection.execute(first, [offered])
    params = claim_params(
        crowded.queue, worker_id="w", lease_s=30.0, limit=5, alone=False, positions=UNMARKED
    ) | {"relaxed": False, "keys": texts(offered)}
    plan = explain(crowded.connection, mode, by_host_lock.TAKE[crowded.family], params, off)
    hold, head = f"ix_{crowded.table}_hold", f"ix_{crowded.table}_claim"
    check_by_id_only(crowded, plan, hold, head)
    read = {
        name: sum(
            round(node["Actual Rows"] * node["Actual Loops"])
            for node in plan
            if node.get("Index Name") == name
        )
        for name in (hold, head)
    }
    # Two of the three locks that are looked up; up to PostgreSQL 17 that is one a look, as a whole number.
    assert (read[hold] in (2, 3), read[head]) == (True, 1), read
    assert "Sort" not in {node["Node Type"] for node in plan}


@MODES
@SWITCHED
@pytest.mark.slow
def test_decisions(crowded: Jobs, mode: str, off: tuple[str, ...]) -> None:
    """What operators and host apps decide by id is looked up by id, a page of it too."""
    by = {"actor": "ann", "why": None}
    over = [row[0] for row in crowded.connection.execute(OVER.format(table=crowded.table))]
    mark = {"id": held_rows(crowded, 1)[0].job_id, "to": "completed", "from": ["running"], "result": ""}
    mark |= {"error": "", "attempt": 0, "claimed_by": ""}
    some = id_array([fence.job_id for fence in held_rows(crowded, 100)])
    for sql, params in (
        (operator_verbs.CANCEL, {"ids": some} | by),
        (operator_verbs.RETRY, {"ids": id_array(over)} | by),
        (operator_verbs.MARK, mark),
    ):
        plan = explain(crowded.connection, mode, sql[crowded.family], params, off)
        check_by_id_only(crowded, plan)


OVER = "SELECT id FROM {table} WHERE status = 'completed' ORDER BY id LIMIT 100"


@MODES
@SWITCHED
@pytest.mark.slow
def test_explaining(crowded: Jobs, mode: str, off: tuple[str, ...]) -> None:
    """`qwf explain` reads the row, those ahead of it and what workers hold by index, up to a bound."""
    queued = f"SELECT max(id) FROM {crowded.table} WHERE status = 'queued'"
    ((job_id,),) = crowded.connection.execute(queued)
    of_queue = {"queue": crowded.queue, "alone": True}
    ahead = of_queue | {"priorities": list(range(9, -1, -1)), "before": [2**62] * 10, "limit": 500}
    for sql, params, index in (
        (explain_job.JUDGED, of_queue | {"id": job_id}, None),
        (explain_job.AHEAD, ahead, "claim"),
        (explain_job.AT_WORK, {"workers": ["w1", "w2"]}, "running"),
        (by_host_lock.HOLDERS, {"keys": texts(["camera"])}, "running"),
        (sweep.HELD_KEYS, {"reason": "limit", "queue": crowded.queue, "limit": 100}, "hold"),
    ):
        plan = explain(crowded.connection, mode, sql[crowded.family], params, off)
        also = [f"ix_{crowded.table}_{index}"] if index else []
        check_by_id_only(crowded, plan, *also)
        assert set(also) <= indexes(plan)
        read = [node for node in plan if node.get("Index Name") == f"ix_{crowded.table}_claim"]
        assert sum(node["Actual Rows"] * node["Actual Loops"] for node in read) <= 500 * len(PRIORITIES)
        if sql is sweep.HELD_KEYS:
            # One for each of the fifty keys and to find the next, and not all that wait for them.
            read = [node for node in plan if node.get("Index Name") in also]
            assert sum(node["Actual Rows"] * node["Actual Loops"] for node in read) <= 3 * 50


def test_hot_statements_are_prepared_once_and_parsed_once(qwf_dsn: str, family: str) -> None:
    """Whatever the values are, small or large, given or not, the server sees one statement with one set of
    types.

    The driver keeps what it has parsed of a statement up to a length; none of these is longer.
    """
    with jobs_of(family, qwf_dsn) as jobs:
        far = 2**40 + family.count("n") * 2**20
        sequence = f"SELECT setval(pg_get_serial_sequence('{jobs.table}', 'id'), %s)"
        for round_ in range(8):
            if round_ == 1:
                jobs.connection.execute(sequence, [far])
            jobs.enqueue(9)
            marks = UNMARKED if round_ % 2 else (-round_ if family == "ingest" else round_,) * 10
            held = jobs.claim(limit=1 + round_ % 2, positions=marks, durable=bool(round_ % 2))
            fences = [job.fence for job in held]
            jobs.repository.renew(fences, lease_s=30)
            jobs.repository.beat(fences[0], {"n": round_})
            jobs.repository.watch(fences, host_label="h", queue="q")
            endings = [
                ending(held[0], result={"n": 1})
                if round_ % 2
                else ending(
                    held[0], "scheduled", delay_s=1.5, hold_reason="limit", hold_key="k", error={"e": 1}
                )
            ]
            _, claimed = jobs.repository.end_and_claim(endings, jobs.queue, worker_id="w1", lease_s=9)
            jobs.repository.end_many([ending(job) for job in (*held[1:], *claimed)])
            both = [ending(job, result={"n": n}) for n, job in enumerate(jobs.claim(limit=2))]
            _, claimed = jobs.repository.end_and_claim(both, jobs.queue, worker_id="w1", lease_s=9, limit=2)
            differing = [ending(claimed[0]), ending(claimed[1], "failed")]
            jobs.repository.end_many(differing)
        prepared = [
            each for (each,) in jobs.connection.execute("SELECT statement FROM pg_prepared_statements")
        ]
        for sql in (
            *(claim.CLAIM, ends.END, ends.END_ALIKE, ends.END_AND_CLAIM, ends.END_ALIKE_AND_CLAIM),
            *(hold_lease.RENEW, hold_lease.BEAT, hold_lease.WATCH),
        ):
            assert prepared.count(as_prepared(sql[family])[0]) == 1
            assert len(sql[family].encode()) <= MAX_CACHED_STATEMENT_LENGTH


def work(jobs: Jobs, rounds: int) -> None:
    """What a worker with one job at a time sends, over and over."""
    marks = Marks(3600.0)
    held = jobs.claim("me")
    for _ in range(rounds):
        jobs.repository.renew([job.fence for job in held], lease_s=30)
        jobs.repository.watch([job.fence for job in held], host_label="h", queue=jobs.queue)
        where = {"positions": marks.positions(1.0), "worker_id": "me", "lease_s": 30.0}
        _, held = jobs.repository.end_and_claim([ending(job) for job in held], jobs.queue, **where)
        marks.claimed(held, 1)
        assert jobs.repository.promote() == 0
        assert jobs.repository.reclaim(max_crashes=3, lease_s=30.0) == []
    jobs.repository.end_many([ending(job, "queued") for job in held])


@pytest.mark.slow
@pytest.mark.parametrize("made_while", ["new", "tiny and analyzed"])
def test_a_workers_plans_outlive_the_growth_of_the_table(qwf_dsn: str, family: str, made_while: str) -> None:
    """What a worker's own connection planned on a small table is by index; nobody has analyzed it since."""
    with (
        jobs_of(family, qwf_dsn) as tester,
        connect(
            parse_dsn(qwf_dsn), name="worker", timeouts=Timeouts(), autocommit=True, hot=True
        ) as connection,
    ):
        jobs = Jobs(family, connection)
        tester.connection.execute(f"ALTER TABLE {jobs.table} SET (autovacuum_enabled = off)")
        tester.enqueue(40)
        if made_while == "tiny and analyzed":
            tester.connection.execute(f"VACUUM ANALYZE {jobs.table}")
        work(jobs, 12)
        run = a_run(tester)
        tester.connection.execute("SET session_replication_role = replica")
        store(tester, run, 0, FINISHED, "completed", worker="w")
        store(tester, run, 200_000, QUEUED, "queued")
        store(tester, run, 300_000, 5, "scheduled")
        store(tester, run, 400_000, 5, "running", worker="dead")
        tester.connection.execute(f"UPDATE {jobs.table} SET run_at = now() WHERE status = 'scheduled'")
        tester.connection.execute(
            f"UPDATE {jobs.table} SET lease_expires_at = now(), started_at = now() WHERE status = 'running'"
        )
        (held,) = jobs.claim("me")
        prepared = "SELECT name, statement FROM pg_prepared_statements WHERE generic_plans >= 6"
        found = {statement: name for name, statement in connection.execute(prepared)}
        fences = fence_params([held.fence])
        once = claim_params(jobs.queue, worker_id="me", lease_s=9.0, limit=1, alone=False, positions=UNMARKED)
        for sql, params in (
            (hold_lease.WATCH, fences | {"host_label": "h", "queue": "q"}),
            (hold_lease.RENEW, fences | {"lease_s": 9.0, "relaxed": False}),
            (sweep.PROMOTE, {"in_turn": True}),
            (
                sweep.RECLAIM,
                {"max_crashes": 3, "lease_s": 30.0, "recovered_s": None, "beat_s": 5.0, "in_turn": True},
            ),
            (ends.END_ALIKE_AND_CLAIM, ends.alike_params(jobs.repository._family, [ending(held)]) | once),
        ):
            statement, order = as_prepared(sql[family])
            given = f"({', '.join(f'%({param})s' for param in order)})" if order else ""
            explained = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE {found[statement]} {given}"
            # Not undone: after a ROLLBACK the driver prepares anew.
            ((plan,),) = psycopg.ClientCursor(connection).execute(explained, params)
            used = ("claim", "due", "running", *(LANES if sql is sweep.PROMOTE else ()))
            others = [f"ix_{jobs.table}_{name}" for name in used]
            check_by_id_only(jobs, list(nodes(plan[0]["Plan"])), *others)
            assert plan[0]["Plan"]["Shared Hit Blocks"] < 200
        tester.connection.execute(f"ALTER TABLE {jobs.table} RESET (autovacuum_enabled)")


def test_an_open_child_insert_does_not_hide_the_row(qwf_dsn: str) -> None:
    """Whoever writes an event of a job holds a key lock on it; a claim, a renewal and an end pass that by."""
    with jobs_of("node", qwf_dsn) as jobs, psycopg.connect(qwf_dsn) as other:
        (job_id,) = jobs.enqueue()
        other.execute(
            "INSERT INTO workflow_dispatch_events (run_id, node_job_id, generation, attempt, kind)"
            " SELECT run_id, id, 1, 0, 'note' FROM workflow_node_jobs WHERE id = %s",
            [job_id],
        )
        jobs.connection.execute("SET lock_timeout = '1s'")
        job = jobs.one()
        assert list(jobs.repository.renew([job.fence], lease_s=9)) == [job_id]
        assert jobs.repository.complete(job) == "completed"
        other.commit()
        assert sorted(kind for _, _, kind in jobs.events(job_id)) == ["completed", "note"]
