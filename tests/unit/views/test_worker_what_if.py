"""What a wish would do, from workers and wishes alone."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from queue_workflows.repositories.workers.control import Control
from queue_workflows.repositories.workers.obedience import Standing
from queue_workflows.states import DesiredState, WorkerState
from queue_workflows.views.workers.what_if import Forecast, Unloaded, command_of, foretell

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PAUSE, OFF = DesiredState.PAUSE, DesiredState.OFF


def worker(name: str, host: str = "h1", queue: str = "fetch", **more: Any) -> Standing:
    """One that is idle and was heard of right now."""
    values: dict[str, Any] = {
        "pid": 7,
        "state": WorkerState.IDLE,
        "state_reason": None,
        "current_job_family": None,
        "current_job_id": None,
        "jobs_held": 0,
        "current_model": None,
        "cached_models": [],
        "versions": {},
        "load": {},
        "control_version": 0,
        "started_at": NOW,
        "last_seen": NOW,
        "age_s": 0.0,
        "flagged_dead": False,
        "control": None,
    }
    return Standing(worker_id=name, host_label=host, queue=queue, **(values | more))


def wish(host: str, queue: str, desired: DesiredState) -> Control:
    return Control(desired, 1, host, queue, None, "ann", None)


def told(workers: list[Standing], host: str, queue: str, desired: DesiredState, *wishes: Control) -> Forecast:
    return foretell(workers, wishes, host=host, queue=queue, desired=desired, stale_s=30.0)


def names(forecast: Forecast) -> list[str]:
    return [one.worker_id for one in forecast.obeying]


@pytest.mark.parametrize(
    ("host", "queue", "obey"),
    [
        ("h1", "fetch", ["a"]),
        ("*", "fetch", ["a", "b"]),
        ("h1", "*", ["a", "c"]),
        ("*", "*", ["a", "b", "c"]),
        ("h9", "*", []),
    ],
)
def test_the_workers_that_match_obey(host: str, queue: str, obey: list[str]) -> None:
    """A star is any host or any queue."""
    workers = [worker("a"), worker("b", "h2"), worker("c", queue="mail")]
    assert names(told(workers, host, queue, PAUSE)) == obey


def test_a_queue_is_left_when_its_last_claiming_worker_obeys() -> None:
    """Silent, leaving, paused and quarantined ones do not count as somebody that claims."""
    others = [
        worker("silent", age_s=31.0),
        worker("leaving", state=WorkerState.STOPPING),
        worker("paused", "h2"),
        worker("device", state=WorkerState.QUARANTINED),
    ]
    paused = wish("h2", "fetch", PAUSE)
    assert told([worker("a"), *others], "h1", "fetch", OFF, paused).queues_left == ["fetch"]
    assert told([worker("a"), *others], "h1", "fetch", OFF).queues_left == []
    # Nobody claims from it before, so the wish is not what leaves it.
    assert told(others, "*", "*", OFF, paused).queues_left == []


def test_one_that_is_asked_for_as_much_changes_nothing() -> None:
    """A pause below a switch-off is no news, a switch-off after a pause is."""
    workers = [worker("a"), worker("b", "h2")]
    off = wish("h1", "*", OFF)
    forecast = told(workers, "*", "fetch", PAUSE, off)
    assert (names(forecast), forecast.already) == (["b"], ["a"])
    assert names(told(workers, "*", "*", OFF, wish("*", "*", PAUSE))) == ["a", "b"]


def test_a_wish_replaces_the_row_of_its_own_words() -> None:
    """To ask for a pause where a switch-off was asked by that very row makes nobody stricter."""
    forecast = told([worker("a")], "h1", "fetch", PAUSE, wish("h1", "fetch", OFF))
    assert (names(forecast), forecast.already, forecast.queues_left) == ([], ["a"], [])


def test_silent_workers_are_named_apart() -> None:
    """What they hold is not foretold, as they do not hear of it."""
    forecast = told([worker("a"), worker("gone", age_s=31.0)], "*", "*", OFF)
    assert (names(forecast), forecast.silent) == (["a"], ["gone"])


def test_models_are_unloaded_and_may_stay_elsewhere() -> None:
    """A model is still there where a worker that goes on claiming has it."""
    workers = [
        worker("a", queue="gpu", cached_models=["x", "y"]),
        worker("b", "h2", queue="gpu", cached_models=["y"]),
    ]
    assert told(workers, "h1", "gpu", PAUSE).models == [
        Unloaded("x", ["a"], []),
        Unloaded("y", ["a"], ["b"]),
    ]


def test_the_command_can_be_pasted() -> None:
    """The star is quoted against the shell."""
    assert command_of(OFF, host="*", queue="fetch") == "qwf workers off '*' fetch --dry-run"
