"""The places of a supervisor's processes: what shall run there, and what does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

from queue_workflows.errors import ExitCode
from queue_workflows.host.processes.launcher import Started
from queue_workflows.host.processes.oom_kills import OomKills
from queue_workflows.roles.heartbeat_pipe import HeartbeatPipe
from queue_workflows.roles.loop import Urgency
from queue_workflows.roles.tree_end_thread import Sweep
from queue_workflows.telemetry.hw.device import Device

# A worker that is to do one job has had that job when its own watchdog ends it.
_LAST_ENDS: Final = {
    "--drain": frozenset({ExitCode.DONE}),
    "--once": frozenset({ExitCode.DONE, ExitCode.WALL_CLOCK, ExitCode.STALL}),
}


# The one queue with workers that have devices.
GPU: Final = "gpu"


@dataclass(frozen=True)
class WorkerSpec:
    """One worker that shall be there: its queue, and options of its own."""

    queue: str
    options: tuple[str, ...] = ()
    # How many jobs share its process, where each could have its own as well.
    shared_by: int = 1
    is_attendant: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """What the log calls it."""
        return self.queue

    @property
    def last_ends(self) -> frozenset[int]:
        """The statuses with which its work is done, so that it is not to be replaced."""
        return frozenset().union(*(_LAST_ENDS.get(option, ()) for option in self.options))

    def worker_id(self, host_label: str, incarnation: str) -> str:
        """The name under which it beats and holds jobs."""
        return f"{host_label}:{self.queue}:{incarnation}"


@dataclass(frozen=True)
class RoleSpec:
    """An orchestrator, say, that shall be there; it holds no jobs, and beats in a pipe of ours."""

    name: str
    options: tuple[str, ...] = ()
    # Of no use by itself: it ends when nothing else is left to run.
    is_attendant: bool = False
    queue = ""
    shared_by: ClassVar[int] = 1
    last_ends: ClassVar[frozenset[int]] = frozenset()

    def worker_id(self, _host_label: str, _incarnation: str) -> None:
        """None, as this role is no worker."""


@dataclass(frozen=True)
class EachDevice:
    """A worker of this kind on each GPU of this machine; `devices` are those that are there at the start."""

    worker: WorkerSpec
    devices: tuple[Device, ...] = ()


ORCHESTRATOR: Final = RoleSpec("orchestrator")
SCHEDULER: Final = RoleSpec("scheduler")
AGENT: Final = RoleSpec("agent", is_attendant=True)
JANITOR: Final = RoleSpec("janitor", is_attendant=True)
Spec = WorkerSpec | RoleSpec


@dataclass
class Life:
    """One incarnation; `fd` is None once it has ended, `worker_id` if it is no worker.

    `oom_kills` counts the processes that the kernel kills around it for want of memory, where a cgroup tells.
    """

    worker_id: str | None
    child: Started
    fd: int | None
    started_at: float
    ended_at: float = 0.0
    asked: Urgency = Urgency.NONE
    sweep: Sweep | None = None
    heartbeat_pipe: HeartbeatPipe | None = None
    killed: bool = False
    oom_kills: OomKills | None = None


@dataclass
class Slot:
    """The place of one process; `start_at` None and no life: done, or parked.

    `urgent` says that a worker died and is to be replaced at once, which is what spares are for. `device` is
    the GPU that what runs here has to itself. `parts` are the places of those that run here instead, one
    job each; `part` is the number of such a place. `unexplained` are workers that died, as far as is known
    not of their jobs; `else_at` is when to start if that is so, while it is not known of the last of them.
    """

    name: str
    spec: Spec
    start_at: float | None
    deaths: int = 0
    parked_at: float | None = None
    urgent: bool = False
    device: str | None = None
    part: int = 0
    parts: list[Slot] = field(default_factory=list, repr=False)
    unexplained: set[str] = field(default_factory=set)
    else_at: float | None = None
    life: Life | None = field(default=None, repr=False)

    @property
    def done(self) -> bool:
        """Nothing runs here any more, and nothing will."""
        return self.life is None and self.start_at is None and self.parked_at is None

    def hear(self, verdicts: Mapping[str, bool], now: float) -> bool:
        """Heed which workers died of their jobs, and which did not; whether one of this slot did, and starts.

        Then there is no reason to wait with the next.
        """
        known = {name for name in self.unexplained if verdicts.get(name)}
        if self.else_at is not None and not self.unexplained.isdisjoint(verdicts):
            self.start_at, self.else_at = None if self.start_at is None else self.else_at, None
        self.unexplained -= verdicts.keys()
        self.deaths = max(0, self.deaths - len(known))
        if not known or self.start_at is None:
            return False
        if self.deaths <= 1:
            self.start_at, self.urgent = min(self.start_at, now), True
        return True


def slots_of(specs: Sequence[Spec], now: float) -> list[Slot]:
    """A slot each, due now, with a name for the log: `cpu/1`, `cpu/2`."""
    counts: Counter[str] = Counter()
    slots = []
    for spec in specs:
        counts[spec.name] += 1
        slots.append(Slot(f"{spec.name}/{counts[spec.name]}", spec, now))
    return slots


def worth_a_spare(specs: Sequence[Spec]) -> list[Spec]:
    """The workers that are replaced when they end, unless a second process would be in the way."""
    return [
        spec for spec in specs if isinstance(spec, WorkerSpec) and not spec.last_ends and spec.queue != GPU
    ]
