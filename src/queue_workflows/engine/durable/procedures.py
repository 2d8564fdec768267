"""What a durable function asks the database, as procedures: sync and async code run the same ones."""

from __future__ import annotations

from collections.abc import Sequence
from json import dumps, loads
from typing import Any, Final, NamedTuple

import psycopg

from queue_workflows.config import effective_settings
from queue_workflows.engine.durable.history import Call
from queue_workflows.engine.durable.writer import StepWriter
from queue_workflows.engine.limits.wait_loop import Ask, Procedure
from queue_workflows.engine.outcomes import Cancelled, Discard
from queue_workflows.errors import LeaseLost
from queue_workflows.repositories.durable.children import ChildEnd, ChildRepository
from queue_workflows.repositories.durable.steps import NewStep, StepRepository, StepRow, Stored
from queue_workflows.repositories.durable.waits import Came, WaitRepository
from queue_workflows.repositories.jobs.enqueue import current_limits, enqueue_many
from queue_workflows.repositories.jobs.ingest_rows import NewIngestJob
from queue_workflows.repositories.sql.checks import LONGEST_S
from queue_workflows.repositories.sql.claimed_job import ClaimedJob
from queue_workflows.repositories.sql.connection import Handle
from queue_workflows.repositories.sql.families import BY_NAME
from queue_workflows.settings import DAY_S
from queue_workflows.states import StepStatus

# How soon a parent looks again for a job that it did not make, so that its end is not told to it.
_OTHERS_CHILD_S: Final = 15.0


class NewChild(NamedTuple):
    """A job to spawn, and the step that it is."""

    call: Call
    job: NewIngestJob


class Wait(NamedTuple):
    """What a function waits for; it `parks` unless it waits in its place, `is_first` of this attempt."""

    call: Call
    delay_s: float | None
    waits_for: str | None = None
    parks: bool = True
    is_first: bool = True


