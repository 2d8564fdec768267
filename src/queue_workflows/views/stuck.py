"""What does not go on, and why: groups of jobs and runs, each with a reason, an example and a command.

Why a group of jobs does not go on is asked of `engine/explain`, with the group's first job as its example.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from queue_workflows.engine.explain.history import Reason
from queue_workflows.engine.explain.job import Knowledge, explain
from queue_workflows.models import ConcurrencyLimit, LimitSlot, WorkerControl
from queue_workflows.repositories.claims.by_host_lock import HOST_LOCK, lock_of
from queue_workflows.repositories.durable.waits import PARKED
from queue_workflows.repositories.explain.explain_job import Circumstances, Limit
from queue_workflows.repositories.hooks.binaries import BINARY_MISSING, waited_for
from queue_workflows.repositories.limits.lanes import LIMIT_FULL
from queue_workflows.repositories.reports.overview import Fact, Facts
from queue_workflows.repositories.reports.stuck_jobs import KEYS, StuckJobs
from queue_workflows.repositories.workers.obedience import Standing
from queue_workflows.states import JobStatus

# What goes on without anybody; all else is told before it.
_GOES_ON: Final = frozenset(
    {"all_busy", LIMIT_FULL, HOST_LOCK, "due", "lease_lapsed", "events_due", "not_begun"}
)
# Why a job is scheduled, which is no reason for it to be overdue.
_FOR_LATER: Final = frozenset({"scheduled", "retry", "retry_after"})
# What is the matter with no job: it only says which are taken first, or that a function waits as it means to.
_IS_WELL: Final = frozenset(
    {"behind", "model_warm", "model_cold", "left_to_peer", "suspect", *_FOR_LATER, *PARKED}
)
# What is asked of some workers, or is true of one device, keeps a job waiting only where nobody else claims.
_OF_SOME_WORKERS: Final = frozenset({"queue_pause", "queue_off", "device_quarantined"})
_NOBODY_CLAIMS: Final = frozenset({"no_worker", "no_free_worker", "host_gone"})
# An orchestrator looks several times a second.
_BEGUN_WITHIN_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Stuck:
    """One reason why something does not go on: how much of it there is, an example, and what shows more.

    `data` are the facts that its text was made of.
    """

    code: str
    text: str
    count: int
    at_least: bool
    goes_on: bool
    queue: str | None
    example: str | None
    command: str
    data: Mapping[str, Any] = field(default_factory=dict)


def stuck_of(
    facts: Facts,
    groups: Sequence[StuckJobs],
    workers: Sequence[Standing],
    wishes: Sequence[WorkerControl],
    known: Knowledge,
) -> list[Stuck]:
    """What needs somebody first, then what goes on by itself; of each the greatest number first."""
    found = [*_stuck_runs(facts), *_stuck_jobs(facts, groups, workers, wishes, known)]
    return sorted(found, key=lambda one: (one.goes_on, -one.count, one.code, one.queue or ""))


def _stuck_jobs(
    facts: Facts,
    groups: Sequence[StuckJobs],
    workers: Sequence[Standing],
    wishes: Sequence[WorkerControl],
    known: Knowledge,
) -> Iterator[Stuck]:
    keys = Counter((group.family.name, group.job.hold_reason) for group in groups if group.kind == "held")
    seen: dict[tuple[str, str, str | None], Stuck] = {}
    for group in groups:
        reason = _reason(_circumstances(group, facts, workers, wishes), known, group)
        if reason is None:
            continue
        name = f"{group.family.name}:{group.job.id}"
        is_cut = keys[group.family.name, group.job.hold_reason] >= KEYS
        told = Stuck(
            reason.code,
            reason.text,
            group.count,
            group.at_least or is_cut,
            reason.code in _GOES_ON,
            group.job.queue,
            name,
            f"qwf explain {name}",
            reason.data,
        )
        # What is the matter with a queue is one matter, and so are its lanes, whatever their keys.
        is_of_key = reason.code == group.job.hold_reason != LIMIT_FULL
        key = (reason.code, group.job.queue, group.job.hold_key if is_of_key else None)
        seen[key] = _both(seen[key], told) if key in seen else told
    yield from seen.values()


def _both(one: Stuck, other: Stuck) -> Stuck:
    """Two groups with one reason: the example is that of the larger."""
    larger = max(one, other, key=lambda each: each.count)
    return Stuck(
        larger.code,
        larger.text,
        one.count + other.count,
        one.at_least or other.at_least,
        larger.goes_on,
        larger.queue,
        larger.example,
        larger.command,
        larger.data,
    )


def _reason(there: Circumstances, known: Knowledge, group: StuckJobs) -> Reason | None:
    """What keeps the example from going on, what needs somebody first; None where it will be next."""
    told = explain(there, known).reasons
    codes = {one.code for one in told}
    if "next" in codes:
        return None
    past = _IS_WELL if codes & _NOBODY_CLAIMS else _IS_WELL | _OF_SOME_WORKERS
    if group.kind == "lapsed":
        reasons = [one for one in told if one.code == "lease_lapsed"]
    else:
        reasons = [one for one in told if one.code not in past]
    if not reasons:
        return None
    first, key = min(reasons, key=lambda one: one.code in _GOES_ON), group.job.hold_key
    # What its text would say of a holder or an installation is not read here.
    if first.code == BINARY_MISSING and key is not None:
        host, program = waited_for(key)
        return Reason(first.code, f"its plugin needs {program}, which is missing on {host}", first.data)
    if first.code == HOST_LOCK and key is not None:
        return Reason(first.code, f"it waits for the host lock {lock_of(key)!r}", first.data)
    return first


def _circumstances(
    group: StuckJobs, facts: Facts, workers: Sequence[Standing], wishes: Sequence[WorkerControl]
) -> Circumstances:
    """The example's, as far as they concern the others of its group too."""
    job = group.job
    return Circumstances(
        family=group.family,
        job=job,
        now=facts.now,
        claimable=job.status == JobStatus.QUEUED,
        due=group.due,
        lapsed=group.lapsed,
        ahead=0,
        workers=[one for one in workers if one.queue == job.queue],
        at_work=[],
        wishes=[wish for wish in wishes if wish.queue in (job.queue, "*")],
        run=None,
        limit=_limit(group),
        binary=None,
        done_to_it=[],
        asked_before=[],
        asked_of_queue=[],
        lock_holders=[],
    )


