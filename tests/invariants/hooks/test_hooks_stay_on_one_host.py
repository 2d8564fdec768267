"""The hooks of a run are claimed on one host, whoever asks first; background hooks are claimed apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.processes.threads import together
from support.rows.jobs import CLEAR
from support.rows.plans import explain, rows_read
from support.rows.runs import dispatcher, settle, start

from queue_workflows.db.connections.pins import PLANNER
from queue_workflows.engine.execution.redaction import Redactor
from queue_workflows.engine.limits.held_host_locks import KeptLocks
from queue_workflows.hooks.attempt.directories import run_directory
from queue_workflows.hooks.attempt.runner import HookRunner
from queue_workflows.hooks.attempt.tools import HookTerms
from queue_workflows.repositories.claims.by_host_lock import PROMOTE
from queue_workflows.repositories.claims.claim import claim_params
from queue_workflows.repositories.claims.end import Ending
from queue_workflows.repositories.claims.hold_lease import PUT_LOCKED_HOOKS_ASIDE
from queue_workflows.repositories.jobs.hooks import (
    CLAIM,
    CLAIM_BEHIND,
    CLAIM_OF_RUNS,
    LET_GO,
    NOT_BESIDE,
    HookJobRepository,
)
from queue_workflows.repositories.sql.checks import PayloadLimits
from queue_workflows.repositories.sql.claimed_job import ClaimedNodeJob
from queue_workflows.repositories.sql.low_water_marks import UNMARKED
from queue_workflows.states import JobStatus

NODES = [
    {"id": f"n{number}", "module": "m", "plugin": "p", "queue": "hooks", "step": 0, "background": number > 3}
    for number in range(6)
]
# How a hook is put aside that no directory has.
ASIDE: dict[str, Any] = {"delay_s": 3600, "hold_reason": "unknown_module", "hold_key": "p/m"}


AS_A_WORKER = tuple(name.removeprefix("enable_") for name in PLANNER if name.startswith("enable_"))


class Host:
    """A worker's claims on one host."""

    def __init__(self, dsn: str, name: str) -> None:
        self.name = name
        self.connection = psycopg.connect(dsn, autocommit=True)
        self.jobs = HookJobRepository.at(name)(self.connection)

    def claim(self, limit: int = 100) -> list[ClaimedNodeJob]:
        return self.jobs.claim("hooks", worker_id=f"{self.name}:w", lease_s=60, limit=limit)

    def background(self, limit: int = 100) -> list[ClaimedNodeJob]:
        assert isinstance(self.jobs, HookJobRepository)
        return self.jobs.claim_background(worker_id=f"{self.name}:w", lease_s=60, limit=limit)


@pytest.fixture
def one(qwf_dsn: str) -> Iterator[Host]:
    host = Host(qwf_dsn, "one")
    host.connection.execute(CLEAR)
    with host.connection:
        yield host


@pytest.fixture
def other(qwf_dsn: str) -> Iterator[Host]:
    host = Host(qwf_dsn, "other")
    with host.connection:
        yield host


def begun(host: Host, count: int = 1, nodes: list[dict[str, Any]] = NODES) -> list[Any]:
    """So many runs of hooks whose first step is open."""
    runs = [start(host.connection, {"on_failure": "continue", "nodes": nodes}) for _ in range(count)]
    settle(dispatcher(host.connection))
    return runs


def hosts(host: Host) -> list[tuple[Any, ...]]:
    """Where runs and their jobs belong, as rows say."""
    return host.connection.execute("""
        SELECT DISTINCT run.pinned_host, job.pinned_host FROM workflow_runs AS run
        JOIN workflow_node_jobs AS job ON job.run_id = run.id ORDER BY 1, 2
    """).fetchall()


def names(jobs: list[ClaimedNodeJob]) -> list[str]:
    return [job.node_id for job in jobs]


def test_the_first_claim_decides(one: Host, other: Host) -> None:
    """Another host gets nothing of the run from then on, in this step or a later one."""
    begun(one, nodes=[*NODES, {**NODES[0], "id": "last", "depends_on": ["n0"]}])
    (first,) = one.claim(limit=1)
    assert (first.node_id, other.claim(), other.background()) == ("n0", [], [])
    assert hosts(one) == [("one", "one")]
    one.jobs.end(Ending(first.fence, JobStatus.COMPLETED))
    settle(dispatcher(one.connection))
    assert other.claim() == []
    assert names(one.claim()) == ["n1", "n2", "n3", "last"]


