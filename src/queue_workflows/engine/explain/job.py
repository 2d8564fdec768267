"""Why a job does not run, what it is at, or how it ended: from its circumstances to sentences.

Pure: `repositories/explain/explain_job` reads the circumstances, here they are judged. Of all reasons that
hold each is told, the one that has to go first at the beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from queue_workflows.config import HOOKS_QUEUE, RESERVED_QUEUES
from queue_workflows.engine.explain.history import (
    Event,
    Reason,
    asked_of,
    ends,
    held_for,
    history,
    length,
    moment,
    of_error,
    waits,
)
from queue_workflows.engine.explain.hosts import NOT_SHARED, host_gone, host_of, not_shared, of_its_host
from queue_workflows.engine.explain.locks import held_lock, without_lock
from queue_workflows.engine.explain.models import cannot_load, of_model
from queue_workflows.engine.explain.parked import parked
from queue_workflows.engine.explain.versions import data_of, nobody_knows, text_of
from queue_workflows.engine.limits.wait_loop import Wait
from queue_workflows.engine.node_inputs.loaded_model import UNKNOWN_MODEL
from queue_workflows.engine.registry.node_modules import UNKNOWN_MODULE
from queue_workflows.engine.registry.tasks import UNKNOWN_TASK
from queue_workflows.models import IngestJob, WorkerControl, WorkflowNodeJob
from queue_workflows.repositories.claims.by_host_lock import HOST_LOCK
from queue_workflows.repositories.durable.waits import PARKED
from queue_workflows.repositories.explain.explain_job import COUNTED_AHEAD, Circumstances, Limit
from queue_workflows.repositories.hooks.binaries import BINARY_MISSING, waited_for
from queue_workflows.repositories.limits.lanes import LIMIT_FULL
from queue_workflows.repositories.sql.families import NODE
from queue_workflows.repositories.workers.control import Control
from queue_workflows.repositories.workers.obedience import Standing
from queue_workflows.states import JOB_TERMINAL, RUN_TERMINAL, DesiredState, JobStatus, WorkerState

# States in which a worker claims, or will when it is through with its job.
WORKING: Final = frozenset({WorkerState.STARTING, WorkerState.IDLE, WorkerState.BUSY})
# What is asked of some workers need not concern others; that nobody is left is a reason of its own.
_SOME_WORKERS: Final = "queue_"
# Of so many holders of a limit each is named.
_NAMED: Final = 5
_UNKNOWN: Final = {
    UNKNOWN_TASK: "no worker that claimed it knows the task {key!r}: start one that does, it then runs at "
    "once",
    UNKNOWN_MODULE: "no worker that claimed it knows the node module {key!r}: start one that does",
}
_UNKNOWN_HOOK: Final = (
    "no worker that claimed it has the script of the hook {key!r}: start one with QWF_HOOK_DIRS naming the"
    " directory that has it, or put it into one of those"
)


@dataclass(frozen=True, slots=True)
class Explanation:
    """What to tell of a job."""

    headline: str
    reasons: list[Reason]
    history: list[Event]


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What the reasons need beside the circumstances; `schema` is why workers would refuse the schema."""

    stale_s: float
    poll_s: float
    schema: str | None = None
    yield_s: float = 0.0


def explain(there: Circumstances, known: Knowledge) -> Explanation:
    """The answer to `qwf explain`."""
    status = JobStatus(there.job.status)
    tellers: dict[JobStatus, Callable[[Circumstances, Knowledge], Iterator[Reason]]] = {
        JobStatus.QUEUED: _queued,
        JobStatus.SCHEDULED: _scheduled,
        JobStatus.RUNNING: _running,
        JobStatus.AWAITING_INPUT: _awaiting,
    }
    reasons = [*_of_the_run(there), *tellers.get(status, _ended)(there, known)]
    return Explanation(_headline(there, status), reasons, history(there))


def title_of(job: IngestJob | WorkflowNodeJob) -> str:
    """What a job is called: its task, or its node with the element that it is for."""
    if isinstance(job, IngestJob):
        return job.task_name
    element = "" if job.map_index < 0 else f"[{job.map_index}]"
    return f"{job.node_id}{element} of run {job.run_id}"


