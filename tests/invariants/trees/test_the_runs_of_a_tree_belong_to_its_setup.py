"""Where the runs of a tree belong that was set up, how many are open, and that there is one first run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.workers import patiently, running_orchestrator
from support.rows.jobs import CLEAR_WITH_WORKERS
from support.rows.runs import dispatcher, settle
from support.servers.statement_proxy import Moment, StatementProxy

from queue_workflows import HookRecordRepository
from queue_workflows.config import set_workflow_provider
from queue_workflows.engine.explain.job import Knowledge
from queue_workflows.engine.explain.run import explain_run
from queue_workflows.engine.runs.retry import retry_run
from queue_workflows.engine.runs.verbs import cancel_run, start_run
from queue_workflows.hooks.output.read import HookLine, HookOutput
from queue_workflows.hooks.output.store import store_and_process
from queue_workflows.repositories import RunRepository
from queue_workflows.repositories.claims.end import Ending
from queue_workflows.repositories.explain.explain_run import RunExplainingRepository
from queue_workflows.repositories.jobs.hooks import HookJobRepository
from queue_workflows.repositories.runs import outbox
from queue_workflows.repositories.runs.runs import INSERT_FIRST
from queue_workflows.repositories.runs.tree import PlaceInTree, RunTreeRepository
from queue_workflows.repositories.sql.claimed_job import ClaimedNodeJob
from queue_workflows.states import JobStatus
from queue_workflows.workflow.document.load import load_document


def hook(name: str, *after: str, **more: Any) -> dict[str, Any]:
    base = {"id": name, "module": name, "plugin": "p", "queue": "hooks", "step": 0, "when": "all_done"}
    return base | {"depends_on": list(after)} | more


PAGE: dict[str, Any] = {
    "name": "page",
    "on_failure": "continue",
    "nodes": [
        hook("save"),
        {"id": "descendants", "type": "descendants", "depends_on": ["save"], "when": "all_done", "step": 11},
    ],
}


def site(*, listens: bool = True) -> dict[str, Any]:
    browser = hook("browser", background=True, inputs={"at_seal": "kill", "for_tree": True})
    first = {"id": "first_run", "type": "workflow", "workflow": "page", "tree": PAGE}
    above = ["browser", "make"] if listens else ["make"]
    below = {
        "id": "descendants",
        "type": "descendants",
        "depends_on": ["first_run", "make"],
        "when": "all_done",
    }
    seal = {"id": "seal", "type": "seal", "depends_on": ["descendants"], "when": "all_done"}
    nodes = [hook("make", *above[:-1]), first | {"depends_on": above, "sessions": above[:-1]}, below]
    nodes = [browser, *nodes, seal] if listens else nodes
    return {"name": "page", "on_failure": "continue", "labels": {"setup": "S"}, "nodes": nodes}


class Hosts:
    """A dispatcher, and workers of two hosts that are hands."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        self.dispatcher = dispatcher(connection)
        self.tree, self.runs = RunTreeRepository(connection), RunRepository(connection)
        self.held: dict[str, ClaimedNodeJob] = {}

    def begin(self, **more: Any) -> UUID:
        listens = more.pop("listens", True)
        root = start_run(site(listens=listens), {"url": "http://a.test/"}, conn=self.connection, **more).id
        settle(self.dispatcher)
        return root

    def at(self, host: str) -> HookJobRepository:
        return HookJobRepository.at(host)(self.connection)

    def claim(self, host: str) -> list[tuple[UUID, str]]:
        """All that a worker of this host gets, which it holds from then on."""
        jobs, worker = self.at(host), f"{host}:w"
        got = jobs.claim("hooks", worker_id=worker, lease_s=60, limit=100)
        got += jobs.claim_background(worker_id=worker, lease_s=60, limit=100)
        self.held |= {f"{job.run_id}/{job.node_id}": job for job in got}
        return [(job.run_id, job.node_id) for job in got]

    def end(self, run_id: UUID, node: str, status: JobStatus = JobStatus.COMPLETED, **more: Any) -> None:
        self.at("any").end(Ending(self.held.pop(f"{run_id}/{node}").fence, status, **more))
        settle(self.dispatcher)

    def ready(self, run_id: UUID, node: str) -> None:
        self.at("any").tell_ready(self.held[f"{run_id}/{node}"].fence)
        settle(self.dispatcher)

    def set_up(self, host: str = "one", **more: Any) -> tuple[UUID, UUID]:
        """A tree of which the first run has begun on this host."""
        root = self.begin(**more)
        self.claim(host)
        if f"{root}/browser" in self.held:
            self.ready(root, "browser")
            self.claim(host)
        self.end(root, "make")
        return root, self.first(root)

    def first(self, root: UUID) -> UUID:
        (run,) = self.runs.list(parent_run_id=root)
        return run.id

    def find(self, below: UUID, *names: str) -> list[UUID]:
        """As the records of a hook do."""
        document, parent = load_document(PAGE), self.runs.fetch(below)
        assert parent is not None
        cap = self.tree.cap_of(below)
        self.runs.insert_found(
            "page",
            spec=document.snapshot(),
            spec_hash=document.hash,
            priority=5,
            labels={},
            parcel_id=None,
            traceparent=None,
            parent_run_id=below,
            depth=parent.depth + 1,
            inputs=dict.fromkeys(names, "{}"),
            capped_by=cap,
            set_up_by=parent.set_up_by,
        )
        if cap is not None:
            self.tree.ask_to_admit(cap)
        settle(self.dispatcher)
        return [run.id for name in names for run in self.runs.list(dedupe_key=name)]

    def status(self, run_id: UUID) -> str:
        run = self.runs.fetch(run_id)
        assert run is not None
        return run.status

    def unpin(self, run_id: UUID) -> Any:
        freed = self.at("any").unpin(run_id, actor="ann")
        settle(self.dispatcher)
        return freed


