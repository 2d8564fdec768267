"""Rows of ingest jobs, checked without a database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from queue_workflows.errors import ConfigurationError, PayloadError
from queue_workflows.repositories import NewIngestJob, PayloadLimits
from queue_workflows.repositories.ingest_rows import BULK, IngestRows

LEAST: dict[str, Any] = {"task_name": "page", "queue": "fetch"}
FULL: dict[str, Any] = {
    "args": {"n": [1, None]},
    "reason": "new",
    "dedupe_key": "k",
    "priority": 0,
    "limit_key": "host:a",
    "max_attempts": 9,
    "backoff_s": 0,
    "timeout_s": 1.5,
    "stall_timeout_s": 2,
    "host_lock": "disk",
    "traceparent": "00-1-2-03",
}
ROWS = IngestRows(PayloadLimits(), max_attempts=4)


@pytest.mark.parametrize(
    "given",
    [
        LEAST,
        LEAST | FULL,
        LEAST | {"args": None, "delay": None},
        LEAST | {"run_at": datetime(2040, 1, 1, tzinfo=UTC)},
        LEAST | {"delay": timedelta(seconds=3)},
        LEAST | {"delay": 0},
    ],
)
def test_a_job_is_the_same_row_however_it_is_said(given):
    """As an object, or by the names of its fields."""
    row = ROWS.of(given)
    assert row == ROWS.row(NewIngestJob(**given))
    values = dict(zip(BULK.names, row, strict=True))
    assert (values["priority"], values["max_attempts"]) == ((0, 9) if "priority" in given else (5, 4))


@pytest.mark.parametrize(
    "wrong",
    [
        *({name: [7]} for name in ("task_name", "queue", *FULL)),
        *({"queue": "gpu"}, {"queue": "a b"}, {"task_name": ""}, {"priority": True}, {"limit_key": "host:*"}),
        *(
            {"run_at": datetime(2040, 1, 1)},
            {"delay": -1},
            {"delay": 1, "run_at": datetime(2040, 1, 1, tzinfo=UTC)},
        ),
    ],
)
def test_and_refused_in_the_same_words(wrong):
    """Whichever way it came."""
    said = []
    for make in (ROWS.of, lambda given: ROWS.row(NewIngestJob(**given))):
        with pytest.raises((PayloadError, ConfigurationError)) as caught:
            make(LEAST | wrong)
        said.append((type(caught.value), str(caught.value)))
    assert said[0] == said[1]


def test_what_the_last_job_said_vouches_for_no_other():
    """A job is checked though the one before it looked the same: `True` is no 1, though they are equal."""
    rows = IngestRows(PayloadLimits())
    given = [LEAST | {"priority": 1, "args": {"n": n}} for n in range(2)]
    given += [LEAST | {"task_name": "other"}, LEAST | {"queue": "load"}]
    for job in given:
        assert rows.row(NewIngestJob(**job)) == IngestRows(PayloadLimits()).of(job)
    rows.row(NewIngestJob(**given[0]))
    for wrong in ({"priority": True}, {"args": []}, {"task_name": None, "queue": None, "priority": None}):
        with pytest.raises(PayloadError):
            rows.row(NewIngestJob(**given[0] | wrong))
    with pytest.raises(PayloadError):
        IngestRows(PayloadLimits()).row(NewIngestJob(task_name=None, queue=None, priority=None))