def _headline(there: Circumstances, status: JobStatus) -> str:
    job = there.job
    since = job.finished_at or (job.started_at if status is JobStatus.RUNNING else None)
    when = f" since {moment(since)}" if since else ""
    return f"{there.family.name}:{job.id} {title_of(job)} on {job.queue} is {status}{when}"


# Why it waits.


def _queued(there: Circumstances, known: Knowledge) -> Iterator[Reason]:
    found = [*_nobody_may(there, known)]
    if (unknown := nobody_knows(there)) is not None:
        found.append(unknown)
    yield from found
    if there.job.suspect:
        text = "a worker died while it ran: it is claimed alone, and after all jobs that are not suspect"
        if there.job.queue == HOOKS_QUEUE:
            text = "its workers died while they held several jobs: it is claimed alone from now on"
        if getattr(there.job, "background", False):
            text = "its workers died while it ran beside others: it begins when none of those is on trial"
        yield Reason("suspect", text, {"crash_count": there.job.crash_count})
    yield from of_model(there, stale_s=known.stale_s, yield_s=known.yield_s)
    if there.ahead:
        before = _jobs(there.ahead, there.counted_ahead)
        yield Reason("behind", f"{before} of the queue before it", {"ahead": there.ahead})
    elif there.claimable and all(reason.code.startswith(_SOME_WORKERS) for reason in found):
        yield Reason("next", f"it is next: a free worker claims it within its poll ({known.poll_s:g} s)")
    yield from _full_limit(there)
    yield from held_lock(there)


def _jobs(ahead: int, counted: int = COUNTED_AHEAD) -> str:
    if ahead > counted:
        return f"more than {counted:,} jobs"
    return "1 job" if ahead == 1 else f"{ahead:,} jobs"


def _scheduled(there: Circumstances, known: Knowledge) -> Iterator[Reason]:
    job = there.job
    if job.hold_reason in PARKED:
        yield parked(there)
    elif job.hold_reason is not None:
        yield _held(there)
    else:
        yield _for_later(there)
    if there.due:
        yield Reason("due", "it is due: any living worker puts it into the queue within about a second")
    yield from _nobody_may(there, known)


def _for_later(there: Circumstances) -> Reason:
    """By what its last attempt left: a failure, the wish to be run again, or nothing as there was none."""
    job, data = there.job, {"run_at": there.job.run_at}
    if job.attempt == 0:
        return Reason("scheduled", f"it is for later: {_when(there)}", data)
    last = next((entry for entry in ends(job)[-1:] if entry.get("attempt") == job.attempt), None)
    if last is None or last.get("kind") == "retry_after":
        why, said = (f": {last['message']}", {"message": last["message"]}) if last else ("", {})
        return Reason("retry_after", f"it asked to be run again {_when(there)}{why}", data | said)
    counted = f"failure {job.failures} of {job.max_attempts}" if job.failures else "nothing was counted"
    text = f"{counted}: it is tried again {_when(there)}"
    return Reason("retry", text, data | {"last_error": of_error(last)})


def _when(there: Circumstances) -> str:
    left = (there.job.run_at - there.now).total_seconds()
    return f"at {moment(there.job.run_at)}" + (f", in {timedelta(seconds=round(left))}" if left > 0 else "")


# What a hold says that is about one host, by its reason.
_HELD_BY_HOST: Final[Mapping[str, Callable[..., Reason]]] = {HOST_LOCK: without_lock, NOT_SHARED: not_shared}


def _held(there: Circumstances) -> Reason:
    job = there.job
    reason, key = job.hold_reason or "", job.hold_key
    data = {"hold_reason": reason, "hold_key": key, "run_at": job.run_at}
    if reason in _UNKNOWN:
        return _unknown(there, reason, key, data)
    if reason == UNKNOWN_MODEL:
        return Reason(reason, cannot_load(key), data)
    if reason == LIMIT_FULL and there.limit is not None and key == job.limit_key:
        return _in_lane(there.limit, str(key), data)
    if key is not None and reason in _HELD_BY_HOST:
        return _HELD_BY_HOST[reason](there, key, data, looked_at=_when(there))
    if reason == BINARY_MISSING:
        return _without_binary(there, str(key), data)
    return Reason(reason, f"it is on hold: {held_for(reason, key)}; looked at again {_when(there)}", data)


