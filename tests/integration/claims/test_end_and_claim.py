"""What a worker of many asks while an answer waits: the rest of that answer is seen to without a question."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.processes.threads import in_time
from support.rows.claim_sessions import CLEAR_LIMITS, cap, holders
from support.rows.claimed_jobs import context
from support.rows.jobs import Jobs, ending, jobs_of

from queue_workflows.db.connections.asking_connection import AskingConnection
from queue_workflows.db.connections.engine import Database
from queue_workflows.engine.execution.guards import Budget, HeldJob
from queue_workflows.repositories import ClaimedJob, IngestJobRepository
from queue_workflows.repositories.claims.unusable_rows import Faults, faults_of
from queue_workflows.repositories.limits.slots import SlotRepository, Want
from queue_workflows.repositories.sql.checks import PayloadLimits
from queue_workflows.repositories.sql.low_water_marks import Marks
from queue_workflows.roles.worker.claims import session
from queue_workflows.roles.worker.claims.session import ClaimSession
from queue_workflows.roles.worker.claims.terms import ClaimTerms
from queue_workflows.roles.worker.common.look_turns import LookTurns
from queue_workflows.roles.worker.common.parts import WorkerParts
from queue_workflows.roles.worker.concurrent import end_and_claim
from queue_workflows.roles.worker.concurrent.end_and_claim import EndAndClaim
from queue_workflows.roles.worker.guardian.claim_mutex import FairMutex
from queue_workflows.roles.worker.job_log import JobLog

KEY = "host:example.org"
# Few enough for a test, and as many as an exchange asks ahead for.
BATCH = 100


class MainThread:
    """What a worker of many does on a real connection, without its guardian, its threads and its process."""

    def __init__(self, connection: AskingConnection) -> None:
        self.terms = ClaimTerms(IngestJobRepository, "fetch", "host:fetch:1", 60.0, PayloadLimits())
        self.connection = connection
        self.claim_session = ClaimSession(self.terms, connection)
        self.begun: list[HeldJob] = []
        self.claiming, self.jobs_done = FairMutex(), 0
        self.holdings, self.stopping, self.job_log = None, None, JobLog()
        self.damage = SimpleNamespace(leave_if_used_up=lambda: None)
        worker_connection = SimpleNamespace(
            claim_session=lambda: self.claim_session, meanwhile=self._meanwhile
        )
        parts = SimpleNamespace(
            guardian=self,
            marks=Marks(0.0),
            redactor=None,
            worker_connection=worker_connection,
            turns=LookTurns(lambda: None),
        )
        self.exchanging = EndAndClaim(cast(WorkerParts, parts), self)

    def _meanwhile(self, do: Any) -> None:
        self.connection.meanwhile = do

    def exchange(self, taken: Sequence[HeldJob], dropped: Sequence[HeldJob]) -> None:
        """As the guardian's."""

    def held(self, jobs: Sequence[ClaimedJob], reading: float) -> list[HeldJob]:
        """As the worker's."""
        return [HeldJob(job, context(job), Budget(60, 60), 0.0, reading + 60) for job in jobs]

    def taken(self, claimed: list[HeldJob], *, alone: bool) -> None:
        """As the worker's, without running them."""
        self.begun += claimed

    def unsure(self) -> None:
        """As the worker's."""

    def turn(self) -> None:
        """End what has begun, and ask for as much again."""
        for held in self.begun:
            held.ending = ending(held.job)
        self.exchanging.unwritten, self.begun = self.begun, []
        self.exchanging.exchange(BATCH, alone=False)


@pytest.fixture
def jobs(qwf_dsn: str) -> Iterator[Jobs]:
    with jobs_of("ingest", qwf_dsn) as jobs:
        jobs.connection.execute(CLEAR_LIMITS)
        yield jobs


@pytest.fixture
def main(qwf_dsn: str) -> Iterator[MainThread]:
    with Database.open(qwf_dsn, role="test") as database, database.connect(autocommit=True) as connection:
        yield MainThread(connection)


def test_a_late_slot_is_given_back_when_the_question_is_answered(jobs: Jobs, main: MainThread) -> None:
    """Its attempt ended while the guardian took it again, and no job beside it has a key."""
    ids = jobs.enqueue(1 + 3 * BATCH)
    main.begun = main.held(main.claim_session.claim(Marks(0.0), 0.0), 0.0)
    main.turn()
    assert main.exchanging.unread == BATCH
    main.begun = main.held(jobs.claim("host:fetch:1"), 0.0)
    cap(jobs.connection, KEY, 1)
    lost, again = (_slot(jobs, main) for _ in range(2))
    main.terms.kept.add([lost])
    main.terms.kept.replace(lost, again)
    main.terms.kept.forget([lost.fence])
    assert main.terms.kept.late
    assert not main.terms.kept
    in_time(main.turn)
    assert holders(jobs.connection, KEY) == []
    main.exchanging.read()
    assert sorted(held.job.id for held in main.begun) == ids[1 : 1 + BATCH] + ids[2 + BATCH :][:BATCH]


def _slot(jobs: Jobs, main: MainThread) -> Any:
    """The key's one slot, for the job that has begun; who had it before has lost it."""
    jobs.connection.execute("UPDATE limit_slots SET lease_expires_at = '-infinity'")
    job = main.begun[0].job
    taken = SlotRepository(jobs.connection).take([Want(KEY, job.family, job.fence)], lease_s=60)
    return taken.slots[0]


def test_each_row_is_looked_at_once(jobs: Jobs, main: MainThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a row can be used at all is found out as it is read, and not again as its job begins."""
    jobs.enqueue(1)
    jobs.enqueue(3, limit_key=KEY)
    main.begun = main.held(main.claim_session.claim(Marks(0.0), 0.0), 0.0)
    looked: list[int] = []

    def look(claimed: Sequence[ClaimedJob]) -> Faults:
        looked.append(len(claimed))
        return faults_of(claimed)

    for module in (end_and_claim, session):
        monkeypatch.setattr(module, "faults_of", look, raising=False)
    in_time(main.turn)
    main.exchanging.read()
    assert len(main.begun) == 3
    assert looked == [3]
