"""What happened to a job until now: its history, and what it waited for before its last attempt.

Pure, as the rest of `qwf explain`. Everything is from the row, where attempts leave their errors and past
holds, and from the audit log.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from queue_workflows.repositories.explain.explain_job import Circumstances, waited_until
from queue_workflows.repositories.sql.families import GIVEN_BACK, INGEST, OVER
from queue_workflows.states import DesiredState

if TYPE_CHECKING:
    from queue_workflows.models import AuditLog, IngestJob, WorkflowNodeJob

_SAME_MOMENT: Final = timedelta(seconds=1)
_FAILED: Final = re.compile(r"attempt \S+ on ")
_DONE: Final = re.compile(r"[a-z_.]+( \(.*?\))? by .+: ", re.DOTALL)
ASKED: Final = {DesiredState.PAUSE: "paused", DesiredState.OFF: "switched off", DesiredState.ON: "on"}


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that keeps or kept a job from running, or is worth knowing of it; `code` is for programs."""

    code: str
    text: str
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a job."""

    at: datetime
    text: str


def moment(at: datetime | None) -> str:
    """A point in time for a sentence, in UTC."""
    return "-" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"


def length(seconds: float) -> str:
    """A length of time for a sentence: in tenths of a second, or in thousandths where it is none of these."""
    return f"{seconds:.1f} s" if seconds >= 0.05 else f"{seconds:.3f} s"


def of_error(entry: dict[str, Any]) -> str:
    """An entry of a job's errors in a line."""
    kind = entry.get("type") or entry.get("kind") or "error"
    return f"{kind}: {entry.get('message', '')}".rstrip(": ")


def quotes_operator(event: Event) -> bool:
    """Whether its sentence has the reason in it that an operator gave."""
    return _DONE.match(event.text) is not None


def quotes_error(event: Event) -> bool:
    """Whether its sentence has the words of an error in it, which a host app may not want shown."""
    return _FAILED.match(event.text) is not None


def ends(job: IngestJob | WorkflowNodeJob) -> list[dict[str, Any]]:
    """The ends of attempts that are told in its errors; a mark of suspicion is none."""
    return [entry for entry in job.errors if entry.get("kind") != "suspect"]


def held_for(reason: str, key: str | None) -> str:
    """A hold in words."""
    return reason.replace("_", " ") + (f" {key!r}" if key else "")


def asked_of(host_label: str, asked: DesiredState, *, past: bool = False) -> str:
    """What a wish did, and what to: the queue, or its workers on one host."""
    be = ("was", "were") if past else ("is", "are")
    workers = f"the queue {be[0]}" if host_label == "*" else f"its workers on {host_label} {be[1]}"
    return f"{workers} {ASKED[asked]}"


# History.


def history(there: Circumstances) -> list[Event]:
    """What is known to have happened, in order."""
    job = there.job
    events = [Event(job.created_at, "enqueued" if there.family is INGEST else "created")]
    holds = _past_holds(there)
    # A hold that ends sets the time too, and says so itself; an INSERT takes two readings of the clock.
    is_told = any(hold.until >= job.run_at for hold in holds if not hold.is_given_back)
    if not is_told and job.created_at + _SAME_MOMENT < job.run_at <= there.now:
        events.append(Event(job.run_at, "due"))
    for entry in job.errors:
        if "at" in entry:
            what = f"attempt {entry.get('attempt')} on {entry.get('worker_id')}: {of_error(entry)}"
            events.append(Event(datetime.fromisoformat(entry["at"]), what))
    for hold in holds:
        if hold.is_given_back:
            events.append(Event(hold.until, f"attempt {hold.attempt} given back by {hold.key}"))
            continue
        if hold.is_over:
            events.append(Event(hold.since, str(hold.key)))
            continue
        events += [Event(hold.since, f"on hold: {hold.what}"), Event(hold.until, f"hold over: {hold.what}")]
    if job.started_at is not None:
        events.append(Event(job.started_at, f"attempt {job.attempt} claimed"))
    if job.finished_at is not None:
        events.append(Event(job.finished_at, str(job.status)))
    for done in (*there.done_to_it, *there.asked_of_queue):
        where = f" ({done.subject_id})" if done.subject_kind == "worker_control" else ""
        why = f": {done.reason}" if done.reason else ""
        events.append(Event(done.at, f"{done.action}{where} by {done.actor}{why}"))
    return sorted(events, key=lambda event: event.at)


# Why it waited.


def waits(there: Circumstances) -> Iterator[Reason]:
    """What a job that was claimed, or is over, waited for before."""
    yield from (_was_held(hold) for hold in _past_holds(there) if hold.is_hold)
    yield from _was_paused(there)
    job = there.job
    if job.started_at is None or job.claimed_by is None:
        return
    since, is_known = _claimable_since(there)
    waited_s = max(0.0, (job.started_at - since).total_seconds())
    most = "" if is_known else "at most "
    text = f"it could be claimed since {moment(since)} and waited {most}{length(waited_s)} for a worker"
    data = {"claimable_since": since, "claimed_at": job.started_at, "waited_s": waited_s, "exact": is_known}
    yield Reason("waited", text, data)