def _unknown(there: Circumstances, reason: str, key: str | None, data: dict[str, Any]) -> Reason:
    """What it takes is known to no worker that claimed it; and to which that did not, where that was read."""
    if reason == UNKNOWN_MODULE and there.job.queue == HOOKS_QUEUE:
        return Reason(reason, _UNKNOWN_HOOK.format(key=key), data)
    if there.knowing is not None:
        return Reason(reason, text_of(reason, key, there.knowing), data | data_of(there.knowing))
    return Reason(reason, _UNKNOWN[reason].format(key=key), data)


def _without_binary(there: Circumstances, key: str, data: dict[str, Any]) -> Reason:
    """The job goes on when its program is there; which worker installs it, or why none could."""
    (host_label, name), binary = waited_for(key), there.binary
    why = "nobody has installed it yet"
    if binary is not None:
        why = f"{binary.claimed_by} installs it" if binary.claimed_by else binary.error or why
    text = (
        f"its plugin needs {name}, which is missing on {host_label}: {why}; it goes on when it is there, "
        f"looked at again {_when(there)} — `qwf binaries ensure {name}` on {host_label}"
    )
    return Reason(BINARY_MISSING, text, data | {"binary": name, "host_label": host_label})


def _in_lane(limit: Limit, key: str, data: dict[str, Any]) -> Reason:
    """Beside the queue until there is room: its place among those of its key, and what they wait for."""
    behind = (
        "it is the next of its key" if limit.before == 0 else f"{_jobs(limit.before)} of its key before it"
    )
    why = f"{_taken(limit)}, {behind}"
    if limit.limit is None:
        why = f"the key {key!r} has no limit, but enough of its jobs in the queue already: {behind}"
    elif _is_full(limit):
        why = f"the limit {key!r} is full: {why}"
    else:
        why = f"it comes into the queue within about a second, as the limit {key!r} has room: {why}"
    return Reason(LIMIT_FULL, why, data | {"holders": _holders(limit), "before": limit.before})


def _full_limit(there: Circumstances) -> Iterator[Reason]:
    """What a job in the queue will meet when it is claimed, as things are."""
    if there.limit is not None and _is_full(there.limit):
        text = f"the limit {there.job.limit_key!r} is full: {_taken(there.limit)}"
        data = {"limit_key": there.job.limit_key, "holders": _holders(there.limit)}
        yield Reason(LIMIT_FULL, text, data)


def _is_full(limit: Limit) -> bool:
    return limit.limit is not None and len(limit.slots) >= limit.limit.max_slots


def _holders(limit: Limit) -> list[str]:
    return [f"{slot.job_family}:{slot.job_id}" for slot in limit.slots]


def _taken(limit: Limit) -> str:
    holders = _holders(limit)
    others = " and others" if len(holders) > _NAMED else ""
    by = f", held by {', '.join(holders[:_NAMED])}{others}" if holders else ""
    most = limit.limit.max_slots if limit.limit else 0
    if most == 0:
        return "it is closed, its cap is 0"
    return f"{len(holders)} of {most} slots are taken{by}{_lowered(limit)}"


def _lowered(limit: Limit) -> str:
    """What is said of a cap that gives way to a server."""
    if limit.adapts_from is None:
        return ""
    return (
        f"; its cap is lowered from {limit.adapts_from}, as its server refuses more, and grows back by itself"
    )


def _of_the_run(there: Circumstances) -> Iterator[Reason]:
    run = there.run
    if run is None or there.job.status in JOB_TERMINAL:
        return
    if run.status in RUN_TERMINAL:
        yield Reason("run_over", f"its run is {run.status}", {"run_id": run.id})
    elif run.cancel_requested_at is not None:
        why = f": {run.cancel_reason}" if run.cancel_reason else ""
        data = {"run_id": run.id, "cancel_reason": run.cancel_reason}
        yield Reason("run_cancelled", f"its run is being cancelled{why}", data)


