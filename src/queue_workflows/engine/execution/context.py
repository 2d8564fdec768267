"""`ctx`: what a running job knows of itself, and its line to the worker around it.

Three parties meet here, on different threads. The job's function asks (`cancelled`, `fence`) and reports
(`progress`). The worker's guard thread tells it to stop (`stop`) and takes what is to be written
(`take_progress`, `last_beat`). The executor closes it when the function has ended, and from then on a
thread that the function left behind reports to nobody. Nothing here reads or writes the database; what a job
asks for of limits is in `limits/context_part`.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any, ClassVar, Final, NamedTuple, Protocol

from queue_workflows import clock as time
from queue_workflows.engine.execution.workspace_name import workspace_name
from queue_workflows.engine.limits.context_part import Limited
from queue_workflows.engine.limits.wait_loop import refuse_in_event_loop
from queue_workflows.engine.limits.windows import Windows
from queue_workflows.engine.outcomes import Cancelled, Stop
from queue_workflows.errors import LeaseLost, PayloadError
from queue_workflows.host.directories.workspaces import Workspace, workspace
from queue_workflows.payload import check_payload
from queue_workflows.repositories.claims.begins import NO_RULES, Rules
from queue_workflows.repositories.sql.claimed_job import ClaimedJob

PROGRESS_BYTES: Final = 65_536
PROGRESS_DEPTH: Final = 20
WRITE_EVERY_S: Final = 1.0
_LOGGER: Final = logging.getLogger("queue_workflows.job")
_WHY: Final = {
    Stop.STALL: "this job said nothing for too long",
    Stop.WALL_CLOCK: "this job ran for too long",
    Stop.RELEASE: "the worker lets go of this job",
    Stop.CANCEL: "this job was cancelled",
    Stop.LEASE_LOST: "the lease of this job is lost",
}


class FenceToken(NamedTuple):
    """One attempt of one job; a write for it is valid only while the row still names all four."""

    family: str
    job_id: int
    attempt: int
    worker_id: str


class MakesDurable(Protocol):
    """Puts a claim on disk, with what its function's registration says where that is given.

    Whether the lease is still ours.
    """

    def __call__(self, job: ClaimedJob, rules: Rules | None = None, /) -> bool: ...


class Loading(NamedTuple):
    """The model that is being loaded for a job, since when, and how long that may take."""

    model: str
    since: float
    timeout_s: float

    @property
    def until(self) -> float:
        """When it is given up."""
        return self.since + self.timeout_s


class JobContext(Limited):
    """The facts of the running attempt, its fence, its progress, and whether it shall stop."""

    # Of the class until something is said or asked: a worker makes some ten thousand of these a second.
    last_beat: float | None = None
    _fence: FenceToken | None = None
    _fencing: threading.Lock | None = None
    _stop: Stop | None = None
    _stop_reason: str = ""
    _on_stop: tuple[Callable[[], None], ...] = ()
    _progress: str | None = None
    _taken_at: float = -math.inf
    _closed: bool = False
    # While the worker loads the model, and since when it has it; on the monotonic clock.
    loading: Loading | None = None
    # Whether its function has begun, and may not begin again.
    has_begun_for_good: bool = False
    ready_at: float = -math.inf
    # How long it may take at least, as something of its own ends it by then.
    takes_s: float = 0.0
    # It has begun, and may go on without its lease while that cannot be renewed.
    survives_outage: bool = False
    _workspaces: tuple[Workspace, ...] = ()
    # Held until the attempt has to stop; made by the first thread that sleeps.
    _running: threading.Lock | None = None
    _own_lock: threading.Lock | None = None
    # For all of them: around the making of such locks, and around what is called when an attempt has to stop.
    _making: ClassVar[threading.Lock] = threading.Lock()

    def __init__(
        self,
        job: ClaimedJob,
        *,
        family: str,
        make_durable: MakesDurable,
        on_progress: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        model: Any = None,
        windows: Windows | None = None,
    ) -> None:
        """`family` is a key of `states.MOVES`.

        `make_durable` renews the lease with a synchronous commit and says whether it is still ours;
        `on_progress` is called when there is something new to take, from the job's own thread; `windows` are
        the worker's.
        """
        self.job: Any = job
        self.family = family
        self.model = model
        self._make_durable = make_durable
        self._on_progress = on_progress
        self._windows = windows
        self._clock = clock
        if job.cancel_requested_at is not None:
            self.stop(Stop.CANCEL)

    @property
    def _lock(self) -> threading.Lock:
        """A lock made by the first thread that needs it, as hardly a short job does."""
        if self._own_lock is None:
            with self._making:
                self._own_lock = self._own_lock or threading.Lock()
        return self._own_lock

    @property
    def id(self) -> int:
        """The job's id."""
        return int(self.job.id)

    @property
    def attempt(self) -> int:
        """The number of this claim; never the same twice for one job."""
        return int(self.job.attempt)

    @property
    def generation(self) -> int:
        """1, and one more for each time an operator opened the job again."""
        return int(self.job.generation)

    @property
    def queue(self) -> str:
        """The queue that the job was claimed from."""
        return str(self.job.queue)

    @property
    def worker_id(self) -> str:
        """The worker that runs this attempt."""
        return str(self.job.claimed_by)

    @property
    def is_last_attempt(self) -> bool:
        """Whether a failure now would end the job as failed."""
        return bool(self.job.failures + 1 >= self.job.max_attempts)

    @property
    def task_name(self) -> str | None:
        """The task of an ingest job."""
        return getattr(self.job, "task_name", None)

    @property
    def run_id(self) -> uuid.UUID | None:
        """The run of a node job."""
        return getattr(self.job, "run_id", None)

    @property
    def node_id(self) -> str | None:
        """The node of a node job."""
        return getattr(self.job, "node_id", None)

    @property
    def fence(self) -> FenceToken:
        """The token for your own rows: store it with them, and refuse a write with an older token.

        A claim may be committed asynchronously; the first use makes it durable (one round trip, so off the
        event loop in async code), or no crash could be told from a second claim with the same number.
        `LeaseLost` if another attempt owns the job by now.
        """
        with self._lock:
            fencing = self._fencing = self._fencing or threading.Lock()
        with fencing:
            if self._stop is Stop.LEASE_LOST or (self._closed and self._fence is None):
                raise self._lease_lost()
            if self._fence is None:
                if not self._make_durable(self.job):
                    self.stop(Stop.LEASE_LOST)
                    raise self._lease_lost()
                self._fence = FenceToken(self.family, self.id, self.attempt, self.worker_id)
            return self._fence

    @property
    def cancelled(self) -> bool:
        """Whether this attempt has to stop: cancelled, let go by its worker, or its lease lost."""
        return self._stop is not None

    def raise_if_cancelled(self) -> None:
        """Raise `Cancelled` if this attempt has to stop; call it wherever stopping is safe."""
        if self._stop is not None:
            raise Cancelled(self.stop_reason)

    def sleep(self, seconds: float) -> None:
        """Wait, and raise `Cancelled` as soon as this attempt has to stop; waiting is not stalling."""
        refuse_in_event_loop("ctx.sleep", "await asyncio.sleep(…)")
        if self.last_beat is not None:
            # The stall watchdog counts from the end of the wait.
            self.last_beat = max(self.last_beat, self._clock() + max(seconds, 0.0))
        with self._lock:
            if self._running is None:
                self._running = threading.Lock()
                if self._stop is None:
                    self._running.acquire()
            running = self._running
        if running.acquire(timeout=max(seconds, 0.0)):
            running.release()
        self.raise_if_cancelled()

    def progress(self, fraction: float | None = None, message: str | None = None, **data: Any) -> None:
        """Say how far the job is: a fraction from 0 to 1, a message, and whatever JSON belongs to it.

        Each call is a beat for the stall watchdog, which the first one arms. Written are the latest values,
        about once a second, and the last ones with the end of the job. Without arguments it is only a beat.
        """
        text = _progress_json(fraction, message, data)
        with self._lock:
            if self._closed:
                return
            self.last_beat = max(self.last_beat or -math.inf, self._clock())
            if text is None:
                return
            is_news = self._progress is None
            self._progress = text
        if is_news and self._on_progress is not None:
            self._on_progress()

    def workspace(self, *, share: Mapping[str, str | os.PathLike[str]] | None = None) -> Workspace:
        """The directory of this job's run on this machine, with links to what is shared.

        All jobs of a run have it; one without a run has its own. Either is the same for each attempt; give a
        command its `export()`, and its path as `cwd` if you like. It is held until the function has ended.
        """
        found = workspace(workspace_name(self.job), share=share)
        with self._lock:
            if not self._closed:
                self._workspaces = (*self._workspaces, found)
                return found
        found.close()
        raise Cancelled("the function of this job has ended")

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that puts the job's fields into its records."""
        fields = {
            "family": self.family,
            "job_id": self.id,
            "attempt": self.attempt,
            "queue": self.queue,
            "worker_id": self.worker_id,
            "task_name": self.task_name,
            "run_id": self.run_id,
            "node_id": self.node_id,
        }
        return _JobLogger(_LOGGER, {name: value for name, value in fields.items() if value is not None})

    # What follows is for the worker around the job.

    def must_be_begun(self, rules: Rules) -> bool:
        """Whether it has to be in the row that the function begins."""
        job = self.job
        # Nearly all registrations say nothing of that.
        is_plain = not job.at_most_once and (rules == NO_RULES or not rules.say_more_than(job))
        return not is_plain or bool(job.suspect)

    def begin(self, rules: Rules) -> None:
        """Have it in the row that the function begins, which takes a question, or raise `LeaseLost`."""
        job = self.job
        if not self._make_durable(job, rules):
            self.stop(Stop.LEASE_LOST)
            raise self._lease_lost()
        self._fence = FenceToken(self.family, self.id, self.attempt, self.worker_id)
        if job.at_most_once or rules.at_most_once:
            self.has_begun_for_good = True
            job.max_attempts = 1

    @property
    def stopping(self) -> Stop | None:
        """Why this attempt has to stop, if it has to."""
        return self._stop

    @property
    def stop_reason(self) -> str:
        """The reason in words: those that `stop` was given, else what the kind of stop means."""
        return self._stop_reason or (_WHY[self._stop] if self._stop is not None else "")

    def stop(self, why: Stop, reason: str = "") -> None:
        """Tell the attempt to stop, from any thread; a weaker reason than the one it has changes nothing."""
        with self._lock, self._making:
            if self._stop is not None and why <= self._stop:
                return
            is_first = self._stop is None
            self._stop, self._stop_reason = why, reason
            if is_first and self._running is not None:
                # Not before: what this wakes looks at once whether it has to stop.
                self._running.release()
            interrupts = self._on_stop
        for interrupt in interrupts:
            interrupt()

    @contextmanager
    def interrupted_by(self, interrupt: Callable[[], None]) -> Iterator[None]:
        """Have `interrupt` called when the attempt has to stop; at once if it has to already."""
        self.add_interrupt(interrupt)
        try:
            yield
        finally:
            self.remove_interrupt(interrupt)

    def add_interrupt(self, interrupt: Callable[[], None]) -> None:
        """`interrupted_by`, from here on."""
        with self._making:
            self._on_stop = (*self._on_stop, interrupt)
            late = self._stop is not None
        if late:
            interrupt()

    def remove_interrupt(self, interrupt: Callable[[], None]) -> None:
        """Call it no more."""
        with self._making:
            if self._on_stop == (interrupt,):
                self._on_stop = ()
                return
            left = list(self._on_stop)
            left.remove(interrupt)
            self._on_stop = tuple(left)

    def take_progress(self, *, now: float, final: bool = False) -> str | None:
        """The JSON to write, once: at most every second until `final`, which belongs to the job's end."""
        if self._progress is None:
            return None
        with self._lock:
            if self._progress is None or (now - self._taken_at < WRITE_EVERY_S and not final):
                return None
            text, self._progress, self._taken_at = self._progress, None, now
            return text

    def close(self) -> None:
        """The function has ended; what its threads still report is not its job's any more."""
        self._closed = True
        # A thread that made no lock before that was true will see it; one that did is waited for.
        if self._own_lock is not None:
            with self._own_lock:
                pass
        for each in self._workspaces:
            each.close()

    def _lease_lost(self) -> LeaseLost:
        return LeaseLost(self.family, self.id, self.attempt)


class _JobLogger(logging.LoggerAdapter[logging.Logger]):
    """Keeps what the caller passes as `extra`, which the base class would drop."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


def _progress_json(fraction: float | None, message: str | None, data: dict[str, Any]) -> str | None:
    if fraction is not None:
        sound = isinstance(fraction, int | float) and not isinstance(fraction, bool)
        if not sound or not 0 <= fraction <= 1:
            raise PayloadError(
                f"progress: the fraction must be a number from 0 to 1, not {fraction!r:.80}",
                path="fraction",
                advice="name anything else, as in progress(0.5, page=7)",
            )
        data["fraction"] = float(fraction)
    if message is not None:
        if not isinstance(message, str):
            raise PayloadError(
                f"progress: the message must be a string, not {type(message).__name__}", path="message"
            )
        data["message"] = message
    return check_payload(data, max_bytes=PROGRESS_BYTES, max_depth=PROGRESS_DEPTH) if data else None
