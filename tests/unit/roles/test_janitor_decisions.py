"""What a janitor decides: pure, row by row of its table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from queue_workflows import ConfigurationError, ResourceKind, register_resource_kind
from queue_workflows.config import reset_config
from queue_workflows.host.janitor.decisions import Action, FailedTries, candidates, judge
from queue_workflows.host.janitor.resources import registered_kinds
from queue_workflows.host.janitor.teardown import end
from queue_workflows.host.locks.lock import Absent, Free, Held, Probe, Unusable
from queue_workflows.host.locks.owner_note import Claim
from queue_workflows.roles.supervisor.janitor_when_needed import Attending
from queue_workflows.roles.supervisor.slots import JANITOR
from queue_workflows.settings import load_settings

FREE = Free(Path("x"), None, None)
CLAIM = Claim("x", 4711)


@pytest.mark.parametrize(
    ("thing", "lock", "idle_s", "deed"),
    [
        (True, Absent(), 0, Action.REAP),
        (True, FREE, 0, Action.REAP),
        (True, Held(0, CLAIM), 0, Action.LEAVE),
        (True, Held(200, None), 0, Action.LEAVE),
        (True, Held(201, CLAIM), 0, Action.FLAG),
        (True, Unusable("garbled"), 0, Action.SKIP),
        (False, FREE, 3601, Action.TIDY),
        (False, FREE, 3600, Action.LEAVE),
        (False, Held(200, CLAIM), 9999, Action.LEAVE),
        (False, Held(201, CLAIM), 0, Action.FLAG),
        (False, Unusable("garbled"), 9999, Action.SKIP),
        (False, Absent(), 9999, Action.LEAVE),
    ],
)
def test_the_table(thing: bool, lock: Probe, idle_s: float, deed: Action) -> None:
    """A deadline of 100 s."""
    assert judge(thing, lock, deadline_s=100.0, idle_s=idle_s)[0] is deed


def kind(**given: Any) -> ResourceKind:
    return ResourceKind(**{"name": "thing", "pattern": r"a-\d", "discover": list, "teardown": print, **given})


def test_only_whole_names_that_are_fit_to_be_names_are_candidates() -> None:
    """Even where the pattern takes anything: no path, no dots, nothing that does not print, no other type."""
    found = ["a-1", "a-1", "a-12", "xa-1", "a-1\n", "A-1", 7, None, b"a-1"]
    assert candidates(kind(), found) == (["a-1"], 7)
    odd = ["", ".", "..", "a/b", "/a", "a\0b", "a\nb", "\ud800", "x" * 201]
    assert candidates(kind(pattern=r"(?s:.*)"), [*odd, "fine", "grün"]) == (["fine", "grün"], len(odd))


@pytest.mark.parametrize(
    "given",
    [
        {"name": ""},
        {"name": "a b"},
        {"pattern": "("},
        {"pattern": b"a"},
        {"pattern": None},
        {"discover": None},
        {"teardown": "rm"},
        {"verify": "no"},
        {"deadline_s": 0},
        {"deadline_s": float("nan")},
        {"timeout_s": True},
        {"timeout_s": "1"},
    ],
)
def test_a_kind_that_makes_no_sense_is_refused(given: dict[str, Any]) -> None:
    """When it is written, not when it is needed."""
    with pytest.raises(ConfigurationError, match="ResourceKind"):
        kind(**given)


def test_of_two_kinds_with_one_name_the_latest_counts() -> None:
    """As after a reload."""
    reset_config()
    try:
        first, other = register_resource_kind(kind()), register_resource_kind(kind(name="other"))
        again = register_resource_kind(kind(timeout_s=5.0))
        assert registered_kinds() == [again, other]
        assert first not in registered_kinds()
        with pytest.raises(ConfigurationError, match="must be given a ResourceKind"):
            register_resource_kind("thing")  # type: ignore[arg-type]
    finally:
        reset_config()


def test_what_is_reaped_in_vain_is_tried_later_each_time() -> None:
    """From ten seconds to ten minutes."""
    vain, delays = FailedTries(), []
    for _ in range(8):
        vain = vain.again(100.0)
        delays.append(vain.due_at - 100.0)
    assert delays == [10, 20, 40, 80, 160, 320, 600, 600]


def test_what_its_owner_removed_in_time_is_not_torn_down() -> None:
    """It is looked for once more with the lock in hand, and after the teardown until it is gone."""
    torn: list[str] = []
    there = {"a-1"}
    slow = iter([False, False, False, True])
    assert end(kind(discover=list, teardown=torn.append), "a-1") == (True, "it was gone already")
    assert torn == []
    assert end(kind(discover=lambda: there, teardown=there.remove), "a-1") == (True, "torn down")
    slept: list[float] = []
    assert end(kind(verify=lambda _name: next(slow)), "a-1", sleep=slept.append) == (True, "torn down")
    assert slept == [0.1, 0.2]
    stays = end(kind(verify=lambda _name: False), "a-1", sleep=slept.append)
    assert stays == (False, "its teardown returned, and it is still there")


def test_what_stays_is_looked_for_no_longer_than_there_is_time() -> None:
    """So that it can be said that it stays, before its reaper is ended for being late."""
    slept: list[float] = []
    stays = kind(verify=lambda _name: False, timeout_s=2.0)
    assert end(stays, "a-1", sleep=slept.append, now=lambda: sum(slept))[0] is False
    assert 0 < sum(slept) <= 1.0


def test_a_supervisor_wants_a_janitor_once_there_is_something_to_look_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the first workspace comes later; one, and none where somebody has said so.

    What hooks wrote is looked after only where a setting says for how long it is kept.
    """
    reset_config()
    monkeypatch.chdir(tmp_path)
    clock = [0.0]
    settings = load_settings(arguments={"data_dir": tmp_path / "data"})
    of_files = Attending(
        load_settings(arguments={"data_dir": tmp_path / "data", "run_files_days": 30}), now=lambda: clock[0]
    )
    attending = Attending(settings, now=lambda: clock[0])
    said = Attending(settings, is_open=False, now=lambda: clock[0])
    assert (attending.due(), said.due()) == ((), ())
    (tmp_path / "data" / "runs").mkdir(parents=True)
    assert (attending.due(), of_files.due()) == ((), (JANITOR,))
    clock[0] = 60.0
    assert attending.due() == ()
    (tmp_path / "data" / "workspaces").mkdir()
    clock[0] = 120.0
    assert (attending.due(), said.due()) == ((JANITOR,), ())
    clock[0] = 200.0
    assert attending.due() == ()
