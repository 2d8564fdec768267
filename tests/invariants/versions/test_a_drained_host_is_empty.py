"""`qwf workers drain` ends with 0 only when no worker of the host holds a job, and none will claim one."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.processes.commands import Said, qwf_here
from support.processes.workers import until
from support.stages.floor import Floor

from queue_workflows.repositories import HeartbeatRepository, WorkerControlRepository
from queue_workflows.views.workers.drain import ask_to_drain, read_drain


def drain(floor: Floor, *options: str, status: int = 0) -> Said:
    return qwf_here("--db", floor.dsn, "workers", "drain", *options, status=status)


def states(floor: Floor) -> dict[str, str]:
    """What each worker is at, by its host."""
    return {beat.host_label: beat.state for beat in HeartbeatRepository(floor.connection).list()}


def test_a_host_is_empty_when_its_last_job_is_over(floor: Floor) -> None:
    """Until then it says which job runs there; other hosts go on, and a worker that starts there waits."""
    with floor.worker(QWF_HOST_LABEL="old"):
        job = floor.enqueue(gated=True)
        floor.until_begun(job, 1)
        said = drain(floor, "old", status=1)
        assert said.stdout == "(old, *) is paused by " + said.stdout.partition(" by ")[2]
        assert f"old is not empty: 1 job: ingest:{job} (recorded)" in said.stderr
        assert f"ingest:{job}" in drain(floor, "old", "--wait", "--timeout", "1s", status=73).stderr
        floor.ledger.open_gate(job, 1)
        said = drain(floor, "old", "--wait")
        assert said.stdout.splitlines()[-1] == (
            "old is empty: no worker there holds a job, and none will claim one"
        )
        floor.until_completed(job)
    behind = floor.enqueue()
    with floor.worker(QWF_HOST_LABEL="old"):
        until(lambda: states(floor) == {"old": "paused"})
        assert floor.standing(behind) == ("queued", 0, 0, 0)
        with floor.worker(QWF_HOST_LABEL="new"):
            floor.until_completed(behind)
            drain(floor, "new", "--wait")
        last = floor.enqueue()
        wishes = "SELECT host_label, version FROM worker_control WHERE host_label = 'old'"
        before = floor.connection.execute(wishes).fetchall()
        assert "old is empty" in drain(floor, "old").stdout
        assert floor.connection.execute(wishes).fetchall() == before
        qwf_here("--db", floor.dsn, "workers", "on", "old", "*")
        floor.until_completed(last)


def test_a_wish_that_is_over_proves_nothing(floor: Floor) -> None:
    """A worker that is idle then may claim at any moment: who waits is told so, and not that it is empty."""
    with floor.worker(QWF_HOST_LABEL="old"):
        job = floor.enqueue(gated=True)
        floor.until_begun(job, 1)
        wish = ask_to_drain(floor.connection, "old", gives_back=False, lasting=60.0, actor="ann", reason=None)
        with ThreadPoolExecutor() as pool:
            waits = pool.submit(drain, floor, "old", "--wait", "--for", "1h", status=1)
            looks = "SELECT count(*) FROM worker_control WHERE expires_at > now() + interval '30 minutes'"
            until(lambda: floor.connection.execute(looks).fetchone() == (1,))
            WorkerControlRepository(floor.connection).clear("old", "*", actor="ann")
            assert "the wish is over, so workers of old may claim: 1 job" in waits.result().stderr
        floor.ledger.open_gate(job, 1)
        floor.until_completed(job)
        until(lambda: states(floor) == {"old": "idle"})
        seen = read_drain(floor.connection, wish, stale_s=60)
        assert (seen.is_over, seen.is_empty, len(seen.behind)) == (True, False, 1)
    refused = drain(floor, "old", "--wait", "--timeout", "5m", "--for", "1m", status=2)
    assert "give a longer --for" in refused.stderr


def test_jobs_may_be_given_back_at_once(floor: Floor) -> None:
    """Uncounted, for another host; for programs all of it is one document."""
    with floor.worker(QWF_HOST_LABEL="old"):
        job = floor.enqueue(gated=True)
        floor.until_begun(job, 1)
        told = json.loads(drain(floor, "old", "--give-back", "--wait", "--for", "1h", "--json").stdout)
        assert (told["empty"], told["held"], told["jobs"], told["behind"]) == (True, 0, [], [])
        wish = {name: told["wish"][name] for name in ("host_label", "queue", "desired", "reason")}
        assert wish == {"host_label": "old", "queue": "*", "desired": "off", "reason": "drained"}
        assert floor.standing(job) == ("queued", 1, 0, 0)


@pytest.mark.parametrize(
    ("there", "asked", "is_kept"),
    [
        (("off", None), (False, 3600.0), True),
        (("pause", None), (False, 3600.0), True),
        (("off", 7200.0), (True, 3600.0), True),
        (("pause", None), (True, None), False),
        (("pause", 60.0), (False, 3600.0), False),
        (("off", 60.0), (False, None), False),
    ],
)
def test_a_wish_that_asks_for_more_is_kept(
    floor: Floor, there: tuple[str, float | None], asked: tuple[bool, float | None], is_kept: bool
) -> None:
    """It is another operator's, and a drain for an hour does not end what was to last."""
    HeartbeatRepository(floor.connection).beat(
        "old:fetch:1", host_label="old", queue="fetch", pid=1, state="idle"
    )
    control = WorkerControlRepository(floor.connection)
    before = control.set("old", "*", there[0], actor="ann", expires_in=there[1])
    wish = ask_to_drain(
        floor.connection, "old", gives_back=asked[0], lasting=asked[1], actor="bob", reason=None
    )
    now = (wish.version, wish.actor, wish.desired) == (before.version, "ann", there[0])
    assert (now, [one.version for one in control.blocking("old")]) == (is_kept, [wish.version])


def test_a_host_that_nobody_knows_is_refused(floor: Floor) -> None:
    """With its own status, and nothing is asked of it."""
    for name in ("nowhere", "*"):
        assert "there is no host" in drain(floor, name, "--wait", status=2).stderr
    assert floor.connection.execute("SELECT count(*) FROM worker_control").fetchone() == (0,)