@pytest.fixture
def hosts(qwf_dsn: str) -> Iterator[Hosts]:
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR_WITH_WORKERS)
        yield Hosts(connection)


def test_the_first_run_has_what_the_tree_was_begun_with(hosts: Hosts) -> None:
    """Inputs and labels are those of the caller; it is where it would be in a tree without a setup."""
    root, first = hosts.set_up(labels={"team": "a"}, parcel_id="p", priority=7, max_open_runs=3)
    (page,) = hosts.find(first, "b")
    run = hosts.runs.fetch(first)
    assert run is not None
    assert (run.inputs, run.priority, run.parcel_id) == ({"url": "http://a.test/"}, 7, "p")
    assert run.labels == {"team": "a", "crawl": str(root), "crawl_depth": 0}
    assert [hosts.tree.place_of(one) for one in (root, first, page)] == [
        PlaceInTree(root, 0),
        PlaceInTree(root, 0),
        PlaceInTree(root, 1),
    ]


@pytest.mark.parametrize("listens", [True, False])
def test_each_run_of_the_tree_belongs_to_the_host_of_its_setup(hosts: Hosts, listens: bool) -> None:
    """So no other host gets a hook of any of them; `explain` names the setup and the host."""
    root, first = hosts.set_up(listens=listens)
    pages = hosts.find(first, "b", "c")
    assert hosts.claim("other") == []
    there = RunExplainingRepository(hosts.connection).circumstances(pages[0])
    assert there is not None
    (said,) = [one for one in explain_run(there, Knowledge(30.0, 1.0)).reasons if one.code == "set_up"]
    assert said.text == f"its tree was set up by run:{root} on one, so it belongs to that host too"
    assert {run_id for run_id, _ in hosts.claim("one")} == {first, *pages}


def test_a_run_of_a_tree_is_not_let_go_by_a_worker_without_its_scripts(hosts: Hosts) -> None:
    """Nothing of it has begun, and still it is no other host's."""
    _, first = hosts.set_up()
    hosts.claim("one")
    job = hosts.held[f"{first}/save"]
    assert hosts.at("one").let_go(job, lambda _: False) is False