def test_background_hooks_are_claimed_apart(one: Host) -> None:
    """Neither claim takes what is the other's, and the first of either kind pins."""
    begun(one)
    assert names(one.background(limit=1)) == ["n4"]
    assert names(one.claim()) == ["n0", "n1", "n2", "n3"]
    assert names(one.background()) == ["n5"]


def test_who_claims_meanwhile_waits_for_nobody_and_gets_nothing(one: Host, other: Host) -> None:
    """While the first claim is not committed, a second one passes the run by."""
    begun(one)
    with one.connection.transaction():
        assert names(one.claim(limit=1)) == ["n0"]
        assert other.claim() == []
    assert other.claim() == []
    assert names(one.claim()) == ["n1", "n2", "n3"]


def test_two_hosts_at_once_never_share_a_run(one: Host, other: Host) -> None:
    """However their claims fall together, each run is one host's, and everything is claimed in the end."""
    begun(one, 60)
    claimed: list[ClaimedNodeJob] = []
    while left := one.connection.execute(
        "SELECT count(*) FROM workflow_node_jobs WHERE status = 'queued' AND NOT background"
    ).fetchone():
        if left == (0,):
            break
        for jobs in together(lambda: one.claim(limit=7), lambda: other.claim(limit=7)):
            claimed += jobs
    by_run: dict[Any, set[str]] = {}
    for job in claimed:
        by_run.setdefault(job.run_id, set()).add(job.claimed_by)
    assert len(claimed) == 60 * 4
    assert all(len(workers) == 1 for workers in by_run.values())
    assert set(hosts(one)) <= {("one", "one"), ("other", "other")}


def test_an_end_beside_a_claim_goes_by_the_host_too(one: Host, other: Host) -> None:
    """The statement of a busy worker, with one end or with several."""
    begun(one, 2)
    for count in (1, 2):
        held = one.claim(limit=count)
        ended, jobs = one.jobs.end_and_claim(
            [Ending(job.fence, JobStatus.COMPLETED) for job in held],
            "hooks",
            worker_id="one:w",
            lease_s=60,
            limit=1,
        )
        assert (len(ended.statuses), len(jobs), ended.lost) == (count, 1, [])
    assert len({job.run_id for job in other.claim()} & {job.run_id for job in held}) == 0


def test_a_suspect_is_claimed_alone(one: Host, other: Host) -> None:
    """As everywhere; in the background, where nobody is alone, it is asked for by itself."""
    begun(one)
    one.claim(limit=1)
    one.connection.execute("UPDATE workflow_node_jobs SET suspect = node_id <> 'n2'")
    assert one.jobs.has_suspect("hooks") is True
    assert other.jobs.has_suspect("hooks") is False
    assert names(one.claim()) == ["n2"]
    (suspect,) = one.jobs.claim("hooks", worker_id="one:w", lease_s=60, limit=1, alone=True)
    assert (suspect.node_id, suspect.suspect) == ("n1", True)
    assert one.background() == []
    tried = one.jobs.claim_background(worker_id="one:w", lease_s=60, limit=1, suspect=True)
    assert [(job.node_id, job.suspect) for job in tried] == [("n4", True)]


def test_an_unpinned_run_is_anybodys(one: Host, other: Host) -> None:
    """What runs on the host that is given up ends there or lapses; the rest goes on elsewhere."""
    (run_id,) = begun(one)
    (held,) = one.claim(limit=1)
    assert HookJobRepository(one.connection).unpin(run_id, actor="ann", reason="gone") == ("one", 6)
    assert names(other.claim()) == ["n1", "n2", "n3"]
    assert HookJobRepository(one.connection).unpin(run_id, actor="ann") == ("other", 5)
    log = one.connection.execute(
        "SELECT actor, action, subject_id, reason, details FROM audit_log ORDER BY id"
    )
    assert log.fetchall() == [
        ("ann", "run.unpin", str(run_id), "gone", {"host": "one"}),
        ("ann", "run.unpin", str(run_id), None, {"host": "other"}),
    ]
    one.jobs.end(Ending(held.fence, JobStatus.COMPLETED))


SHARED = [{**node, "background": False, "inputs": {"shared_directory": True}} for node in NODES[:3]]


