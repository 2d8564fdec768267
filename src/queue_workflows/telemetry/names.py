"""Every metric that is exported, with what it means: the one table that docs and dashboards are checked by.

`INSTRUMENTS` are counted by the process that does the work. `FIGURES` are read from the database, by the
Prometheus endpoint and by orchestrators, and are the same for every reader.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Kind: TypeAlias = Literal["counter", "observed", "histogram", "gauge"]

SYSTEM: Final = "messaging.system"
SYSTEM_NAME: Final = "queue_workflows"
OPERATION: Final = "messaging.operation.name"
QUEUE: Final = "messaging.destination.name"
FAMILY: Final = "qwf.family"
TASK: Final = "qwf.task"
OUTCOME: Final = "qwf.outcome"
# Of spans alone: no metric has an attribute with as many values as there are jobs.
OPERATION_TYPE: Final = "messaging.operation.type"
OPERATION_TYPES: Final = {"enqueue": "send", "process": "process"}
MESSAGE_ID: Final = "messaging.message.id"
BATCH_COUNT: Final = "messaging.batch.message_count"
RUN: Final = "qwf.run"

SENT: Final = "messaging.client.sent.messages"
CLAIMED: Final = "messaging.client.consumed.messages"
RUN_TIME: Final = "messaging.process.duration"
WAIT_TIME: Final = "qwf.job.wait.duration"
ENDED: Final = "qwf.job.ended"
IN_FLIGHT: Final = "qwf.job.in_flight"
LIMIT_WAIT: Final = "qwf.limit.wait.duration"
RATE_SLEEP: Final = "qwf.rate.sleep.duration"
LOCK_WAIT: Final = "qwf.host_lock.wait.duration"
MODEL_LOADS: Final = "qwf.model.loads"
MODEL_HITS: Final = "qwf.model.hits"
MODEL_LOAD_TIME: Final = "qwf.model.load.duration"

_MESSAGING: Final = (SYSTEM, OPERATION, QUEUE, FAMILY, TASK)
_JOB: Final = (QUEUE, FAMILY, TASK)


_IN_PROMETHEUS: Final = {"s": "_seconds", "By": "_bytes", "1": "_ratio", "Cel": "_celsius", "W": "_watts"}


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: its name in OpenTelemetry, what it counts, and the attributes that it has, no others."""

    name: str
    kind: Kind
    unit: str
    what: str
    attributes: tuple[str, ...] = ()

    @property
    def prometheus(self) -> str:
        """The name under which Prometheus knows it, by the rules of OpenTelemetry's own exporters."""
        name = self.name.replace(".", "_") + _IN_PROMETHEUS.get(self.unit, "")
        return f"{name}_total" if self.kind == "counter" else name


INSTRUMENTS: Final = (
    Metric(SENT, "counter", "{message}", "Jobs enqueued, and runs started, by this process.", _MESSAGING),
    Metric(CLAIMED, "counter", "{message}", "Jobs claimed.", _MESSAGING),
    Metric(RUN_TIME, "histogram", "s", "How long a job's function ran.", (*_MESSAGING, OUTCOME)),
    Metric(WAIT_TIME, "histogram", "s", "How long a job was due before it was claimed.", _JOB),
    Metric(
        ENDED,
        "counter",
        "{job}",
        "Attempts that ended: completed, skipped, failed, cancelled, retried (a failure that is tried again),"
        " retry_after (the task asked for another time), held, released, or lease_lost.",
        (QUEUE, FAMILY, OUTCOME),
    ),
    Metric(IN_FLIGHT, "observed", "{job}", "Jobs that this worker holds.", (QUEUE, FAMILY)),
    Metric(LIMIT_WAIT, "histogram", "s", "How long a job waited for `ctx.limit`.", _JOB),
    Metric(RATE_SLEEP, "histogram", "s", "How long a job waited for `ctx.rate`.", _JOB),
    Metric(LOCK_WAIT, "histogram", "s", "How long a job waited for `ctx.host_lock`.", _JOB),
    Metric(
        MODEL_LOADS,
        "counter",
        "{load}",
        "Models loaded, and loads that failed: loaded, failed.",
        (QUEUE, OUTCOME),
    ),
    Metric(MODEL_HITS, "counter", "{hit}", "Jobs that found their model loaded.", (QUEUE,)),
    Metric(MODEL_LOAD_TIME, "histogram", "s", "How long it took to load a model.", (QUEUE, OUTCOME)),
)