def test_a_tree_follows_its_setup_to_another_host(hosts: Hosts) -> None:
    """What waits is nobody's until the browser has begun there; what is found later belongs there too."""
    root, first = hosts.set_up()
    pages = hosts.find(first, "b")
    assert hosts.unpin(root)[0] == "one"
    assert hosts.claim("other") == []
    hosts.end(root, "browser", JobStatus.SCHEDULED, counts=True, delay_s=0.0, error='{"kind": "exit"}')
    hosts.at("any").promote()
    settle(hosts.dispatcher)
    assert hosts.claim("other") == [(root, "browser")]
    assert hosts.claim("other") == []
    hosts.ready(root, "browser")
    assert {run_id for run_id, _ in hosts.claim("other")} == {first, *pages}
    (late,) = hosts.find(first, "c")
    assert (hosts.claim("one"), hosts.claim("other")) == ([], [(late, "save")])


def test_a_tree_without_a_session_is_freed_with_its_setup(hosts: Hosts) -> None:
    """There is nothing that begins anew, and nothing to wait for."""
    root, first = hosts.set_up(listens=False)
    hosts.unpin(root)
    assert hosts.claim("other") == [(first, "save")]


def test_one_run_of_a_tree_may_be_freed_by_itself(hosts: Hosts) -> None:
    """It is the operator's to say that it needs nothing of the setup."""
    _, first = hosts.set_up()
    assert hosts.unpin(first)[0] == "one"
    assert hosts.claim("other") == [(first, "save")]


def test_what_sets_a_tree_up_is_not_open_while_the_tree_is(hosts: Hosts) -> None:
    """So a cap of two is for two pages; before its first run it is open itself."""
    root, first = hosts.set_up(max_open_runs=2)
    second, third = hosts.find(first, "b", "c")
    assert {run_id for run_id, _ in hosts.claim("one")} == {first, second}
    hosts.end(second, "save")
    assert hosts.claim("one") == [(third, "save")]
    hosts.end(third, "save")
    hosts.end(first, "save")
    assert [hosts.status(one) for one in (first, second, third)] == ["completed"] * 3
    hosts.end(root, "browser")
    assert hosts.status(root) == "completed"


def test_a_cancel_of_the_tree_reaches_what_a_run_has_left(hosts: Hosts) -> None:
    """Also below a run that is over, where nobody waits for it."""
    root, first = hosts.set_up()
    (page,) = hosts.find(first, "b")
    hosts.connection.execute(
        "UPDATE workflow_runs SET status = 'completed', finished_at = now() WHERE id = %s", [first]
    )
    cancel_run(root, conn=hosts.connection)
    settle(hosts.dispatcher)
    assert hosts.status(page) == "cancelled"


def said(**record: Any) -> HookOutput:
    return HookOutput((HookLine(1, "Run", json.dumps({"type": "Run", "url": "http://a.test/b"} | record)),))


def test_a_record_of_a_setup_begins_no_run(hosts: Hosts) -> None:
    """Nothing below is to begin before it is done; whoever printed it is told."""
    root = start_run(site(), {"url": "http://a.test/", "max_depth": 1}, conn=hosts.connection).id
    settle(hosts.dispatcher)
    hosts.claim("one")
    store_and_process(hosts.connection, hosts.held[f"{root}/browser"].fence, said(), host_label="one")
    assert hosts.runs.list(parent_run_id=root) == []
    (record,) = HookRecordRepository(hosts.connection).list(root, kind="Run")
    assert "a hook that sets up a tree begins no run" in (record.warning or "")


@pytest.mark.parametrize("workflow", [{}, {"workflow": "page"}, {"workflow": "other"}])
def test_what_is_found_in_a_tree_is_set_up_by_nothing_else(hosts: Hosts, workflow: dict[str, str]) -> None:
    """Although its document is compiled with a setup, by the provider of the host app."""
    root = start_run(site(), {"url": "http://a.test/", "max_depth": 1}, conn=hosts.connection).id
    settle(hosts.dispatcher)
    hosts.claim("one")
    hosts.ready(root, "browser")
    hosts.claim("one")
    hosts.end(root, "make")
    first = hosts.first(root)
    hosts.claim("one")
    other: Any = site() | {"name": "other"}
    (begins,) = [node for node in other["nodes"] if "tree" in node]
    begins |= {"workflow": "other", "tree": PAGE | {"name": "other"}}
    set_workflow_provider(load_workflow={"page": site(), "other": other}.get)
    try:
        fence = hosts.held[f"{first}/save"].fence
        assert store_and_process(hosts.connection, fence, said(**workflow), host_label="one") == {"Run": 1}
    finally:
        set_workflow_provider(load_workflow=None)
    (page,) = hosts.runs.list(parent_run_id=first)
    assert (page.set_up_by, page.pinned_host, page.labels["crawl"]) == (root, "one", str(root))
    assert [node["id"] for node in page.spec["nodes"]] == ["save", "descendants"]


