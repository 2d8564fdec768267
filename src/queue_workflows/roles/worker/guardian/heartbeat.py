"""What a worker says of itself: the state of the moment, in heartbeats."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Final

import psutil
import psycopg

from queue_workflows import clock as time
from queue_workflows.engine.execution.guards import HeldJob
from queue_workflows.engine.registry.published_names import PublishedNames
from queue_workflows.gpu.cache import ModelCache
from queue_workflows.repositories.sql.connection import Questions
from queue_workflows.repositories.workers.heartbeats import HeartbeatRepository, Others, Said
from queue_workflows.roles.identity import Identity, versions
from queue_workflows.roles.worker.guardian.held_jobs import HeldJobs
from queue_workflows.settings import Settings
from queue_workflows.states import WorkerState

# A job that lasts so long is named in a heartbeat at once, and so is its end.
_LASTING_S: Final = 1.0


# Of so many jobs a heartbeat says what they wait for, the longest first.
_WAITS_TOLD: Final = 50


def waits_of(held: Sequence[HeldJob]) -> list[dict[str, Any]]:
    """What the jobs in hand wait for inside their own code, and for how many seconds they have."""
    now = time.monotonic()
    waits = sorted(
        [(began, one.job.id, what) for one in held for what, began in one.awaiting],
        key=itemgetter(0),
    )
    return [
        {"job": job_id, "for": what.what.value, "keys": list(what.keys), "s": round(now - began, 1)}
        for began, job_id, what in waits[:_WAITS_TOLD]
    ]


class Telling:
    """The heartbeats of one worker; the guarding thread sends them, any thread may change what they say."""

    def __init__(
        self,
        identity: Identity,
        settings: Settings,
        holdings: HeldJobs,
        models: ModelCache | None = None,
        published: PublishedNames | None = None,
        *,
        slots: int = 1,
    ) -> None:
        self._identity = identity
        self._slots = slots
        self._published = published
        self._told_lacked: tuple[str, ...] = ()
        self._holdings = holdings
        self._models = models
        self._told_models: tuple[str, ...] = ()
        self._every_s = settings.beat_s
        self._state = WorkerState.STARTING
        self._reason: str | None = None
        self._told_job: int | None = None
        self._process = psutil.Process()
        self.due_at = 0.0
        self.control_version = 0
        # The other workers that were about when this one beat last.
        self.others = Others(0, 0)

    @property
    def state(self) -> WorkerState:
        """What it is at; a job that it holds is work, whatever was said before."""
        return self._state_with(bool(self._holdings.all()))

    def doing(self, state: WorkerState, reason: str | None) -> bool:
        """What the next heartbeat says; whether that is worth one of its own."""
        if (state, reason) == (self._state, self._reason):
            return False
        # Between two jobs is not idle: only what lasts is worth a beat of its own.
        lasts = WorkerState.BUSY not in (state, self._state)
        self._state, self._reason = state, reason
        if lasts:
            self.hurry()
        return lasts

    def hurry(self) -> None:
        """Have a heartbeat sent at the next chance."""
        self.due_at = -math.inf

    def is_due(self, now: float) -> bool:
        """Whether there is something to tell."""
        if self._models is not None and self._models.names != self._told_models:
            return True
        if self._published is not None and self._published.lacked != self._told_lacked:
            return True
        return now >= self.due_at or self._told_job != self.lasting_job(now)

    def lasting_job(self, now: float) -> int | None:
        """The job to name in a heartbeat of its own; short ones come and go with the regular beats."""
        held = self._holdings.all()
        return held[0].job.id if held and held[0].started <= now - _LASTING_S else None

    def tell_with(self, questions: Questions, now: float, *, hears: bool) -> Callable[[], None]:
        """Send a heartbeat with other questions; to be called once they are answered."""
        said = self.words(now, hears=hears)
        answer = questions.add(
            HeartbeatRepository(questions.handle).beating(self._identity.worker_id, **said)
        )

        def heard() -> None:
            self.others = answer()

        return heard

    def words(self, now: float, *, hears: bool) -> Said:
        """What a heartbeat of this moment says; of a worker that hears no wake it says that it looks."""
        self.due_at = now + self._every_s
        self._told_job = self.lasting_job(now)
        held, models = self._holdings.all(), self._models
        self._told_models = () if models is None else models.names
        with self._process.oneshot():
            load: dict[str, Any] = {
                "rss_mb": self._process.memory_info().rss >> 20,
                "threads": self._process.num_threads(),
            }
        if self._slots != 1:
            load["slots"] = self._slots
        if waits := waits_of(held):
            load["waits"] = waits
        if not hears:
            load["looks"] = True
        told_versions = versions()
        if (published := self._published) is not None:
            told_versions = told_versions | published.versions
            self._told_lacked = published.lacked
            if self._told_lacked:
                load["lacks"] = list(self._told_lacked)
        return {
            "host_label": self._identity.host_label,
            "queue": self._identity.queue,
            "pid": self._identity.pid,
            "state": self._state_with(bool(held)),
            "state_reason": self._reason,
            "current_job": (held[0].job.family, held[0].job.id) if held else None,
            "jobs_held": len(held),
            "current_model": None if models is None else models.current,
            "cached_models": self._told_models,
            "versions": told_versions,
            "load": load if models is None else load | models.told,
            "control_version": self.control_version,
        }

    def farewell(self, connection: psycopg.Connection[Any]) -> None:
        """Take the heartbeat back."""
        HeartbeatRepository(connection).delete(self._identity.worker_id)

    def _state_with(self, is_busy: bool) -> WorkerState:
        return WorkerState.BUSY if is_busy and self._state is not WorkerState.STOPPING else self._state
