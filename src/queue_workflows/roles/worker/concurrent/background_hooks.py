"""The background hooks of a worker: claimed apart from its other jobs, each with a thread of its own.

They may last as long as their runs, so they take none of the worker's places. Their claim comes between two
rounds of the main thread, when some may have come; their leases are renewed and their ends are written with
those of all others. Once a second it is seen which of their runs are sealed.

A suspect among them is on trial: it begins first, only jobs that were never doubted begin beside it, and the
others follow when it has lived for long enough, or ended.

`max_background` says how many are held when one of a further run begins. Those of a run that has begun are
taken beyond that: its foreground waits for them, and what is held already may end only after its foreground.
What is held for all runs of a tree waits for the last of them, so it takes no place of theirs: they begin as
if it were not there.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

from queue_workflows import clock as time
from queue_workflows.db.connections.failures import DATABASE_AWAY
from queue_workflows.engine.execution.guards import HeldJob
from queue_workflows.errors import ExitCode
from queue_workflows.host.processes import last_word
from queue_workflows.repositories.jobs.hooks import FOR_TREE, HookJobRepository
from queue_workflows.repositories.sql.claimed_job import ClaimedJob, ClaimedNodeJob
from queue_workflows.roles.worker.common.parts import WorkerParts
from queue_workflows.roles.worker.concurrent.event_loop import SharedLoop
from queue_workflows.roles.worker.concurrent.job_threads import JobThreads
from queue_workflows.roles.worker.concurrent.worker import ConcurrentWorker

if TYPE_CHECKING:
    from queue_workflows.hooks.attempt.runner import HookRunner

_SEALED_EVERY_S: Final = 1.0
_TRUST_EVERY_S: Final = 1.0
_ASIDE_S: Final = 0.2
# However many of the runs that have begun are taken.
_MOST_OF_ALL: Final = 2_000


class Background:
    """What the main thread asks between two rounds; nothing here is of another thread."""

    def __init__(
        self,
        parts: WorkerParts,
        runner: HookRunner,
        *,
        perform: Callable[[HeldJob], None],
        held: Callable[[list[ClaimedJob], float], list[HeldJob]],
        lost: Callable[[Exception], None],
    ) -> None:
        """`held` makes guarded jobs of what was claimed, `lost` is told of a statement without an answer."""
        self._most = parts.options.max_background
        self._poll_s = parts.settings.poll_s
        self._worker_connection = parts.worker_connection
        self._lifecycle = parts.lifecycle
        self._guardian = parts.guardian
        self._runner = runner
        self._held = held
        self._lost = lost
        self._look_at = self._seal_at = self._trust_at = 0.0
        self._on_trial: HeldJob | None = None
        self.is_empty = False
        # Behind the places of the foreground.
        first = parts.options.concurrency
        self.job_threads = JobThreads(
            _MOST_OF_ALL,
            perform=perform,
            ring=parts.listener.interrupt,
            begins=lambda place, job_id: last_word.own.begins(first + place, job_id),
        )

    def count(self) -> int:
        """How many background jobs are held."""
        return sum(_is_background(held) for held in self._guardian.holdings.all())

    def look_now(self) -> None:
        """Somebody has said that there is work."""
        self._look_at, self.is_empty = 0.0, False

    def turn(self, now: float) -> None:
        """Claim if it is time to look, and end what is sealed."""
        try:
            if self._on_trial is not None and now >= self._trust_at:
                self._end_trial(self._on_trial, now)
            if now >= self._look_at:
                self._claim(now)
            if now >= self._seal_at:
                self._end_sealed(now)
        except DATABASE_AWAY as exc:
            self._lost(exc)

    def stand_aside(self, now: float) -> None:
        """Claim nothing for a moment."""
        self._look_at = max(self._look_at, now + _ASIDE_S)

    def next_at(self) -> float:
        """When `turn` has something to do again, if nobody wakes us."""
        seal_at = [self._seal_at] if self._runner.ending_at_seal() else []
        trust_at = [self._trust_at] if self._on_trial is not None else []
        return min([self._look_at, *seal_at, *trust_at])

    def _claim(self, now: float) -> None:
        in_hand = self.count()
        left = self._lifecycle.left() - self._guardian.holdings.count()
        room, runs = int(min(self._most - in_hand, left)), None
        if room < 1:
            room, runs = int(min(_MOST_OF_ALL - in_hand, left)), self._begun_runs() | self._further_runs()
            if room < 1 or not runs:
                self._look_at = now + self._poll_s
                return
        claimed = self._take(1, suspect=True, runs=runs) if self._on_trial is None else []
        if claimed:
            self._on_trial, self._trust_at = claimed[0], now + _TRUST_EVERY_S
        if len(claimed) < room:
            claimed += self._take(room - len(claimed), beside=self._on_trial is not None, runs=runs)
        if runs is None:
            self.is_empty = not claimed and self._on_trial is None
        self._look_at = now + self._poll_s if len(claimed) < room else now

    def _begun_runs(self) -> set[uuid.UUID]:
        """The runs of which a background hook is held."""
        jobs = (held.job for held in self._guardian.holdings.all() if _is_background(held))
        return {job.run_id for job in jobs if isinstance(job, ClaimedNodeJob)}

    def _further_runs(self) -> set[uuid.UUID]:
        """A run that may begin beyond the limit, below one that holds a listener for its whole tree."""
        jobs = (held.job for held in self._guardian.holdings.all() if _is_background(held))
        held_jobs = [job for job in jobs if isinstance(job, ClaimedNodeJob)]
        trees = [job.run_id for job in held_jobs if job.inputs.get(FOR_TREE)]
        repository = self._worker_connection.repository()
        if not trees or not isinstance(repository, HookJobRepository):
            return set()
        if len(held_jobs) - len(trees) >= self._most:
            return set()
        with self._guardian.holdings.bounded():
            return repository.next_of_trees(trees)

    def _take(
        self,
        limit: int,
        *,
        suspect: bool = False,
        beside: bool = False,
        runs: Collection[uuid.UUID] | None = None,
    ) -> list[HeldJob]:
        guardian, claim_session = self._guardian, self._worker_connection.claim_session()
        with guardian.claiming, guardian.holdings.bounded(self._worker_connection.meanwhile) as reading:
            jobs = claim_session.claim_background(limit, suspect=suspect, beside=beside, runs=runs)
            for job in jobs:
                # Its row says so still; in here it keeps nobody of the foreground away.
                job.suspect = False
            claimed = self._held(jobs, reading)
            guardian.exchange(claimed, [])
        self.job_threads.put(claimed)
        return claimed

    def _end_trial(self, held: HeldJob, now: float) -> None:
        """If the suspect has ended, or lived for long enough, let begin what it kept waiting."""
        self._trust_at = now + _TRUST_EVERY_S
        repository, holdings = self._worker_connection.repository(), self._guardian.holdings
        if holdings.holds(held.job) and isinstance(repository, HookJobRepository):
            with holdings.bounded():
                is_over = repository.trust(held.job.fence)
        else:
            is_over = True
        if is_over:
            self._on_trial = None
            self.look_now()

    def _end_sealed(self, now: float) -> None:
        self._seal_at = now + _SEALED_EVERY_S
        repository, jobs = self._worker_connection.repository(), self._runner.ending_at_seal()
        if jobs and isinstance(repository, HookJobRepository):
            with self._guardian.holdings.bounded():
                sealed = repository.sealed(jobs)
            self._runner.end_at_seal(sealed)


def _is_background(held: HeldJob) -> bool:
    return bool(getattr(held.job, "background", False))


class HookWorker(ConcurrentWorker):
    """A concurrent worker with background jobs that take none of its places."""

    def __init__(self, parts: WorkerParts, loop: SharedLoop, runner: HookRunner) -> None:
        super().__init__(parts, loop)
        self._background = Background(
            parts,
            runner,
            perform=self._perform,
            held=self.held,
            lost=self._exchange.lost,
        )

    def run(self) -> ExitCode:
        """Claim and work until there is a reason to stop."""
        status = super().run()
        self._background.job_threads.close()
        return status

    def _has_another_question(self, now: float) -> bool:
        # Its own claims come in between, and hooks are not so short that one would hurry.
        return True

    def _is_drained(self) -> bool:
        return self._background.is_empty and super()._is_drained()

    def _in_hand(self) -> int:
        return super()._in_hand() - self._background.count()

    def _over(self) -> int:
        return super()._over() - sum(map(_is_background, self._exchange.unwritten))

    def _gather(self, now: float) -> None:
        super()._gather(now)
        self._exchange.unwritten += self._background.job_threads.ended()

    def _wanted(self, now: float) -> tuple[int, bool]:
        if self._stands_aside(now):
            self._background.stand_aside(now)
        self._background.turn(now)
        return super()._wanted(now)

    def _stands_aside(self, now: float) -> bool:
        """Whether a suspect has the whole worker, or gets it now: beside others it would not be to blame.

        A worker that was started anew, as after such a death, holds nothing yet.
        """
        held = self._holdings.all()
        if held:
            return len(held) == 1 and held[0].job.suspect
        if not self._is_empty and self._suspect_isolation.must_look(now):
            self._suspect_isolation.seen(self._suspect_waits(), now)
        return self._suspect_isolation.is_wanted

    def _await(self, timeout: float) -> None:
        job_threads, left = self._background.job_threads, self._background.next_at() - time.monotonic()
        job_threads.awaited(lambda: super(HookWorker, self)._await(min(timeout, left)))

    def _listen(self, timeout: float) -> None:
        was_empty = self._is_empty
        super()._listen(timeout)
        if was_empty and not self._is_empty:
            self._background.look_now()
