"""The worker role of the docs is enough for `qwf worker` and `qwf supervisor` as shipped."""

from __future__ import annotations

import json
import os
import signal

import pytest
from support.processes.supervised import enqueue, holder, supervisor_of
from support.processes.workers import running_worker, until
from support.rows.runs import dispatcher, settle

from queue_workflows import (
    HeartbeatRepository,
    IngestJobRepository,
    NewNodeJob,
    NodeJobRepository,
    RunRepository,
    WorkerControlRepository,
    start_run,
)
from queue_workflows.hooks.output.read import HookLine, HookOutput
from queue_workflows.hooks.output.store import store_and_process
from queue_workflows.repositories.workers.hardware import HardwareRepository
from queue_workflows.workflow.document.load import load_document


@pytest.mark.slow
def test_a_worker_does_all_it_has_to(roles):
    """Works, fails, holds, is woken, beats, obeys, sweeps, and says good-bye, and is refused nothing."""
    with (
        roles.connect("producer") as producer,
        roles.connect("orchestrator") as operator,
        running_worker(roles.dsn("worker")) as worker,
    ):
        jobs, control = IngestJobRepository(operator), WorkerControlRepository(operator)
        made = IngestJobRepository(producer)
        beats = HeartbeatRepository(operator)
        until(lambda: beats.list(state="idle"))
        done = made.enqueue("note", queue="fetch").id
        failed = made.enqueue("fails", queue="fetch", max_attempts=1).id
        held = made.enqueue("nobody knows it", queue="fetch").id
        again = made.enqueue("fails", queue="fetch", max_attempts=2, backoff_s=0.0).id
        until(lambda: [jobs.fetch(job).status for job in (done, failed)] == ["completed", "failed"])
        until(lambda: jobs.fetch(held).hold_reason == "unknown_task")
        control.set("*", "fetch", "pause", actor="ann")
        until(lambda: beats.list(state="paused"))
        control.clear("*", "fetch", actor="ann")
        until(lambda: jobs.fetch(again).status == "failed", within_s=120)
        until(lambda: beats.list(state="idle"))
        worker.terminate()
        assert worker.wait(150) == 0
        said = worker.stderr.read()
        assert "permission denied" not in said
        assert "no database" not in said
        assert beats.list() == []


@pytest.mark.slow
def test_a_supervisor_does_all_it_has_to(roles):
    """Watches, takes back what a dead worker held, starts another, and tells of its machine."""
    with roles.connect("orchestrator") as operator, roles.connect("producer") as producer:
        job = enqueue(IngestJobRepository(producer), "deaf")
        env = {"QWF_LEASE_S": "3600"}
        with supervisor_of(roles.dsn("worker"), "--worker", "fetch", env=env) as supervisor:
            pid = until(lambda: holder(operator, job))
            os.kill(pid, signal.SIGKILL)
            supervisor.until(f"took ingest job {job} of .*: queued, a crash counted")
            until(lambda: holder(operator, job) not in (None, pid))
            until(lambda: HardwareRepository(operator).readings())
            supervisor.signal(signal.SIGTERM)
            supervisor.until("SIGTERM: stopping")
            supervisor.signal(signal.SIGTERM)
            supervisor.status()
            assert not any("permission denied" in line or "not watched" in line for line in supervisor.said)


@pytest.mark.slow
def test_a_worker_of_hooks_stores_what_they_say(roles):
    """Records, machines and programs are its own to write; runs need the producer's rights too."""
    document = load_document({"name": "Page", "nodes": [{"id": "n", "module": "m", "queue": "hooks"}]})
    said = [
        {"type": "Machine", "facts": {"cpus": 2}},
        {"type": "Binary", "name": "sh", "abspath": "/bin/sh"},
        {"type": "Tag"},
        {"type": "Run", "url": "http://site.test/a"},
    ]
    output = HookOutput(tuple(HookLine(n, each["type"], json.dumps(each)) for n, each in enumerate(said, 1)))
    with roles.connect("orchestrator") as operator, roles.connect("worker") as worker:
        run = RunRepository(operator).insert(
            "Page", spec=document.snapshot(), spec_hash=document.hash, inputs={"url": "u", "max_depth": 1}
        )
        jobs = [NewNodeJob(run_id=run.id, node_id=f"n{n}", node_module="m", queue="hooks") for n in (1, 2)]
        NodeJobRepository(operator).insert_many(jobs)
        first, second = NodeJobRepository(worker).claim("hooks", worker_id="w", lease_s=60, limit=2)
        alone = store_and_process(worker, first.fence, output, host_label="here")
        assert alone == {"Binary": 1, "Machine": 1}
        with roles.granted("producer", to="worker"):
            both = store_and_process(worker, second.fence, output, host_label="here")
        assert both == {"Binary": 1, "Machine": 1, "Run": 1}


def test_a_run_that_is_found_under_a_cap_waits_for_the_orchestrator(roles):
    """A producer starts the tree, a worker stores what its hook names, and the run with the cap is told."""
    document = {"name": "Page", "nodes": [{"id": "n", "module": "m", "queue": "hooks"}]}
    said = HookOutput((HookLine(1, "Run", json.dumps({"type": "Run", "url": "http://site.test/a"})),))
    found = "SELECT capped_by, hold_reason, status FROM workflow_runs WHERE parent_run_id = %s"
    with (
        roles.connect("producer") as producer,
        roles.connect("worker") as worker,
        roles.connect("orchestrator") as orchestrator,
    ):
        inputs = {"url": "http://site.test/", "max_depth": 1}
        root = start_run(document, inputs, conn=producer, max_open_runs=2).id
        settle(dispatcher(orchestrator))
        (job,) = NodeJobRepository(worker).claim("hooks", worker_id="w", lease_s=60)
        with roles.granted("producer", to="worker"):
            assert store_and_process(worker, job.fence, said, host_label="here") == {"Run": 1}
        assert worker.execute(found, [root]).fetchall() == [(root, "open_runs", "queued")]
        settle(dispatcher(orchestrator))
        assert worker.execute(found, [root]).fetchall() == [(root, None, "running")]