class Procedures:
    """The questions of one attempt."""

    def __init__(self, job: ClaimedJob, writer: StepWriter, version: str | None) -> None:
        self._job = job
        self._family = job.family.value
        self._writer = writer
        self.version = version
        self.name = f"{self._family}:{job.id}"

    def load(self) -> Procedure[list[StepRow]]:
        """What is stored of the job; nothing can be in its first attempt."""
        if self._job.attempt <= 1:
            return []
        return (yield from self._writer.reading(self._job.id))

    def step(
        self,
        call: Call,
        *,
        status: StepStatus = StepStatus.DONE,
        result: str | None = None,
        error: str | None = None,
        tries: int = 1,
        took_s: float = 0.0,
        ended_at: float | None = None,
    ) -> NewStep:
        """A step as it is stored."""
        return NewStep(
            self._job.fence,
            call.name,
            call.number,
            call.position,
            call.kind,
            status=status,
            result=result,
            error=error,
            beside=call.beside,
            tries=tries,
            version=self.version,
            took_s=took_s,
            ended_at=ended_at,
        )

    def store(self, steps: Sequence[NewStep]) -> Procedure[list[Stored]]:
        """Store steps, in this order, or raise `LeaseLost`."""
        answer = yield from self._writer.storing(steps)
        if any(step.key not in answer for step in steps):
            raise self._lost()
        return [answer[step.key] for step in steps]

    def store_on(self, conn: Handle, step: NewStep) -> Stored:
        """Store a step in the transaction of a connection."""
        answer = self._steps(conn).store([step])
        if step.key not in answer:
            raise self._lost()
        return answer[step.key]

    def row_of(self, call: Call) -> Procedure[StepRow | None]:
        """What is stored of a call by now."""
        rows = yield Ask(lambda conn: self._steps(conn).stored(self._job.id))
        return next((row for row in rows if row.key == (call.name, call.number)), None)

    def wait(self, wait: Wait) -> Procedure[Came]:
        """Park for a time, or for an event."""

        def ask(conn: psycopg.Connection[Any]) -> Came | None:
            with conn.transaction():
                waits = WaitRepository(conn, self._family)
                if wait.waits_for is not None:
                    waits.lock_name(wait.waits_for)
                return waits.wait(
                    self.step(wait.call),
                    delay_s=wait.delay_s,
                    waits_for=wait.waits_for,
                    look_s=LONGEST_S,
                    parks=wait.parks,
                    is_first=wait.is_first,
                )

        came: Came | None = yield Ask(ask)
        if came is None:
            raise self._lost()
        return came

    def spawn(self, children: Sequence[NewChild], also: Sequence[NewStep]) -> Procedure[dict[Call, int]]:
        """Enqueue children and store that, once; their ids. `also` are steps that go with them."""

        def ask(conn: psycopg.Connection[Any]) -> dict[Call, int] | None:
            with conn.transaction():
                repository = ChildRepository(conn)
                cancelled = repository.hold(self._family, self._job.fence)
                if cancelled is None:
                    return None
                if cancelled:
                    raise Cancelled("this job was cancelled")
                # Asked twice, as the answer to the first may have been lost.
                there = {row.key: row.child_id for row in self._steps(conn).stored(self._job.id)}
                new = [one for one in children if (one.call.name, one.call.number) not in there]
                made = enqueue_many([one.job for one in new], conn=conn) if new else []
                # One that was there by its key is another one's work, which goes on when this is cancelled.
                if own := [each.id for each in made if each.created]:
                    repository.adopt(self.name, own)
                steps = [
                    self.step(one.call)._replace(child_id=each.id)
                    for one, each in zip(new, made, strict=True)
                ]
                self._steps(conn).store([*steps, *also])
                there |= {(step.name, step.call): step.child_id for step in steps}
                return {one.call: there[one.call.name, one.call.number] or 0 for one in children}

        spawned: dict[Call, int] | None = yield Ask(ask)
        if spawned is None:
            raise self._lost()
        return spawned

    def gather(self, call: Call, ids: Sequence[int], *, is_first: bool) -> Procedure[list[ChildEnd] | None]:
        """What became of these children, in this order; None if the job parks until all are over."""

        def ask(conn: psycopg.Connection[Any]) -> tuple[list[ChildEnd] | None, bool]:
            with conn.transaction():
                repository = ChildRepository(conn)
                # Held before the look: an end that comes after it finds that the job waits.
                if repository.hold(self._family, self._job.fence) is None:
                    return None, False
                any_open, are_own = repository.standing(self.name, ids)
                if not any_open:
                    return self._ends(repository, ids), True
                WaitRepository(conn, self._family).wait(
                    self.step(call, result=dumps({"children": list(ids)})),
                    delay_s=None,
                    waits_for=f"qwf:children:{self.name}",
                    look_s=LONGEST_S if are_own else _OTHERS_CHILD_S,
                    parks=True,
                    is_first=is_first,
                )
                return None, True

        ends, is_held = yield Ask(ask)
        if not is_held:
            raise self._lost()
        found: list[ChildEnd] | None = ends
        return found

    def _ends(self, repository: ChildRepository, ids: Sequence[int]) -> list[ChildEnd]:
        """What became of children that are over, without those of which retention has left nothing."""
        # One alone was admitted as a result, and there are no parts of it to gather.
        size, most = repository.size(ids) if len(ids) > 1 else 0, current_limits().max_bytes
        if size > most:
            raise Discard(
                f"the results of {len(ids):,} children are {size:,} bytes, more than the {most:,} that are"
                " read and stored together: gather them in parts, as in ctx.gather(*children[:1000]), or"
                " have each keep its result elsewhere and return where"
            )
        ends = repository.ends(ids)
        if bare := [end.id for end in ends.values() if end.is_bare]:
            kept_s = effective_settings().retention_days * DAY_S
            for gone in repository.emptied(self._family, self._job.id, bare, kept_s=kept_s):
                del ends[gone]
        return [ends[one] for one in ids if one in ends]

    def begin_round(self, round_number: int, args_json: str) -> Procedure[None]:
        """Forget the steps, and go on with these arguments."""
        text = f'{{"round": {round_number}, "args": {args_json}}}'

        def ask(conn: psycopg.Connection[Any]) -> bool:
            return self._steps(conn).begin_round(self._job.fence, text, self.version)

        if not (yield Ask(ask)):
            raise self._lost()

    def _steps(self, conn: Handle) -> StepRepository:
        return StepRepository(conn, self._family)

    def _lost(self) -> LeaseLost:
        return LeaseLost(BY_NAME[self._family].title, self._job.id, self._job.attempt)


def as_stored(value: Any, text: str) -> Any:
    """A value as another attempt will have it: what JSON makes of it."""
    return value if type(value) in {str, int, float, bool, type(None)} else loads(text)
