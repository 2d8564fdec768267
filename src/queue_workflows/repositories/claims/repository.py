"""Claiming, holding, ending and sweeping on the caller's connection: one implementation for both families."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from operator import itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, NamedTuple, Self, TypeVar

from queue_workflows.errors import IllegalTransition, LeaseLost, PayloadError
from queue_workflows.repositories.claims import claim as claiming
from queue_workflows.repositories.claims import end as ending
from queue_workflows.repositories.claims import hold_lease, operator_verbs, sweep
from queue_workflows.repositories.claims.end import (
    Ended,
    Ending,
    Unread,
    accepted_of,
    error_entry,
    given_params,
    gives_back,
    is_better_apart,
    keeping_attempts,
)
from queue_workflows.repositories.claims.hold_lease import Found, Watched
from queue_workflows.repositories.claims.sweep import Reclaimed
from queue_workflows.repositories.claims.unread_claims import claim_rows
from queue_workflows.repositories.limits import lanes
from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.arrays import fence_params, id_array, texts
from queue_workflows.repositories.sql.claimed_job import C, ClaimedJob, Fence, loaded
from queue_workflows.repositories.sql.connection import Question, Rows
from queue_workflows.repositories.sql.families import Family
from queue_workflows.repositories.sql.low_water_marks import UNMARKED
from queue_workflows.repositories.sql.table import LONGEST_PAGE, Repository
from queue_workflows.repositories.workers.control import Control
from queue_workflows.settings import check_queue_name
from queue_workflows.states import JOB_TERMINAL, DesiredState, JobStatus

if TYPE_CHECKING:
    from queue_workflows.models import Base

M = TypeVar("M", bound="Base")

# Of an answer to an end and a claim, the columns of the job.
_CLAIMED: Final = itemgetter(slice(2, None))


class Claims(NamedTuple):
    """The statements that claim; a queue's own take the same parameters and more."""

    claim: str
    claim_alone: str
    end_and_claim: str
    end_alike_and_claim: str

    @classmethod
    def of(cls, family: Family) -> Self:
        """The statements for a family's queues."""
        name = family.name
        return cls(
            claiming.CLAIM[name],
            claiming.CLAIM_ALONE[name],
            ending.END_AND_CLAIM[name],
            ending.END_ALIKE_AND_CLAIM[name],
        )

    @classmethod
    def but(cls, family: Family) -> Self:
        """The statements for a worker that passes by the jobs of some names, which it gives as `but`."""
        name = family.name
        return cls(
            claiming.CLAIM_BUT[name],
            claiming.CLAIM_ALONE_BUT[name],
            ending.END_AND_CLAIM_BUT[name],
            ending.END_ALIKE_AND_CLAIM_BUT[name],
        )