def test_a_run_with_a_shared_directory_is_claimed_on_any_host(one: Host, other: Host) -> None:
    """In each of its steps, at a retry too, and with the end of another; the rows go on saying so."""
    begun(one, nodes=[*SHARED, {**SHARED[0], "id": "last", "depends_on": ["n0"]}])
    (first,) = one.claim(limit=1)
    (second,) = other.claim(limit=1)
    assert (names([first]), names([second])) == (["n0"], ["n1"])
    one.jobs.end(Ending(first.fence, JobStatus.QUEUED))
    (again,) = other.claim(limit=1)
    assert again.node_id == "n0"
    _, jobs = other.jobs.end_and_claim(
        [Ending(again.fence, JobStatus.COMPLETED)], "hooks", worker_id="other:w", lease_s=60, limit=1
    )
    assert names(jobs) == ["n2"]
    settle(dispatcher(one.connection))
    one.connection.execute("UPDATE workflow_node_jobs SET suspect = true WHERE node_id = 'last'")
    assert one.jobs.has_suspect("hooks")
    assert names(one.jobs.claim("hooks", worker_id="one:w", lease_s=60, limit=1, alone=True)) == ["last"]
    assert hosts(one) == [(None, "*")]


def test_a_host_claims_what_only_it_may_claim_first(one: Host, other: Host) -> None:
    """Then of runs with a shared directory, then of those that are no host's yet."""
    begun(one, nodes=[{**NODES[0], "id": "new"}])
    begun(one, nodes=SHARED)
    (own,) = begun(one, nodes=NODES[:1])
    one.connection.execute("UPDATE workflow_runs SET pinned_host = 'one' WHERE id = %s", [own])
    one.connection.execute("UPDATE workflow_node_jobs SET pinned_host = 'one' WHERE run_id = %s", [own])
    assert [names(one.claim(limit=1))[0] for _ in range(3)] == ["n0", "n0", "n1"]
    assert [names(other.claim(limit=1)) for _ in range(2)] == [["n2"], ["new"]]


def test_what_of_a_shared_run_is_on_hold_is_fetched_on_any_host(one: Host, other: Host) -> None:
    """For its task, and for a lock of the host that fetches it; and it is put on hold for one."""
    begun(one, nodes=SHARED)
    held = one.claim(limit=2)
    let_go(one, held[0])
    assert hosts(one) == [(None, "*")]
    one.jobs.end(Ending(held[0].fence, JobStatus.SCHEDULED, **ASIDE))
    assert other.jobs.promote_held("unknown_module", ["p/m"], queue="hooks") == 1
    locked = {"delay_s": 3600, "hold_reason": "host_lock", "hold_key": "camera"}
    one.jobs.end(Ending(held[1].fence, JobStatus.SCHEDULED, **locked))
    rows = other.connection.execute(PROMOTE["node"], {"keys": "{camera}", "host": "other"}).fetchall()
    assert rows == [(held[1].id,)]
    other.connection.execute("UPDATE workflow_node_jobs SET host_lock = 'camera'")
    aside: dict[str, Any] = {"queue": "hooks", "host": "other", "names": "{camera}", "crowd": 1}
    aside |= {"reason": "host_lock", "delay_s": 9.0}
    assert len(other.connection.execute(PUT_LOCKED_HOOKS_ASIDE, aside).fetchall()) == 3


def test_the_directory_of_a_run_has_one_mark(one: Host, other: Host) -> None:
    """The first that comes with one decides, if it holds its job; `unpin` has it forgotten."""
    (run_id,) = begun(one, nodes=SHARED)
    (first,) = one.claim(limit=1)
    (second,) = other.claim(limit=1)
    here, there = HookJobRepository(one.connection), HookJobRepository(other.connection)
    assert here.directory_mark(run_id) is None
    one.jobs.end(Ending(first.fence, JobStatus.QUEUED))
    assert names(other.claim(limit=1)) == ["n0"]
    assert here.mark_directory(first, "late") is None
    assert there.mark_directory(second, "b") == "b"
    assert there.mark_directory(second, "a") == "b"
    assert here.unpin(run_id, actor="ann") == ("*b", 0)
    assert here.directory_mark(run_id) is None
    assert hosts(one) == [(None, "*")]
    assert here.unpin(run_id, actor="ann") == (None, 0)


def labels(*known: str) -> Callable[[str], bool]:
    return lambda label: label in known


def let_go(host: Host, job: ClaimedNodeJob, *known: str) -> bool:
    assert isinstance(host.jobs, HookJobRepository)
    return host.jobs.let_go(job, labels(*known))