def _limit(group: StuckJobs) -> Limit | None:
    key = group.job.limit_key
    if key is None:
        return None
    limit = None if group.cap is None else ConcurrencyLimit(key_pattern=key, max_slots=group.cap)
    names = (holder.split(":") for holder in group.holders)
    return Limit(limit, [LimitSlot(job_family=family, job_id=int(number)) for family, number in names])


def _stuck_runs(facts: Facts) -> Iterator[Stuck]:
    due, begin = facts.due, facts.to_begin
    if facts.poisoned.count:
        text = "events were given up after too many tries: `qwf run unpoison RUN` has them tried again"
        yield _of_runs("poisoned", text, facts.poisoned, command="qwf run list --poisoned")
    if facts.failing.count:
        yield _of_runs("event_failing", "acting upon events failed, and is tried again", facts.failing)
    if not facts.orchestrators and (due.count or begin.count):
        text = "no orchestrator is connected to this database: start `qwf orchestrator`"
        yield _of_runs("no_orchestrator", text, due if due.count >= begin.count else begin)
    elif due.count and (due.age_s or 0) > _BEGUN_WITHIN_S:
        yield _of_runs("events_due", "events have not been acted upon yet", due)
    elif begin.count and (begin.age_s or 0) > _BEGUN_WITHIN_S:
        yield _of_runs("not_begun", "no orchestrator has begun these runs yet", begin)
    if facts.inputs.count and facts.inputs.detail is not None:
        run, node = facts.inputs.detail.split(" ", 1)
        text = "nodes wait for somebody's answer: `qwf run submit-input RUN NODE`"
        command = f"qwf explain {run} {node}"
        yield _of_runs("awaiting_input", text, facts.inputs, command=command, example=run, node=node)


def _of_runs(
    code: str,
    text: str,
    fact: Fact,
    *,
    command: str | None = None,
    example: str | None = None,
    node: str | None = None,
) -> Stuck:
    run = example or fact.detail
    shown = command or f"qwf explain {run}"
    data = {} if node is None else {"node": node}
    return Stuck(code, text, fact.count, False, code in _GOES_ON, None, run and f"run:{run}", shown, data)


def json_of(one: Stuck) -> dict[str, Any]:
    """One entry, as `qwf overview --json` has it."""
    return {
        "code": one.code,
        "text": one.text,
        "count": one.count,
        "at_least": one.at_least,
        "goes_on": one.goes_on,
        "queue": one.queue,
        "example": one.example,
        "command": one.command,
    }
