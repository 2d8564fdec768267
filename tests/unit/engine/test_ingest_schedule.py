"""`set_ingest_schedule`: what a host app may declare, and what is refused where it is written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from queue_workflows import ConfigurationError, IngestSchedule, configure, set_ingest_schedule
from queue_workflows.config import current_config, reset_config
from queue_workflows.engine.schedules.publish import Declaring

NIGHTLY: dict[str, Any] = {"name": "nightly", "cron": "0 3 * * *", "task_name": "tidy", "queue": "load"}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    reset_config()
    yield
    reset_config()


def test_a_dict_is_as_good_as_the_class() -> None:
    """Both come to the same words, in whatever order they are given."""
    hourly = NIGHTLY | {"name": "hourly", "cron": "0 * * * *", "args": {"deep": [1]}}
    set_ingest_schedule([IngestSchedule(**NIGHTLY), hourly])
    one = current_config().ingest_schedule
    set_ingest_schedule([IngestSchedule(**hourly), NIGHTLY])
    other = current_config().ingest_schedule
    assert one == other
    assert one.digest == other.digest
    assert [words["name"] for words in one.words] == ["hourly", "nightly"]
    assert one.words[0]["args"] == {"deep": [1]}
    set_ingest_schedule([NIGHTLY])
    assert current_config().ingest_schedule.digest != one.digest
    set_ingest_schedule(None)
    assert current_config().ingest_schedule is None


def test_what_its_jobs_have_alone() -> None:
    """Among all machines it is a limit's key, and on each a lock."""
    set_ingest_schedule([NIGHTLY | {"exclusive": "account-7", "host_lock": "disk"}])
    (words,) = current_config().ingest_schedule.words
    assert (words["limit_key"], words["host_lock"]) == ("exclusive:account-7", "disk")
    assert "exclusive" not in words


def test_whose_they_are() -> None:
    """As said, else the package of the wiring."""
    set_ingest_schedule([NIGHTLY])
    declared = current_config().ingest_schedule
    assert [declared.owned_by(app) for app in ("shop.wiring", "shop", None)] == ["shop", "shop", "app"]
    set_ingest_schedule([NIGHTLY], owner="film")
    assert current_config().ingest_schedule.owned_by("shop.wiring") == "film"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"cron": "every day"}, "schedule 'nightly': cron 'every day' has not five fields"),
        ({"timezone": "Mars/Olympus"}, "there is no time zone 'Mars/Olympus'"),
        ({"queue": "cpu"}, "reserved for node jobs"),
        ({"queue": "no queue"}, "no queue"),
        ({"catch_up": "some"}, "none of none, latest, all"),
        ({"catch_up_cap": 0}, "catch_up_cap must be a whole number"),
        ({"catch_up_cap": 10_001}, "catch_up_cap must be a whole number"),
        ({"jitter_s": -1}, "jitter_s must be a number of seconds"),
        ({"priority": 10}, "priority must be a whole number"),
        ({"limit_key": "host:*"}, "contains `*`"),
        ({"exclusive": "a", "limit_key": "b"}, "both exclusive and limit_key"),
        ({"exclusive": ""}, "exclusive is empty"),
        ({"exclusive": "a*"}, "exclusive 'a*' contains `*`"),
        ({"host_lock": 7}, "host_lock must be"),
        ({"args": [1]}, "args must be a dict"),
        ({"args": {"a": float("nan")}}, "schedule 'nightly'"),
        ({"name": ""}, "name is empty"),
        ({"name": "a\nb"}, "characters that cannot be seen"),
        ({"name": " a"}, "blanks around it"),
        ({"name": 7}, "name must be a string"),
        ({"crom": "x"}, "there is no field 'crom'"),
    ],
)
def test_what_is_wrong_is_said_of_its_schedule(changed: dict[str, Any], said: str) -> None:
    """When it is declared, and nothing of it is kept."""
    with pytest.raises(ConfigurationError) as refused:
        set_ingest_schedule([NIGHTLY | changed])
    assert said in str(refused.value)
    assert current_config().ingest_schedule is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (NIGHTLY, "must be given a list"),
        ("nightly", "must be given a list"),
        ([7], "neither an IngestSchedule nor a dict"),
        ([NIGHTLY, NIGHTLY], "two schedules are called 'nightly'"),
        ([{"name": "nightly", "cron": "* * * * *"}], "'nightly' has no task_name and no queue"),
    ],
)
def test_what_is_no_list_of_schedules(given: Any, said: str) -> None:
    """Each slip in its own words."""
    with pytest.raises(ConfigurationError) as refused:
        set_ingest_schedule(given)
    assert said in str(refused.value)


def test_a_queue_of_nobodys_is_found_by_the_scheduler() -> None:
    """Not before: the host app may name its queues after its schedules."""
    set_ingest_schedule([NIGHTLY | {"queue": "later"}])
    with pytest.raises(ConfigurationError, match="none of fetch, load"):
        Declaring(current_config().ingest_schedule).check()
    configure(ingest_queues={"later"})
    Declaring(current_config().ingest_schedule).check()