def _nobody_may(there: Circumstances, known: Knowledge) -> Iterator[Reason]:
    """What keeps every worker of the queue from claiming anything, this job or another."""
    if known.schema is not None:
        yield Reason("schema_refused", f"workers of this version refuse the database: {known.schema}")
    if there.family is NODE and there.job.queue not in RESERVED_QUEUES:
        queues = ", ".join(sorted(RESERVED_QUEUES))
        text = f"workers of {there.job.queue} take ingest jobs; node jobs are claimed from {queues}"
        yield Reason("wrong_queue", text)
    live = [one for one in of_its_host(there) if one.age_s <= known.stale_s and not one.is_quarantined]
    free = [one for one in live if one.state in WORKING and _is_on(one.control)]
    yield from map(_blocking, there.wishes)
    yield from map(_put_aside, (one for one in there.workers if one.is_quarantined))
    if not live:
        yield _no_worker(there) if (host := host_of(there)) is None else host_gone(there, host)
    elif not free:
        states = ", ".join(sorted({_state_of(one) for one in live}))
        nobody = (
            "its only worker claims nothing"
            if len(live) == 1
            else f"none of {len(live)} workers claims anything"
        )
        text = f"{nobody}: {states}"
        why = "; ".join(sorted({one.state_reason for one in live if one.state_reason})) or None
        data = {"workers": [one.worker_id for one in live], "state_reason": why}
        yield Reason("no_free_worker", text, data)
    elif there.job.status == JobStatus.QUEUED and all(_has_a_job(one, there) for one in free):
        yield _all_busy(there, free)


def _state_of(worker: Standing) -> str:
    return str(worker.state) + (f" ({worker.state_reason})" if worker.state_reason else "")


def _has_a_job(worker: Standing, there: Circumstances) -> bool:
    """By the rows, as the next beat may be seconds away, or by the beat, for jobs of another queue."""
    return worker.jobs_held > 0 or any(one.worker_id == worker.worker_id for one in there.at_work)


def _no_worker(there: Circumstances) -> Reason:
    queue = there.job.queue
    if workers := [one for one in there.workers if not one.is_quarantined]:
        last = min(workers, key=lambda one: one.age_s)
        seen = f"; {last.worker_id} was seen last, {last.age_s:.0f} s ago"
    else:
        seen = ""
    text = f"no live worker serves the queue {queue}: start `qwf worker --queue {queue}`{seen}"
    return Reason("no_worker", text, {"queue": queue})


def _all_busy(there: Circumstances, free: list[Standing]) -> Reason:
    names = {one.worker_id for one in free}
    at_work = [one for one in there.at_work if one.worker_id in names]
    longest = at_work[0] if at_work else None
    since = (
        f", the longest since {moment(longest.since)} at {there.family.name}:{longest.job_id}"
        if longest
        else ""
    )
    count = "its worker is" if len(free) == 1 else f"all {len(free)} workers of the queue are"
    jobs = [f"{there.family.name}:{one.job_id}" for one in at_work]
    return Reason("all_busy", f"{count} busy{since}", {"jobs": jobs})


def _blocking(wish: WorkerControl) -> Reason:
    until = f" until {moment(wish.expires_at)}" if wish.expires_at else ""
    why = f": {wish.reason}" if wish.reason else ""
    desired = DesiredState(wish.desired)
    text = (
        f"{asked_of(wish.host_label, desired)} by {wish.actor} since {moment(wish.updated_at)}{until}{why}"
        f" — `qwf workers on '{wish.host_label}' '{wish.queue}'` takes it back"
    )
    data = {"host_label": wish.host_label, "queue": wish.queue, "actor": wish.actor, "reason": wish.reason}
    return Reason(f"queue_{desired}", text, data | {"expires_at": wish.expires_at})


def _put_aside(device: Standing) -> Reason:
    name = device.load.get("device")
    text = (
        f"no worker is started on {name} of {device.host_label}, which is quarantined: {device.state_reason}"
        f" — `qwf workers on {device.host_label} {device.queue}` has it tried again"
    )
    data = {"host_label": device.host_label, "device": name, "state_reason": device.state_reason}
    return Reason("device_quarantined", text, data)


def _is_on(control: Control | None) -> bool:
    return control is None or control.desired is DesiredState.ON


# What it is at, and how it ended.


