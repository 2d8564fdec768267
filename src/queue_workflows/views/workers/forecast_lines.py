"""What a wish would do, in sentences for the command and the page."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from queue_workflows.drawing.words import number_of
from queue_workflows.states import DesiredState
from queue_workflows.views.workers.what_if import WishPreview
from queue_workflows.views.workers.wishes import scope_of

_NAMED: Final = 10
_WOULD_BE: Final = {DesiredState.PAUSE: "paused", DesiredState.OFF: "off"}


def lines_of(seen: WishPreview) -> Iterable[str]:
    """The wish, and the workers, jobs, models and queues that it would concern."""
    forecast = seen.forecast
    yield f"{scope_of(seen.host_label, seen.queue)} would be {_WOULD_BE[seen.desired]}; nothing is changed"
    names = [one.worker_id for one in forecast.obeying]
    yield f"{number_of('worker', len(names))} would obey{_named(names)}"
    if forecast.already:
        yield f"asked for as much already{_named(forecast.already)}"
    if forecast.silent:
        yield f"not heard of now{_named(forecast.silent)}"
    jobs = seen.finished + seen.given_back + seen.failed
    named = _named([one.name for one in seen.first], jobs)
    if seen.desired is DesiredState.PAUSE:
        yield f"{number_of('job', seen.finished)} would be finished first{named}"
    else:
        failed = f", {number_of('job', seen.failed)} would fail, begun once for all" if seen.failed else ""
        yield f"{number_of('job', seen.given_back)} would be given back uncounted{failed}{named}"
    for model in forecast.models:
        kept = f"; loaded still{_named(model.still_loaded_by)}" if model.still_loaded_by else "; then nowhere"
        yield f"the model {model.model} would be unloaded{_named(model.by)}{kept}"
    for left in seen.left:
        queued = f"{left.queued:,}{'+' if left.at_least else ''} queued"
        yield f"the queue {left.queue} would be left without a worker that claims, with {queued}"


def _named(names: list[str], count: int | None = None) -> str:
    """These, or the first of them and how many more."""
    more = (len(names) if count is None else count) - len(names[:_NAMED])
    if not names:
        return ""
    return f": {', '.join(names[:_NAMED])}" + (f" and {more:,} more" if more else "")