FIGURES: Final = (
    Metric("qwf.database.up", "gauge", "", "1 if the database answered, else 0 and nothing else is said."),
    Metric(
        "qwf.queue.jobs",
        "gauge",
        "{job}",
        "Jobs by state: queued, scheduled, held, awaiting_input, running; 100,000 means that many or more.",
        ("family", "queue", "state"),
    ),
    Metric("qwf.queue.held", "gauge", "{job}", "Jobs on hold, by the reason.", ("family", "queue", "reason")),
    Metric(
        "qwf.queue.wait",
        "gauge",
        "s",
        "How long the job that waits longest has been due.",
        ("family", "queue"),
    ),
    Metric(
        "qwf.queue.waited",
        "gauge",
        "s",
        "How long the jobs waited that ended in the last five minutes, all together, by the cause.",
        ("family", "queue", "cause"),
    ),
    Metric(
        "qwf.queue.running.age", "gauge", "s", "How long the longest running job runs.", ("family", "queue")
    ),
    Metric(
        "qwf.queue.ended",
        "gauge",
        "{job}",
        "Jobs that ended in the last five minutes, by how.",
        ("family", "queue", "outcome"),
    ),
    Metric(
        "qwf.queue.rate",
        "gauge",
        "{job}/s",
        "Jobs a second that ended in the last minute.",
        ("family", "queue"),
    ),
    Metric(
        "qwf.workers",
        "gauge",
        "{worker}",
        "Workers by state; silent are those that nothing is heard of.",
        ("queue", "state"),
    ),
    Metric(
        "qwf.outbox.events",
        "gauge",
        "{event}",
        "Events of runs that wait for an orchestrator, and that were given up: pending, poisoned.",
        ("state",),
    ),
    Metric("qwf.outbox.lag", "gauge", "s", "How long the oldest event has been due that nobody acted on."),
    Metric(
        "qwf.runs", "gauge", "{run}", "Runs that are not over, by state: queued, held, running.", ("state",)
    ),
    Metric("qwf.runs.poisoned", "gauge", "{run}", "Runs with an event that was given up."),
    Metric("qwf.schedules", "gauge", "{schedule}", "Schedules by state: on, paused, late.", ("state",)),
    Metric("qwf.schedules.lag", "gauge", "s", "How late the latest tick is that no scheduler has made."),
    Metric(
        "qwf.retention.lag",
        "gauge",
        "s",
        "How long ago the oldest row should have been pruned: of ingest jobs (ingest), of runs with"
        " their jobs (node).",
        ("family",),
    ),
    Metric(
        "qwf.limits.lowered",
        "gauge",
        "{limit}",
        "Limits that adapt and are lower than they are declared, by kind: cap, rate.",
        ("kind",),
    ),
    Metric(
        "qwf.limits.share",
        "gauge",
        "1",
        "What the lowest of these has come down to, as a share of what is declared.",
        ("kind",),
    ),
    Metric(
        "qwf.jobs.stored",
        "gauge",
        "{row}",
        "Rows of the job tables as the planner estimates them, the past included.",
        ("family",),
    ),
    Metric(
        "qwf.host.cpu",
        "gauge",
        "1",
        "Use of a machine's processors: all, and of it what our containers use: ours.",
        ("host", "part"),
    ),
    Metric(
        "qwf.host.memory",
        "gauge",
        "By",
        "A machine's memory: total, used, and what our containers use: ours.",
        ("host", "part"),
    ),
    Metric("qwf.gpu.utilization", "gauge", "1", "Use of a GPU, as its tool tells it.", ("host", "device")),
    Metric("qwf.gpu.memory", "gauge", "By", "Memory of a GPU: total, used.", ("host", "device", "part")),
    Metric("qwf.gpu.temperature", "gauge", "Cel", "Temperature of a GPU.", ("host", "device")),
    Metric("qwf.gpu.power", "gauge", "W", "What a GPU draws.", ("host", "device")),
    Metric("qwf.figures.duration", "gauge", "s", "How long it took to read these figures."),
)
