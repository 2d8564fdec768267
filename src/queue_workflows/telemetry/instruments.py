"""The instruments of this process, made once for its SDK; None where there is none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final

from queue_workflows.telemetry import names
from queue_workflows.telemetry.exposition import Figures
from queue_workflows.telemetry.harmless import harmless
from queue_workflows.telemetry.provider import is_silent, meter

if TYPE_CHECKING:
    from opentelemetry.metrics import Histogram, Meter

# More than any application has; what comes on top is counted together.
_MOST_TASKS: Final = 500
OTHER: Final = "(other)"
# Seconds; the usual buckets are of milliseconds, and a job takes from one of those to hours.
_BUCKETS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 14400)


class Instruments:
    """Adds to what `names.INSTRUMENTS` has, with the attributes that it has."""

    def __init__(self, made_by: Meter) -> None:
        make: dict[names.Kind, Any] = {
            "counter": made_by.create_counter,
            "histogram": partial(_histogram, made_by),
        }
        self._made = {
            one.name: make[one.kind](one.name, one.unit, one.what)
            for one in names.INSTRUMENTS
            if one.kind in make
        }
        self._tasks: set[str] = set()

    @harmless
    def sent(self, operation: str, queue: str, family: str, task: str, count: int) -> None:
        """So many were stored for somebody to run."""
        attributes = self._of(queue, family, task)
        self._made[names.SENT].add(count, _messaging(operation, attributes))

    @harmless
    def claimed(self, queue: str, family: str, task: str, waits_s: list[float]) -> None:
        """So many of a task were claimed, each after having been due for so long."""
        attributes = self._of(queue, family, task)
        self._made[names.CLAIMED].add(len(waits_s), _messaging("claim", attributes))
        wait_time = self._made[names.WAIT_TIME]
        for wait_s in waits_s:
            wait_time.record(wait_s, attributes)

    @harmless
    def ran(self, queue: str, family: str, task: str, outcome: str, seconds: float) -> None:
        """One has run."""
        attributes = self._of(queue, family, task)
        attributes[names.OUTCOME] = outcome
        self._made[names.RUN_TIME].record(seconds, _messaging("process", attributes))

    @harmless
    def ended(self, queue: str, family: str, outcome: str, count: int) -> None:
        """So many ended so."""
        self._made[names.ENDED].add(count, {names.QUEUE: queue, names.FAMILY: family, names.OUTCOME: outcome})

    @harmless
    def waited(self, name: str, queue: str, family: str, task: str, seconds: float) -> None:
        """A running job had to wait."""
        self._made[name].record(seconds, self._of(queue, family, task))

    @harmless
    def model_loaded(self, queue: str, outcome: str, seconds: float) -> None:
        """A worker has loaded a model, or failed to."""
        attributes = {names.QUEUE: queue, names.OUTCOME: outcome}
        self._made[names.MODEL_LOADS].add(1, attributes)
        self._made[names.MODEL_LOAD_TIME].record(seconds, attributes)

    @harmless
    def model_hit(self, queue: str) -> None:
        """A job found its model loaded."""
        self._made[names.MODEL_HITS].add(1, {names.QUEUE: queue})

    def _of(self, queue: str, family: str, task: str) -> dict[str, str]:
        """Names of tasks come from rows, and nobody may fill the metrics' store with them."""
        if task not in self._tasks:
            if len(self._tasks) >= _MOST_TASKS:
                task = OTHER
            else:
                self._tasks.add(task)
        return {names.QUEUE: queue, names.FAMILY: family, names.TASK: task}


def instruments() -> Instruments | None:
    """The instruments of the SDK that is configured now."""
    made_by = meter()
    return None if made_by is None else _instruments_of(made_by)


@lru_cache(maxsize=8)
def _instruments_of(made_by: Meter) -> Instruments | None:
    made: list[Instruments] = []
    harmless(lambda: made.append(Instruments(made_by)))()
    return made[0] if made else None


def _histogram(made_by: Meter, name: str, unit: str, what: str) -> Histogram:
    try:
        return made_by.create_histogram(name, unit, what, explicit_bucket_boundaries_advisory=_BUCKETS)
    except TypeError:
        # Before 1.30 a view of the host app is the only way to have other buckets.
        return made_by.create_histogram(name, unit, what)


def _messaging(operation: str, attributes: dict[str, str]) -> dict[str, str]:
    return {names.SYSTEM: names.SYSTEM_NAME, names.OPERATION: operation, **attributes}


@harmless
def observe_in_flight(queue: str, family: str, held: Callable[[], int]) -> None:
    """Have exporters ask how many jobs are held, whenever they export."""
    made_by = meter()
    if made_by is None:
        return
    from opentelemetry.metrics import CallbackOptions, Observation

    def observed(_options: CallbackOptions) -> list[Observation]:
        return [Observation(held(), {names.QUEUE: queue, names.FAMILY: family})]

    (metric,) = (one for one in names.INSTRUMENTS if one.name == names.IN_FLIGHT)
    made_by.create_observable_up_down_counter(metric.name, [observed], metric.unit, metric.what)


@harmless
def observe_figures(read: Callable[[], Figures]) -> None:
    """Have exporters ask for the figures of the database, whenever they export."""
    made_by = meter()
    if made_by is None:
        return
    from opentelemetry.metrics import CallbackOptions, Observation

    def observed(metric: names.Metric) -> Callable[[CallbackOptions], list[Observation]]:
        return lambda _options: [
            Observation(number, dict(zip(metric.attributes, values, strict=True)))
            for values, number in read().get(metric.name, ())
        ]

    for metric in names.FIGURES:
        made_by.create_observable_gauge(metric.name, [observed(metric)], metric.unit, metric.what)


def count_model_load(queue: str, outcome: str, seconds: float) -> None:
    """A model was loaded, or failed to."""
    if not is_silent() and (counts := instruments()) is not None:
        counts.model_loaded(queue, outcome, seconds)


def count_model_hit(queue: str) -> None:
    """A job found its model loaded."""
    if not is_silent() and (counts := instruments()) is not None:
        counts.model_hit(queue)


def count_sent(operation: str, family: str, sent: Collection[tuple[str, str]]) -> None:
    """What was stored, by queue and task."""
    if is_silent() or (counts := instruments()) is None:
        return
    for (queue, task), count in Counter(sent).items():
        counts.sent(operation, queue, family, task, count)