@dataclass(frozen=True, slots=True)
class _Hold:
    reason: str
    key: str | None
    since: datetime
    until: datetime
    times: int
    attempt: int

    @property
    def what(self) -> str:
        return held_for(self.reason, self.key)

    @property
    def is_given_back(self) -> bool:
        return self.reason == GIVEN_BACK

    @property
    def is_over(self) -> bool:
        """Whether it is the time in which the job was over until it was retried."""
        return self.reason == OVER

    @property
    def is_hold(self) -> bool:
        return not (self.is_given_back or self.is_over)


def _past_holds(there: Circumstances) -> list[_Hold]:
    return [
        _Hold(
            entry["reason"],
            entry["key"],
            datetime.fromisoformat(entry["since"]),
            datetime.fromisoformat(entry["until"]),
            entry["times"],
            entry["attempt"],
        )
        for entry in there.job.past_holds or ()
    ]


def _was_held(hold: _Hold) -> Reason:
    often = "" if hold.times == 1 else f", {hold.times} times"
    text = f"it was on hold from {moment(hold.since)} to {moment(hold.until)}{often}: {hold.what}"
    data = {"hold_reason": hold.reason, "hold_key": hold.key, "since": hold.since, "until": hold.until}
    return Reason("was_held", text, data | {"times": hold.times})


def _claimable_since(there: Circumstances) -> tuple[datetime, bool]:
    """Since when the last attempt could be claimed, as far as the traces go; whether they go as far as that.

    An attempt that was given back leaves none, so what is known after it is from before it.
    """
    job = there.job
    started = job.started_at or there.now
    holds, errors = _past_holds(there), ends(job)
    known = [job.created_at, job.run_at, *(hold.until for hold in holds)]
    known += [datetime.fromisoformat(entry["at"]) for entry in errors if "at" in entry]
    traced = {hold.attempt for hold in holds} | {entry.get("attempt") for entry in errors}
    since = max((at for at in known if at <= started), default=started)
    return since, job.attempt == 1 or job.attempt - 1 in traced


@dataclass(frozen=True, slots=True)
class Wish:
    """What was asked of workers, by which entry of the log, and until when it held; None if it goes on."""

    asked: DesiredState
    set_by: AuditLog
    until: datetime | None

    @property
    def host_label(self) -> str:
        """The host that it is about, `*` for any."""
        return self.set_by.subject_id.partition(" ")[0]


def _was_paused(there: Circumstances) -> Iterator[Reason]:
    """What was asked of workers of the queue, and held at some time while it waited."""
    for wish in _felt(there):
        span = f"since {moment(wish.set_by.at)}" + (f" until {moment(wish.until)}" if wish.until else "")
        why = f": {wish.set_by.reason}" if wish.set_by.reason else ""
        text = f"{asked_of(wish.host_label, wish.asked, past=True)} by {wish.set_by.actor} {span}{why}"
        data = {"asked": wish.asked, "subject": wish.set_by.subject_id, "actor": wish.set_by.actor}
        yield Reason("was_paused", text, data | {"since": wish.set_by.at, "until": wish.until})


def pauses_of(there: Circumstances) -> Iterator[tuple[datetime, datetime | None, str, str, str]]:
    """Each pause of a job's queue while it waited: its beginning and end, in words, what was asked, by which
    operator.
    """
    return pauses(_felt(there))


def pauses(wishes: Iterable[Wish]) -> Iterator[tuple[datetime, datetime | None, str, str, str]]:
    """What `pauses_of` says, of wishes that are about a queue on any host."""
    for wish in wishes:
        if wish.host_label == "*":
            actor, asked = wish.set_by.actor, ASKED[wish.asked]
            yield wish.set_by.at, wish.until, f"{asked} by {actor}", asked, actor


def _felt(there: Circumstances) -> Iterator[Wish]:
    """The wishes that held at some time while the job waited."""
    until = waited_until(there.job) or there.now
    for wish in wishes_of([*there.asked_before, *there.asked_of_queue]):
        if wish.set_by.at < until and (wish.until is None or wish.until > there.job.created_at):
            yield wish


def wishes_of(entries: Iterable[AuditLog]) -> list[Wish]:
    """Each wish with its end: when it was replaced, taken back, or lapsed; None if it goes on."""
    of_subject: dict[str, list[AuditLog]] = {}
    for entry in sorted(entries, key=lambda entry: entry.id):
        of_subject.setdefault(entry.subject_id, []).append(entry)
    wishes = []
    for changes in of_subject.values():
        for change, following in zip(changes, [*changes[1:], None], strict=True):
            asked = DesiredState(change.action.removeprefix("workers."))
            if asked is DesiredState.ON:
                continue
            lapses = change.details.get("expires_at")
            over = [datetime.fromisoformat(lapses)] if lapses else []
            over += [following.at] if following else []
            wishes.append(Wish(asked, change, min(over, default=None)))
    return sorted(wishes, key=lambda wish: wish.set_by.at)