def test_who_has_no_such_hook_keeps_no_run(one: Host, other: Host) -> None:
    """It is anybody's again, with all that waits of it; what is put aside is fetched by who may claim it."""
    begun(one)
    held = one.claim(limit=2)
    assert [let_go(one, job) for job in held] == [True, True]
    assert names(other.claim(limit=1)) == ["n2"]
    one.jobs.end_many([Ending(job.fence, JobStatus.SCHEDULED, **ASIDE) for job in held])
    assert one.jobs.promote_held("unknown_module", ["p/m"], queue="hooks") == 2
    assert names(other.claim()) == ["n0", "n1", "n3"]


def test_a_held_hook_follows_its_run(one: Host, other: Host) -> None:
    """When another host has it by the time that this one lets go; and only that host fetches it."""
    begun(one)
    first, second = one.claim(limit=2)
    assert let_go(one, first)
    other.claim(limit=1)
    assert not let_go(one, second)
    one.jobs.end(Ending(second.fence, JobStatus.SCHEDULED, **ASIDE))
    assert one.jobs.promote_held("unknown_module", ["p/m"], queue="hooks") == 0
    assert other.jobs.promote_held("unknown_module", ["p/m"], queue="hooks") == 1


def test_what_waits_for_its_time_follows_its_run(one: Host, other: Host) -> None:
    """To the host that has the run by then, which alone fetches it."""
    (run_id,) = begun(one)
    (first,) = one.claim(limit=1)
    one.jobs.end(Ending(first.fence, JobStatus.SCHEDULED, **ASIDE))
    HookJobRepository(one.connection).unpin(run_id, actor="ann")
    assert hosts(one) == [(None, None)]
    assert names(other.claim(limit=1)) == ["n1"]
    assert hosts(one) == [("other", "other")]
    assert one.jobs.promote_held("unknown_module", ["p/m"], queue="hooks") == 0
    assert other.jobs.promote_held("unknown_module", ["p/m"], queue="hooks") == 1


def test_what_waits_for_its_time_is_let_go_with_its_run(one: Host) -> None:
    """It is anybody's, as what waits for a worker is."""
    begun(one)
    first, second = one.claim(limit=2)
    one.jobs.end(Ending(second.fence, JobStatus.SCHEDULED, **ASIDE))
    assert let_go(one, first)
    assert hosts(one) == [(None, None)]


def test_nobody_lets_go_of_another_hosts_run(one: Host, other: Host) -> None:
    """Whoever has not begun it either: the hook that cannot run here is that host's then."""
    begun(one)
    first, second = one.claim(limit=2)
    assert let_go(one, first)
    one.jobs.end(Ending(first.fence, JobStatus.SCHEDULED, **ASIDE))
    (third,) = other.claim(limit=1)
    other.jobs.end(Ending(third.fence, JobStatus.QUEUED))
    assert not let_go(one, second)
    assert hosts(one) == [("other", "other")]


def test_a_run_whose_files_are_here_stays(one: Host, tmp_path: Path) -> None:
    """Also where no row says that anything of it has begun."""
    (run_id,) = begun(one)
    (job,) = one.claim(limit=1)
    terms = HookTerms(
        dirs=(),
        data_dir=tmp_path,
        host_label=one.name,
        environ={},
        grace_s=1.0,
        dsns=(),
        worker_id=job.claimed_by,
        lease_s=60.0,
        limits=PayloadLimits(),
    )
    hooks = HookRunner(
        terms, lambda _job, question: question(one.connection), locks=KeptLocks(), redactor=Redactor()
    )
    files = run_directory(tmp_path, run_id)
    files.mkdir(parents=True)
    hooks.let_go(job)
    assert hosts(one) == [("one", "one")]
    files.rmdir()
    hooks.let_go(job)
    assert hosts(one) == [(None, None)]


@pytest.mark.parametrize("how", ["known", "over", "failed", "crashed", "another's"])
def test_a_run_that_has_begun_stays(one: Host, how: str) -> None:
    """Another hook of it ran here, or may run here: its files are here."""
    begun(one)
    lost, begun_one = one.claim(limit=2)
    status = "completed" if how == "over" else "running"
    failures, claimed_by = int(how == "failed"), "one:v" if how == "another's" else "one:w"
    one.connection.execute(
        "UPDATE workflow_node_jobs SET status = %s, failures = %s, crash_count = %s, claimed_by = %s,"
        " node_module = 'x',"
        " finished_at = CASE WHEN %s THEN now() END, lease_expires_at = CASE WHEN NOT %s THEN now() END"
        " WHERE id = %s",
        [status, failures, int(how == "crashed"), claimed_by, how == "over", how == "over", begun_one.id],
    )
    assert not let_go(one, lost, *(["p/x"] if how == "known" else []))
    assert hosts(one) == [("one", "one")]


