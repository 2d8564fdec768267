"""Where the cause of a reason can be looked at: the thing that the explanation names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from queue_workflows.engine.explain.history import Reason
from queue_workflows.web.page import href


@dataclass(frozen=True)
class Linked:
    """A reason, and where its cause is; None for one that is nowhere but in the row itself."""

    code: str
    text: str
    href: str | None


def linked(
    reasons: Iterable[Reason], *, prefix: str, queue: str | None = None, run: str | None = None
) -> list[Linked]:
    """The reasons with their causes; `queue` and `run` are those of what is explained."""
    found = []
    for reason in reasons:
        place = _place(reason, queue, run)
        found.append(Linked(reason.code, reason.text, None if place is None else prefix + place))
    return found


def _place(reason: Reason, queue: str | None, run: str | None) -> str | None:
    for name, place in _BY_DATA.items():
        value = reason.data.get(name)
        if isinstance(value, (list, tuple)):
            value = value[0] if value else None
        if value is not None and not isinstance(value, Mapping):
            return place(str(value))
    of_code = _BY_CODE.get(reason.code)
    return None if of_code is None else of_code(queue, run)


def _part(value: str) -> str:
    return quote(value, safe=":@")


_BY_DATA: Final[Mapping[str, Callable[[str], str]]] = {
    "limit_key": lambda value: f"/limits/{_part(value)}",
    "key": lambda value: f"/limits/{_part(value)}",
    "keys": lambda value: f"/limits/{_part(value)}",
    "binary": lambda _value: "/binaries",
    "model": lambda _value: "/models",
    "worker_id": lambda value: f"/workers/{_part(value)}",
    "claimed_by": lambda value: f"/workers/{_part(value)}",
    "workers": lambda value: f"/workers/{_part(value)}",
    "host_label": lambda value: "/workers" if value == "*" else f"/hosts/{_part(value)}",
    "host": lambda value: f"/hosts/{_part(value)}",
    "jobs": lambda value: f"/jobs/{_part(value)}",
    "holders": lambda value: f"/jobs/{_part(value)}",
    "child_run": lambda value: f"/runs/{_part(value)}",
    "run_id": lambda value: f"/runs/{_part(value)}",
    "queue": lambda value: f"/queues/{_part(value)}",
}


def _of_queue(queue: str | None, _run: str | None) -> str | None:
    return None if queue is None else f"/queues/{_part(queue)}"


def _of_run(_queue: str | None, run: str | None) -> str | None:
    return None if run is None else f"/runs/{_part(run)}"


_BY_CODE: Final[Mapping[str, Callable[[str | None, str | None], str | None]]] = {
    "behind": _of_queue,
    "next": _of_queue,
    "all_busy": _of_queue,
    "no_worker": _of_queue,
    "no_free_worker": _of_queue,
    "queue_pause": _of_queue,
    "queue_off": _of_queue,
    "was_paused": _of_queue,
    "run_over": _of_run,
    "run_cancelled": _of_run,
    "nodes_waiting": _of_run,
    "schema_refused": lambda _queue, _run: "/doctor",
    "unknown_task": lambda _queue, _run: "/workers",
    "unknown_module": lambda _queue, _run: "/workers",
    "last_error": lambda queue, _run: href("/failures", queue=queue),
}