def _running(there: Circumstances, known: Knowledge) -> Iterator[Reason]:
    job = there.job
    data = {"worker_id": job.claimed_by, "since": job.started_at, "lease_expires_at": job.lease_expires_at}
    text = f"attempt {job.attempt} runs on {job.claimed_by}"
    if job.lease_expires_at is not None:
        text += f", its lease holds until {moment(job.lease_expires_at)}"
    yield Reason("running", text, data | {"attempt": job.attempt})
    if job.progress is not None:
        yield Reason("progress", f"it last said: {_shown(job.progress)}", {"progress": job.progress})
    if job.cancel_requested_at is not None:
        yield Reason("cancelling", f"it was asked to stop at {moment(job.cancel_requested_at)}")
    holder = next((one for one in there.workers if one.worker_id == job.claimed_by), None)
    if there.lapsed:
        yield Reason("lease_lapsed", "its lease has lapsed: any living worker takes it back within seconds")
    elif holder is None or holder.age_s > known.stale_s:
        seen = "never beat" if holder is None else f"was not heard of for {holder.age_s:.0f} s"
        yield Reason(
            "worker_silent", f"its worker {seen}: without a sign it is taken back when its lease lapses"
        )
    else:
        yield from _waiting_inside(job.id, holder)
    yield from waits(there)


def _waiting_inside(job_id: int, holder: Standing) -> Iterator[Reason]:
    """What its function waits for, as its worker said a few seconds ago."""
    for wait in holder.load.get("waits", ()):
        if wait["job"] != job_id:
            continue
        keys = " and ".join(map(repr, wait["keys"]))
        waited_s = wait["s"] + holder.age_s
        if wait["for"] == Wait.RATE.value:
            text = f"it waits for tokens of the rate {keys}, for {waited_s:.0f} s: `qwf limits list` shows it"
        elif wait["for"] == Wait.HOST_LOCK.value:
            text = f"it waits for the host lock {keys}, for {waited_s:.0f} s: `lslocks` there shows it"
        else:
            text = f"it waits for a window of {keys}, for {waited_s:.0f} s: `qwf limits list` shows its jobs"
        yield Reason(f"waits_for_{wait['for']}", text, {"keys": wait["keys"], "waited_s": waited_s})


def _awaiting(there: Circumstances, _known: Knowledge) -> Iterator[Reason]:
    job = there.job
    expires_at = getattr(job, "expires_at", None)
    kind = getattr(job, "kind", "input")
    if kind == "wait":
        yield Reason("wait", f"it waits until {moment(expires_at)}", {"until": expires_at})
    elif kind == "descendants":
        yield Reason("descendants", "it waits until all runs below its own are over")
    elif kind == "workflow":
        yield Reason("child_run", "it waits for the run that it started: `qwf explain` of its run names it")
    elif expires_at is not None and expires_at <= there.now:
        yield Reason("expired", f"nobody answered it until {moment(expires_at)}: an orchestrator ends it")
    else:
        until = f", until {moment(expires_at)}" if expires_at else ""
        yield Reason("awaiting_input", f"it waits for somebody's answer{until}: `qwf run submit-input`")


def _ended(there: Circumstances, _known: Knowledge) -> Iterator[Reason]:
    job = there.job
    count = "attempt" if job.attempt == 1 else "attempts"
    tried = f"{job.attempt} {count}, {job.failures} of {job.max_attempts} failures, {job.crash_count} crashes"
    data = {
        "attempt": job.attempt,
        "generation": job.generation,
        "failures": job.failures,
        "crash_count": job.crash_count,
        "suspect": job.suspect,
        "finished_at": job.finished_at,
    }
    by = f", the last on {job.claimed_by}" if job.claimed_by else ""
    yield Reason("ended", f"{job.status} at {moment(job.finished_at)} after {tried}{by}", data)
    if (message := _last_message(there)) is not None and job.status != JobStatus.COMPLETED:
        yield Reason("last_error", message, {"error": job.errors[-1]})
    yield from waits(there)
    if job.started_at is not None and job.claimed_by is not None:
        took_s = ((job.finished_at or there.now) - job.started_at).total_seconds()
        yield Reason("took", f"its last attempt took {length(took_s)}", {"took_s": took_s})


def _last_message(there: Circumstances) -> str | None:
    return of_error(there.job.errors[-1]) if there.job.errors else None


def _shown(progress: dict[str, Any]) -> str:
    """Its message and its fraction as people read them, and whatever else it has by name."""
    rest = dict(progress)
    message, fraction = rest.pop("message", None), rest.pop("fraction", None)
    told = [str(message)] if message else []
    if isinstance(fraction, (int, float)):
        told.append(f"{int(fraction * 100)} %")
    return ", ".join(told + [f"{name} {value}" for name, value in rest.items()])