def test_a_tree_within_a_run_of_an_application_has_its_own_root(hosts: Hosts) -> None:
    """Its hooks look for the setup's directory, not for that of the run above."""
    film = {"name": "film", "nodes": [{"id": "archive", "type": "workflow", "workflow": "page"}]}
    hosts.dispatcher = dispatcher(hosts.connection, site())
    above = start_run(film, conn=hosts.connection).id
    settle(hosts.dispatcher)
    (root,) = hosts.runs.list(parent_run_id=above)
    hosts.claim("one")
    hosts.ready(root.id, "browser")
    hosts.claim("one")
    hosts.end(root.id, "make")
    assert hosts.tree.place_of(root.id) == PlaceInTree(root.id, 0)
    assert hosts.tree.place_of(hosts.first(root.id)) == PlaceInTree(root.id, 0)


def test_a_first_run_that_failed_goes_on_where_the_tree_is_retried(hosts: Hosts) -> None:
    """It is one run, and waits for the session."""
    root, first = hosts.set_up()
    hosts.claim("one")
    hosts.end(first, "save", JobStatus.FAILED, counts=True, error='{"kind": "exit"}')
    hosts.end(root, "browser")
    assert (hosts.status(root), hosts.status(first)) == ("failed", "failed")
    assert retry_run(root, conn=hosts.connection).again == ("browser", "first_run", "descendants", "seal")
    settle(hosts.dispatcher)
    assert hosts.claim("one") == [(root, "browser")]
    hosts.ready(root, "browser")
    assert (hosts.claim("one"), hosts.first(root)) == ([(first, "save")], first)
    hosts.end(first, "save")
    hosts.end(root, "browser")
    assert (hosts.status(root), hosts.status(first)) == ("completed", "completed")


KILLS = {
    "before the first run": (INSERT_FIRST, Moment.UNSENT),
    "with the first run": (INSERT_FIRST, Moment.UNREAD),
    "before it read that it is committed": (outbox.COMMIT, Moment.UNREAD),
}


@pytest.mark.parametrize("point", KILLS)
def test_an_orchestrator_that_is_killed_begins_no_second_tree(
    hosts: Hosts, proxy: StatementProxy, point: str
) -> None:
    """Wherever it is with the first run: there is one in the end, and the setup has run once."""
    root = start_run(site(), {}, conn=hosts.connection).id
    with running_orchestrator(proxy.dsn) as victim:
        patiently(lambda: hosts.claim("one"))
        hosts.at("one").tell_ready(hosts.held[f"{root}/browser"].fence)
        patiently(lambda: hosts.claim("one"))
        trap = proxy.trap(KILLS[point][0], moment=KILLS[point][1])
        hosts.at("one").end(Ending(hosts.held.pop(f"{root}/make").fence, JobStatus.COMPLETED))
        trap.sprung(300)
        victim.kill()
        victim.wait()
    trap.drop()

    def begun() -> bool:
        settle(hosts.dispatcher)
        return bool(hosts.claim("one"))

    patiently(begun)
    first = hosts.first(root)
    hosts.end(first, "save")
    hosts.end(root, "browser")
    assert (hosts.status(root), hosts.status(first)) == ("completed", "completed")
    counted = "SELECT count(*), max(generation), max(attempt) FROM workflow_node_jobs WHERE run_id = %s"
    assert hosts.connection.execute(counted, [root]).fetchone() == (4, 1, 1)