class ClaimableRepository(Repository[M], Generic[M, C]):
    """What both job repositories can do with a claim.

    `durable=False` lets a commit return before it is on disk, where losing it only means that a job is
    claimed or renewed again. It is honoured on a psycopg connection in autocommit, as a transaction of the
    caller's is not ours to relax.
    """

    _family: ClassVar[Family]
    _claims: ClassVar[Claims]
    _claims_but: ClassVar[Claims]
    # What the claiming statements are given beside what every claim says.
    _beside: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    _claimed: type[C]

    @property
    def family(self) -> Family:
        """The family of these jobs."""
        return self._family

    def claim(
        self,
        queue: str,
        *,
        worker_id: str,
        lease_s: float,
        limit: int = 1,
        positions: Sequence[int] = UNMARKED,
        alone: bool = False,
        suspects_first: bool = False,
        durable: bool = True,
        but: Sequence[str] = (),
    ) -> list[C]:
        """Take the next jobs of a queue for `lease_s` seconds, in the order they are to be worked on.

        `positions` are those of a `Marks`. A suspect goes only to a worker that says it is `alone`: it holds
        no other job and asks for one; and it comes after all others, or with `suspects_first` before them.
        Jobs of a task or module in `but` are passed by.
        """
        params = claiming.checked_params(
            queue, worker_id=worker_id, lease_s=lease_s, limit=limit, positions=positions, alone=alone
        )
        claims = self._claims_for(but, params)
        params["suspects_first"] = suspects_first
        params["relaxed"] = not durable and self._sql.commits_each
        statement = claims.claim_alone if alone else claims.claim
        return self._claim_by(statement, params)

    def _claims_for(self, but: Sequence[str], params: dict[str, Any]) -> Claims:
        """The statements that pass these names by, and what they are given besides."""
        params |= self._beside
        if not but:
            return self._claims
        params["but"] = texts(but)
        return self._claims_but

    def _claim_by(self, statement: str, params: Mapping[str, Any]) -> list[C]:
        """Claim by a statement; what it takes and the server cannot give ends as failed."""
        rows, failures = claim_rows(self._sql, self._family, statement, params)
        self.end_many(failures)
        return loaded(self._claimed, rows)

    def ask_claim(
        self,
        queue: str,
        *,
        worker_id: str,
        lease_s: float,
        limit: int,
        positions: Sequence[int],
        but: Sequence[str] = (),
    ) -> Callable[[], list[C]]:
        """Claim in a pipeline, in a transaction that has nothing else to keep: not durable, no suspect."""
        params = claiming.checked_params(
            queue, worker_id=worker_id, lease_s=lease_s, limit=limit, positions=positions, alone=False
        )
        claims = self._claims_for(but, params)
        rows = self._sql.ask(claims.claim, {**params, "relaxed": True})
        return lambda: loaded(self._claimed, rows())

    def end(self, ending: Ending) -> JobStatus:
        """End one claim, or raise `LeaseLost` and change nothing; what became of the job."""
        ended = self.end_many([ending])
        if ended.lost:
            raise self._lost(ending.fence)
        return ended.statuses[ending.fence.job_id]

    def end_many(self, endings: Sequence[Ending]) -> Ended:
        """End a batch of claims in one statement; those with a lost lease are named and change nothing."""
        return self.ask_end(endings)() if endings else Ended()

    def ask_end(self, endings: Sequence[Ending]) -> Callable[[], Ended]:
        """End one claim or more; in a pipeline that is on its way until the answer is called for."""
        rows = self._sql.ask(*ending.end_statement(self._family, endings))
        return lambda: accepted_of(endings, rows())

    def end_and_claim(
        self,
        endings: Sequence[Ending],
        queue: str,
        *,
        worker_id: str,
        lease_s: float,
        limit: int = 1,
        positions: Sequence[int] = UNMARKED,
        but: Sequence[str] = (),
    ) -> tuple[Ended, list[C]]:
        """End a batch and claim the next jobs in one statement, no suspect among them.

        What it gives back it does not take again.
        """
        return self.ask_end_and_claim(
            endings, queue, worker_id=worker_id, lease_s=lease_s, limit=limit, positions=positions, but=but
        ).load()

    def ask_end_and_claim(
        self,
        endings: Sequence[Ending],
        queue: str,
        *,
        worker_id: str,
        lease_s: float,
        limit: int,
        positions: Sequence[int],
        but: Sequence[str] = (),
    ) -> Unread[C]:
        """An end and a claim, not read yet, so that the next can be asked before its jobs are looked at."""
        params = claiming.checked_params(
            queue, worker_id=worker_id, lease_s=lease_s, limit=limit, positions=positions, alone=False
        )
        claims = self._claims_for(but, params)
        alike, given = given_params(self._family, endings)
        if is_better_apart(endings):
            end = (ending.END_ALIKE if alike else ending.END)[self._family.name]
            claim = claims.claim, params | {"relaxed": False}
            if both := self._sql.ask_in_one_commit((end, given), claim):
                ended, jobs = both
                return Unread(
                    jobs.number(), lambda: (accepted_of(endings, ended()), loaded(self._claimed, jobs()))
                )
        sql = claims.end_alike_and_claim if alike else claims.end_and_claim
        answer = self._sql.ask(keeping_attempts(sql) if gives_back(endings) else sql, params | given)

        def load() -> tuple[Ended, list[C]]:
            rows = answer()
            # The first row is what was accepted, each other one a job.
            ids, statuses, *_ = rows[0]
            jobs = loaded(self._claimed, map(_CLAIMED, rows[1:]))
            return accepted_of(endings, zip(ids or (), statuses or (), strict=True)), jobs

        return Unread(answer.number() - 1, load)

    def complete(self, job: C, result: Any = None) -> JobStatus:
        """End a held job with what it returned, or raise `LeaseLost` and change nothing."""
        return self.end(Ending(job.fence, JobStatus.COMPLETED, result=self.result_text(result)))

    def release(self, job: C) -> JobStatus:
        """Give a held job back uncounted, at its place, or raise `LeaseLost` and change nothing."""
        return self.end(Ending(job.fence, JobStatus.QUEUED))

    def hold(self, job: C, reason: str, key: str | None = None, *, delay_s: float) -> JobStatus:
        """Put a held job aside until something changes, at most for `delay_s`, or raise `LeaseLost`."""
        ending = Ending(job.fence, JobStatus.SCHEDULED, delay_s=delay_s, hold_reason=reason, hold_key=key)
        return self.end(ending)

    def has_suspect(self, queue: str, *, but: Sequence[str] = ()) -> bool:
        """Whether a job of a queue waits for a worker that is alone, of none of the names in `but`."""
        params = {"queue": check_queue_name(queue)}
        if not but:
            return bool(self._sql.rows(claiming.HAS_SUSPECT[self._family.name], params))
        return bool(self._sql.rows(claiming.HAS_SUSPECT_BUT[self._family.name], params | {"but": texts(but)}))

    def put_aside(
        self, queue: str, names: Iterable[str], *, reason: str, delay_s: float, crowd: int = 1
    ) -> int:
        """Hold what is queued for these tasks or modules, a few thousand rows at a time; how many.

        Nothing where the head of the queue has fewer of them than a `crowd`.
        """
        params = {
            "queue": check_queue_name(queue),
            "names": texts(sorted({check.text("name", name, max_bytes=check.KEY_BYTES) for name in names})),
            "reason": check.text("reason", reason),
            "delay_s": check.seconds("delay_s", delay_s),
            "crowd": check.whole("crowd", crowd, 1, hold_lease.PUT_ASIDE_AT_ONCE),
        }
        return len(self._sql.rows(hold_lease.PUT_ASIDE[self._family.name], params))

    def result_text(self, result: Any) -> str | None:
        """A result as the JSON text that an `Ending` takes, or `PayloadError`; None is no result."""
        if result is None:
            return None
        if self._family.emits_events:
            return self._limits.json_object(self._family.result_column, result)
        return self._limits.json(result)

    def renew(
        self, fences: Sequence[Fence], *, lease_s: float, durable: bool = False
    ) -> dict[int, datetime | None]:
        """Extend leases: the jobs that are still held, and since when somebody wants each cancelled."""
        params = _in_order(fences) | {"lease_s": check.seconds("lease_s", lease_s)}
        if not fences:
            return {}
        return {row[0]: row[1] for row in self._hot(hold_lease.RENEW, params, durable)}

    def claim_again(self, jobs: Sequence[ClaimedJob], *, lease_s: float) -> frozenset[int]:
        """Claim once more what a crash of the server has forgotten; the jobs that are held now."""
        ordered = sorted(jobs, key=lambda job: job.id)
        params = fence_params([job.fence for job in ordered]) | {
            "started": texts(job.started_at.isoformat() for job in ordered),
            "lease_s": check.seconds("lease_s", lease_s),
        }
        rows = self._sql.rows(hold_lease.CLAIM_AGAIN[self._family.name], params) if ordered else []
        return frozenset(job_id for (job_id,) in rows)

    def make_durable(self, fence: Fence, *, lease_s: float) -> datetime | None:
        """Renew one lease on disk, and with it the claim, so that no crash hands out its attempt again."""
        renewed = self.renew([fence], lease_s=lease_s, durable=True)
        if fence.job_id not in renewed:
            raise self._lost(fence)
        return renewed[fence.job_id]

    def beat(self, fence: Fence, progress: dict[str, Any], *, durable: bool = False) -> datetime | None:
        """Store a held job's progress or raise `LeaseLost`; since when somebody wants it cancelled."""
        heard = self.beat_many([(fence, self._limits.json_object("progress", progress))], durable=durable)
        if fence.job_id not in heard:
            raise self._lost(fence)
        return heard[fence.job_id]

    def beat_many(
        self, beats: Sequence[tuple[Fence, str]], *, durable: bool = False
    ) -> dict[int, datetime | None]:
        """Store the progress of held jobs, given as checked JSON texts; the answer is that of `renew`."""
        if not beats:
            return {}
        ordered = sorted(beats)
        params = fence_params([fence for fence, _ in ordered]) | {
            "progress": texts(text for _, text in ordered)
        }
        return {row[0]: row[1] for row in self._hot(hold_lease.BEAT, params, durable)}

    def watch(self, fences: Sequence[Fence], *, host_label: str, queue: str) -> Watched:
        """What a guard has to know about its jobs and its worker, in one statement."""
        question = self.watching(fences, host_label=host_label, queue=queue)
        return question.read(self._sql.rows(question.sql, question.params))

    def watching(self, fences: Sequence[Fence], *, host_label: str, queue: str) -> Question[Watched]:
        """`watch` as a question, to be asked with others."""
        params = _in_order(fences) | {"host_label": host_label, "queue": queue}
        return Question(hold_lease.WATCH[self._family.name], params, _watched)

    def finding(self, queue: str, *, holds: Iterable[str] = ()) -> Question[Found]:
        """Whether anything is queued, for any worker, and for which of these reasons jobs are on hold."""
        params = {"queue": check_queue_name(queue), "reasons": texts(holds)}
        return Question(
            hold_lease.FIND[self._family.name],
            params,
            lambda rows: Found(queued=rows[0][0], held=frozenset(rows[0][1])),
        )

    def promote(self, *, in_turn: bool = False) -> int:
        """Queue what is due, at most `PROMOTED_AT_ONCE`; how many, so that the caller knows to come again.

        `in_turn` leaves it to another sweeper that is at it at this moment.
        """
        return len(self._sql.rows(sweep.PROMOTE[self._family.name], {"in_turn": bool(in_turn)}))

    def promote_held(self, reason: str, keys: Iterable[str], *, queue: str, limit: int = LONGEST_PAGE) -> int:
        """Queue what waits for one of these keys, at its old place, the first in line first; how many."""
        params = sweep.promotion_params(reason, keys, queue=queue, limit=limit)
        return len(self._sql.rows(sweep.PROMOTE_HELD[self._family.name], params))

    def held_keys(self, reason: str, *, queue: str, limit: int = LONGEST_PAGE) -> list[str]:
        """The keys for which jobs of a queue are on hold for this reason, in no order."""
        params = {
            "reason": check.text("reason", reason),
            "queue": check_queue_name(queue),
            "limit": check.whole("limit", limit, 1, LONGEST_PAGE),
        }
        return [key for (key,) in self._sql.rows(sweep.HELD_KEYS[self._family.name], params)]

    def reclaim(
        self,
        *,
        max_crashes: int,
        lease_s: float,
        recovered_s: float | None = None,
        beat_s: float | None = None,
        in_turn: bool = False,
    ) -> list[Reclaimed]:
        """Take back jobs with a lapsed lease, at most `RECLAIMED_AT_ONCE`; `in_turn` as for `promote`.

        `lease_s` is the longest lease in use, by which a lapse is held against the time when the database was
        away; `recovered_s` says how long ago the caller itself got through again, if it had lost touch.
        By how often workers beat, `beat_s`, a silent host is told from a worker that died.
        """
        params = {
            "max_crashes": check.whole("max_crashes", max_crashes, 1, check.INT_MAX),
            "lease_s": check.seconds("lease_s", lease_s),
            "recovered_s": check.seconds_or_none("recovered_s", recovered_s, zero=True),
            "beat_s": check.seconds_or_none("beat_s", beat_s),
            "in_turn": bool(in_turn),
        }
        return sweep.reclaimed(self._sql.rows(sweep.RECLAIM[self._family.name], params))

    def reclaim_worker(
        self,
        worker_id: str,
        *,
        max_crashes: int,
        crashed: bool = True,
        how: str = "",
        kept: Iterable[int] = (),
    ) -> list[Reclaimed]:
        """Take back what a worker held that is known to be gone, at most `RECLAIMED_AT_ONCE` at a time.

        `crashed` is for a death that its job may have caused, not for an exit that it did not; `how` says in
        words how it ended, for the jobs' errors. A worker that lives may so give back what it does not know
        of: all but the jobs that it has `kept`.
        """
        params = {
            "worker_id": check.text("worker_id", worker_id),
            "kept": id_array(kept),
            "max_crashes": check.whole("max_crashes", max_crashes, 1, check.INT_MAX),
            "crashed": bool(crashed),
            "how": check.text("how", how) if how else "",
        }
        return sweep.reclaimed(self._sql.rows(sweep.RECLAIM_WORKER[self._family.name], params))

    def cancel(self, job_id: int, *, actor: str | None = None, reason: str | None = None) -> JobStatus | None:
        """Cancel a job: `cancelled` if it waited, `running` if it is asked to stop, None if it was over."""
        return self.cancel_many([job_id], actor=actor, reason=reason).get(job_id)

    def cancel_many(
        self, ids: Iterable[int], *, actor: str | None = None, reason: str | None = None
    ) -> dict[int, JobStatus]:
        """Cancel jobs; what each became that was not over yet. An `actor` is written to the audit log.

        What durable functions among them have spawned is cancelled with them.
        """
        params = operator_verbs.params(ids, actor, reason)
        rows = self._sql.rows(operator_verbs.CANCEL[self._family.name], params)
        ended = [row[0] for row in rows]
        operator_verbs.cancel_below(self._sql, self._family, ended, actor=actor, reason=reason)
        return {row[0]: JobStatus(row[1]) for row in rows}

    def retry_many(self, ids: Iterable[int], *, actor: str, reason: str | None = None) -> dict[int, int]:
        """Open a new generation of jobs that are over; the numbers of those generations, by id.

        A node is left alone if its run is over or being cancelled, or an orchestrator has counted its end;
        then it is the run that is retried. Of a limit's key a few go to the queue, the others to its lane.
        """
        ids = list(ids)
        params = operator_verbs.params(ids, check.text("actor", actor), reason)
        retry = operator_verbs.RETRY[self._family.name]
        rows = list(self._sql.rows(retry, params))
        missed = set(ids) - {row[0] for row in rows} if self._family.with_history else set()
        if missed:
            # What has moved is brought back as it was; so is what moved since the statement above began.
            moved = operator_verbs.bring_back(self._sql, missed)
            rows += self._sql.rows(retry, params | {"ids": id_array(moved)}) if moved else []
        keyed = [row[0] for row in rows if row[2] is not None]
        if keyed:
            self._sql.rows(lanes.MOVE_SURPLUS[self._family.name], {"ids": id_array(keyed)})
        return {row[0]: row[1] for row in rows}

    def mark_completed(self, job_id: int, result: Any = None, *, fence: Fence | None = None) -> M | None:
        """End a running or parked job with a result; the row as it is now, None if it was over or never was.

        With a fence only its holder's own attempt may end, else `LeaseLost`.
        """
        return self._mark(job_id, JobStatus.COMPLETED, fence, result=self.result_text(result))

    def mark_failed(self, job_id: int, error: str, *, fence: Fence | None = None) -> M | None:
        """End a running or parked job as failed, without another try; else as `mark_completed`."""
        entry = error_entry("failed", check.text("error", error, max_bytes=check.TEXT_BYTES))
        return self._mark(job_id, JobStatus.FAILED, fence, error=entry)

    def mark_awaiting_input(self, job_id: int, *, fence: Fence | None = None) -> M | None:
        """Park a queued or running node job until somebody answers; None also if it is parked already."""
        return self._mark(job_id, JobStatus.AWAITING_INPUT, fence)

    def _mark(
        self,
        job_id: int,
        to: JobStatus,
        fence: Fence | None,
        *,
        result: str | None = None,
        error: str | None = None,
    ) -> M | None:
        if to not in self._family.statuses:
            raise PayloadError(f"an {self._family.title} cannot become {to}", path="status")
        if fence is not None and fence.job_id != job_id:
            raise self._lost(fence)
        params = {
            "id": job_id,
            "to": to.value,
            "from": operator_verbs.legal_from(self._family.title, to),
            "result": result or "",
            "error": error or "",
            "attempt": fence.attempt if fence else 0,
            "claimed_by": fence.claimed_by if fence else "",
        }
        rows = self._sql.rows(operator_verbs.MARK[self._family.name], params)
        if not rows or rows[0][0] in JOB_TERMINAL or rows[0][0] == to:
            return None
        old, _, *row = rows[0]
        if row[0] is not None:
            return self._table.load([row])[0]
        if fence is not None:
            raise self._lost(fence)
        raise IllegalTransition(self._family.title, old, to)

    def _hot(self, statements: Any, params: dict[str, Any], durable: bool) -> Any:
        relaxed = not durable and self._sql.commits_each
        return self._sql.rows(statements[self._family.name], params | {"relaxed": relaxed})

    def _lost(self, fence: Fence) -> LeaseLost:
        return LeaseLost(self._family.title, fence.job_id, fence.attempt)


def _watched(rows: Rows) -> Watched:
    (row,) = rows
    cancelled, lost, version, desired, *rest = row
    control = None if desired is None else Control(DesiredState(desired), *rest)
    return Watched(frozenset(cancelled), frozenset(lost), version, control)


def _in_order(fences: Sequence[Fence]) -> dict[str, Any]:
    """By id, so that two statements with the same rows do not deadlock."""
    return fence_params(sorted(fences))
