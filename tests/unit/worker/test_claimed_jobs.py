"""A claimed job says what the server returned, whenever it is asked."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from support.rows.claimed_jobs import ingest_job, node_job

from queue_workflows.repositories.sql.claimed_job import ClaimedIngestJob, ClaimedJob, columns_of, loaded

CANCELLED = datetime(2026, 2, 3, 4, 5, 6, 700_000, tzinfo=UTC)


def row_of(job: ClaimedJob) -> tuple[Any, ...]:
    """The columns of a job as the server returns them: moments and JSON as text."""

    def said(name: str) -> Any:
        value = getattr(job, name)
        if isinstance(value, datetime):
            return str(value.astimezone(UTC)).replace("+00:00", "+00")
        return json.dumps(value) if name in job.json_fields and value is not None else value

    return tuple(said(name) for name in columns_of(type(job)))


@pytest.mark.parametrize(
    "job",
    [
        ingest_job(traceparent="00-1", backoff_s=2.5, tick_at=CANCELLED),
        ingest_job(cancel_requested_at=CANCELLED, limit_key="k", timeout_s=3.0, stall_timeout_s=4.0),
        node_job(item=[1, {"a": None}], required_model="m", suspect=True),
        node_job(cancel_requested_at=CANCELLED),
        # Each value is another one, so that no column stands for another.
        node_job(
            id=101,
            priority=2,
            position=103,
            generation=104,
            attempt=105,
            failures=106,
            max_attempts=107,
            backoff_s=1.5,
            crash_count=108,
            max_crashes=109,
            timeout_s=2.5,
            stall_timeout_s=3.5,
            host_lock="lock",
            limit_key="key",
            traceparent="00-2",
            map_index=110,
            node_module="module",
            plugin="plugin",
            host_priority=111,
            step=112,
            background=True,
            survives_outage=True,
        ),
    ],
)
def test_every_column_is_what_the_server_said(job: ClaimedJob) -> None:
    """Read one by one, copied before anything was read, or with something replaced."""
    (found,) = loaded(type(job), [row_of(job)])
    assert copy.copy(found) == job
    for name in columns_of(type(job)):
        assert getattr(found, name) == getattr(job, name)
    assert found == job
    (again,) = loaded(type(job), [row_of(job)])
    assert replace(again, queue="other") == replace(job, queue="other")
    assert repr(again) == repr(job)


def test_moments_are_in_utc_wherever_the_session_is() -> None:
    """A session behind a proxy has the time zone of whoever had it before."""
    row = list(row_of(ingest_job()))
    row[columns_of(type(ingest_job())).index("run_at")] = "2026-02-03 09:35:06.7+05:30"
    (found,) = loaded(type(ingest_job()), [row])
    assert (found.run_at, found.run_at.tzinfo) == (CANCELLED, UTC)


def test_what_is_read_once_stays() -> None:
    """The arguments that a function changes are those that whoever asks next is given."""
    (found,) = loaded(type(ingest_job()), [row_of(ingest_job())])
    found.args["seen"] = True
    assert found.args == {"a": 1, "seen": True}


def test_there_is_nothing_else_to_ask_for() -> None:
    """A slip of the pen is one, also where most is read late."""
    (found,) = loaded(type(ingest_job()), [row_of(ingest_job())])
    with pytest.raises(AttributeError, match="run_id"):
        _ = found.run_id  # type: ignore[attr-defined]


def test_a_kind_of_its_own_is_read_late_too() -> None:
    """That of a host app's tests, which is asked for what is there and for what is not."""

    class Mine(ClaimedIngestJob):
        pass

    (found,) = loaded(Mine, [row_of(ingest_job())])
    assert found.args == {"a": 1}
    assert not hasattr(found, "run_id")
    assert not hasattr(object.__new__(Mine), "created_at")
