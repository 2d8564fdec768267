"""kill -9 at any moment of a job's life: it ends once, runs again only where it must, and is blamed justly.

The worker speaks to the database through a proxy that holds one statement up: before the server has seen it,
before its commit, or before the worker has read the answer. There the process is killed.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from support.processes.workers import until
from support.servers.statement_proxy import Moment, StatementProxy
from support.stages.floor import CLAIMS, ENDS, RENEWALS, WATCHES, Floor

from queue_workflows.repositories.claims.end import END_ALIKE_AND_CLAIM, END_AND_CLAIM

AND_CLAIM = (END_AND_CLAIM["ingest"], END_ALIKE_AND_CLAIM["ingest"])
STATEMENTS = {"claim": CLAIMS, "end": ENDS, "renewal": RENEWALS}


@dataclass(frozen=True)
class Kill:
    """Where a worker is killed, and what has to become of its job and of the one behind it."""

    statement: str
    moment: Moment
    left: tuple[str, int]
    ran: list[int]
    crashes: int
    may_hold_the_next: bool = False

    def __str__(self) -> str:
        return f"{self.statement} {self.moment.value}"


KILLS = [
    Kill("claim", Moment.UNCOMMITTED, left=("queued", 0), ran=[1], crashes=0),
    Kill("claim", Moment.UNREAD, left=("running", 1), ran=[2], crashes=1),
    Kill("end", Moment.UNSENT, left=("running", 1), ran=[1, 2], crashes=1),
    Kill("end", Moment.UNREAD, left=("completed", 1), ran=[1], crashes=0, may_hold_the_next=True),
    Kill("renewal", Moment.UNCOMMITTED, left=("running", 1), ran=[1, 2], crashes=1),
]
SLOW_KILLS = [Kill("end", Moment.UNCOMMITTED, left=("running", 1), ran=[1, 2], crashes=1)]
MORE_KILLS = [
    Kill("claim", Moment.UNSENT, left=("queued", 0), ran=[1], crashes=0),
    Kill("renewal", Moment.UNSENT, left=("running", 1), ran=[1, 2], crashes=1),
    Kill("renewal", Moment.UNREAD, left=("running", 1), ran=[1, 2], crashes=1),
]


def is_over(floor: Floor, job: int, *, attempt: int, crashes: int) -> None:
    """One accepted end, by that attempt; a crash is written down with the attempt that it cost."""
    assert floor.standing(job) == ("completed", attempt, crashes, 0)
    row = floor.jobs.row(job)
    assert row["result"]["attempt"] == attempt
    lost = [(entry["kind"], entry["attempt"], entry["counted"]) for entry in row["errors"]]
    assert lost == [("worker_lost", n, True) for n in range(1, crashes + 1)]


def succeed(floor: Floor, *ids: int) -> None:
    """What the dead worker held lapses, and another worker sees everything to its end."""
    floor.jobs.lapse(*(job for job in ids if floor.jobs.seen(job, "status") == ("running",)))
    with floor.worker():
        floor.until_completed(*ids)


@pytest.mark.parametrize(
    "kill",
    [
        *KILLS,
        *(pytest.param(each, marks=pytest.mark.slow) for each in SLOW_KILLS),
        *(pytest.param(each, marks=pytest.mark.nightly) for each in MORE_KILLS),
    ],
    ids=str,
)
def test_killed_at_a_statement(floor: Floor, proxy: StatementProxy, kill: Kill) -> None:
    """Before the commit nothing has happened, after it everything has; the lease does the rest."""
    in_mid_job = kill.statement == "renewal"
    job, behind = floor.enqueue(gated=in_mid_job), floor.enqueue()
    trap = proxy.trap(*STATEMENTS[kill.statement], moment=kill.moment)
    with floor.worker(dsn=proxy.dsn, QWF_RENEW_S="0.2") as victim:
        trap.sprung()
        victim.kill()
        victim.wait()
    trap.drop()
    assert floor.standing(job) == (*kill.left, 0, 0)
    # The next job comes with the end, unless there is something else to be asked before it.
    holds_the_next = kill.may_hold_the_next and trap.has_caught(*AND_CLAIM)
    assert floor.standing(behind) == (("running", 1, 0, 0) if holds_the_next else ("queued", 0, 0, 0))
    if in_mid_job:
        floor.ledger.open_gate(job, 2)
    succeed(floor, job, behind)
    is_over(floor, job, attempt=kill.ran[-1], crashes=kill.crashes)
    is_over(floor, behind, attempt=1 + holds_the_next, crashes=int(holds_the_next))
    assert floor.ledger.attempts(job) == kill.ran
    assert floor.ledger.attempts(behind) == [1 + holds_the_next]


def test_killed_in_mid_job(floor: Floor) -> None:
    """Nothing is on its way to the database: the body runs again, as the second attempt."""
    job = floor.enqueue(gated=True)
    with floor.worker() as victim:
        assert floor.until_begun(job, 1) == victim.pid
        victim.kill()
        victim.wait()
    assert floor.standing(job) == ("running", 1, 0, 0)
    floor.ledger.open_gate(job, 2)
    succeed(floor, job)
    is_over(floor, job, attempt=2, crashes=1)
    assert floor.ledger.attempts(job) == [1, 2]


@pytest.mark.slow
@pytest.mark.timed
def test_under_default_settings(floor: Floor) -> None:
    """The lease of 30 s and a sweep later the job runs at a worker that was idle, and not before."""
    with floor.worker() as one, floor.worker() as other:
        job = floor.enqueue(gated=True)
        holder = {worker.pid: worker for worker in (one, other)}[floor.until_begun(job, 1)]
        holder.kill()
        holder.wait()
        (lapses_at,) = floor.jobs.seen(job, "lease_expires_at")
        floor.ledger.open_gate(job, 2)
        floor.until_completed(job)
    late_s, from_start_s = floor.connection.execute(
        "SELECT extract(epoch FROM started_at - %s::timestamptz)::float8,"
        " extract(epoch FROM started_at - created_at)::float8 FROM ingest_jobs WHERE id = %s",
        [lapses_at, job],
    ).fetchone()
    print(f"it ran again {from_start_s:.1f} s after its start, {late_s:.2f} s after the lease")
    # A sweep is due every 1.25 s at the latest; the rest is for a machine that is busy.
    assert 0 <= late_s < 10
    is_over(floor, job, attempt=2, crashes=1)


def test_cut_off_from_the_answer_to_an_end(floor: Floor, proxy: StatementProxy) -> None:
    """Only the line breaks: the worker finds its end stored, gives back the claim it never read, works on."""
    job, behind = floor.enqueue(), floor.enqueue()
    trap = proxy.trap(*ENDS, moment=Moment.UNREAD)
    with floor.worker(dsn=proxy.dsn) as worker:
        trap.sprung()
        proxy.refuse()
        trap.drop()
        # The guardian, whose line holds, asks about the fence of a job that has ended by now.
        watched = proxy.passed(*WATCHES)
        until(lambda: worker.poll() is not None or proxy.passed(*WATCHES) > watched + 1)
        assert worker.poll() is None
        proxy.refuse(False)
        floor.until_completed(job, behind)
        # The one that it never read, if the end was to bring one.
        attempt = 2 if trap.has_caught(*AND_CLAIM) else 1
        assert floor.jobs.row(behind)["result"] == {"attempt": attempt, "pid": worker.pid}
    assert floor.standing(job) == ("completed", 1, 0, 0)
    assert floor.standing(behind) == ("completed", attempt, 0, 0)
    assert (floor.ledger.attempts(job), floor.ledger.attempts(behind)) == ([1], [attempt])