RUNS = """
INSERT INTO workflow_runs (id, workflow_name, spec, spec_hash, status, finished_at, pinned_host)
SELECT gen_random_uuid(), 'film', '{}', 'h', 'completed', now(), 'far' FROM generate_series(1, 3000);
ANALYZE workflow_runs
"""
STORED = """
INSERT INTO workflow_node_jobs (run_id, node_id, map_index, queue, status, pinned_host, background,
    claimed_by, attempt, finished_at)
SELECT %(run)s, 'x', n, CASE WHEN n %% 5 = 0 THEN 'cpu' ELSE 'hooks' END, %(status)s, 'far' || n %% 7,
    n %% 2 = 0, CASE WHEN %(over)s THEN 'w' END, 1, CASE WHEN %(over)s THEN now() END
FROM generate_series(%(first)s::integer, %(last)s::integer) AS n
"""


@pytest.mark.parametrize("analyzed", ["afterwards", "while idle", "while filled", "never"])
def test_the_claim_reads_what_it_takes(one: Host, analyzed: str) -> None:
    """By its own index, whatever else waits: runs of other hosts, of other queues, and what is over.

    Whatever the planner was told of it, and when.
    """
    one.connection.execute("DELETE FROM pg_statistic WHERE starelid = 'workflow_node_jobs'::regclass")
    run_id = start(one.connection, {"nodes": NODES})
    one.connection.execute("UPDATE workflow_runs SET pinned_host = 'far' WHERE id = %s", [run_id])
    one.connection.execute(RUNS)
    over = {"run": run_id, "status": "completed", "over": True, "first": 1, "last": 10_000}
    waiting = {"run": run_id, "status": "queued", "over": False, "first": 10_001, "last": 30_000}
    with psycopg.connect(one.connection.info.dsn, autocommit=True) as analyst, one.connection.transaction():
        one.connection.execute(STORED, over)
        if analyzed == "while idle":
            one.connection.execute("ANALYZE workflow_node_jobs")
        one.connection.execute(STORED, waiting)
        if analyzed == "while filled":
            # It finds the pages, and no row that it may see.
            analyst.execute("VACUUM ANALYZE workflow_node_jobs")
    (small_id,) = begun(one)
    if analyzed == "afterwards":
        one.connection.execute("ANALYZE workflow_node_jobs")
    params = claim_params("hooks", worker_id="w", lease_s=60, limit=8, alone=False, positions=UNMARKED)
    params |= {"host": "one", "background": False, "relaxed": False, "suspect": False, "beside": True}
    (small_job,) = one.connection.execute(
        "SELECT min(id) FROM workflow_node_jobs WHERE run_id = %s", [small_id]
    ).fetchone()
    let_go = {"run_id": small_id, "host": "one", "claimed_by": "w", "unknown": "{}", "id": 1, "attempt": 1}
    aside = {"queue": "hooks", "host": "far1", "names": "{camera}", "reason": "host_lock", "delay_s": 9.0}
    # Workers' own connections plan once, whatever the values are.
    modes = ["force_generic_plan", *(["force_custom_plan"] if analyzed == "afterwards" else [])]
    for mode in modes:
        for sql, given in (
            (CLAIM, params),
            (CLAIM_BEHIND, params),
            (CLAIM_OF_RUNS, params | {"runs": f"{{{small_id}}}"}),
            (NOT_BESIDE, {"id": small_job}),
            (LET_GO, let_go),
        ):
            plan = explain(one.connection, mode, sql, given, AS_A_WORKER)
            assert rows_read(plan, "workflow_node_jobs", "workflow_runs") < 100, mode
        plan = explain(one.connection, mode, PUT_LOCKED_HOOKS_ASIDE, aside | {"crowd": 1}, AS_A_WORKER)
        assert "ix_workflow_node_jobs_hooks" in {node.get("Index Name") for node in plan}, mode
        # What has the names is looked up by id, and not among all that waits.
        assert not any("id = ANY" in node.get("Filter", "") for node in plan), mode
        promoted = {"keys": "{camera}", "host": "far1"}
        plan = explain(one.connection, mode, PROMOTE["node"], promoted, AS_A_WORKER)
        assert rows_read(plan, "workflow_node_jobs") == 0, mode
