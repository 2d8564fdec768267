"""Rows of ingest jobs, checked without a database."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from queue_workflows.errors import ConfigurationError, PayloadError
from queue_workflows.repositories import NewIngestJob, PayloadLimits
from queue_workflows.repositories.jobs.ingest_rows import BULK, IngestRows
from queue_workflows.repositories.sql.columns import CHUNK_ROWS

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
        LEAST | {"exclusive": "account-7"},
        LEAST | {"exclusive": None, "limit_key": "host:a"},
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
            {"run_at": datetime.max.replace(tzinfo=UTC)},
            {"run_at": datetime.min.replace(tzinfo=UTC)},
            {"delay": -1},
            {"timeout_s": 10**400},
            {"delay": float("nan")},
            {"delay": 1, "run_at": datetime(2040, 1, 1, tzinfo=UTC)},
            {"exclusive": "a", "limit_key": "b"},
            {"exclusive": 7},
            {"exclusive": "a*"},
            {"exclusive": "a\nb"},
            {"host_lock": "elsewhere:"},
            {"host_lock": "elsewhere:elsewhere:a"},
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


def test_what_a_job_has_alone_is_its_key():
    """Among many that are checked at once too; the one that has two keys is named."""
    jobs = [NewIngestJob(**LEAST), NewIngestJob(**LEAST, exclusive="account-7")]
    assert [dict(zip(BULK.names, ROWS.row(job), strict=True))["limit_key"] for job in jobs] == [
        None,
        "exclusive:account-7",
    ]
    assert ROWS.columns(jobs).each["limit_key"] == (None, "exclusive:account-7")
    with pytest.raises(PayloadError, match="both exclusive and limit_key") as caught:
        ROWS.columns([*jobs, NewIngestJob(**LEAST, exclusive="a", limit_key="b")])
    assert caught.value.path == "jobs[2].exclusive"


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


MANY = (
    *(LEAST | {"args": {"n": n}, "dedupe_key": f"k{n}"} for n in range(2 * CHUNK_ROWS + 3)),
    *(LEAST | {"priority": n % 10, "queue": "load", "max_attempts": None} for n in range(100)),
    *(LEAST | FULL | {"task_name": f"t{n}", "limit_key": f"host:{n}"} for n in range(100)),
    *(LEAST | {"delay": 1}, LEAST | {"run_at": datetime(2040, 1, 1, tzinfo=UTC), "reason": "ü" * 5000}),
)


def test_many_jobs_are_the_same_rows_as_one_by_one():
    """Column by column, whatever they have in common or not."""
    columns = ROWS.columns(NewIngestJob(**given) for given in MANY)
    rows = list(zip(*(columns.values(name) for name in BULK.names), strict=True))
    assert rows == [ROWS.of(given) for given in MANY]
    assert ROWS.columns([]).count == 0
    traced = ROWS.columns([NewIngestJob(**LEAST), NewIngestJob(**LEAST | FULL)], traceparent="00-7-7-01")
    assert traced.values("traceparent") == ["00-7-7-01", FULL["traceparent"]]


@pytest.mark.parametrize("at", [0, 77])
@pytest.mark.parametrize(
    "wrong",
    [
        *({name: [7]} for name in ("task_name", "queue", *FULL)),
        *({"priority": True}, {"priority": None}, {"task_name": None}, {"limit_key": "host:*"}),
        *({"dedupe_key": ""}, {"dedupe_key": "\x00"}, {"dedupe_key": "\ud800"}, {"dedupe_key": "k" * 1025}),
        *({"delay": -1}, {"run_at": datetime(2040, 1, 1)}),
    ],
)
def test_a_refused_job_is_named_wherever_it_stands(wrong, at):
    """In the words in which it is refused alone, with its number."""
    with pytest.raises(PayloadError) as alone:
        ROWS.row(NewIngestJob(**LEAST | {"priority": 1} | wrong))
    given = [LEAST | {"dedupe_key": f"k{n}", "priority": 1} for n in range(99)]
    given[at] |= wrong
    with pytest.raises(PayloadError) as caught:
        ROWS.columns(NewIngestJob(**one) for one in given)
    assert str(caught.value) == f"jobs[{at}]: {alone.value}"
    assert caught.value.path == f"jobs[{at}].{alone.value.path}"


@pytest.mark.parametrize("wrong", [True, 1.0])
def test_what_is_only_equal_vouches_for_no_job(wrong):
    """Jobs that say the same are looked at once, and what merely compares equal is another thing."""
    given = [LEAST | {"priority": 1, "max_attempts": 1, "args": {"n": n}} for n in range(9)]
    assert ROWS.columns(NewIngestJob(**one) for one in given).each.keys() == {"args"}
    for name in ("priority", "max_attempts"):
        bad = [NewIngestJob(**one | ({name: wrong} if one is given[7] else {})) for one in given]
        with pytest.raises(PayloadError, match=rf"^jobs\[7\]: {name} must be a whole number"):
            ROWS.columns(bad)


@pytest.mark.parametrize(
    ("limits", "args"),
    [(PayloadLimits(max_bytes=20), {"a": "ü" * 9}), (PayloadLimits(max_depth=0), {"a": 1})],
)
def test_small_args_are_refused_by_smaller_limits(limits, args):
    """What is quick for small args is not what says how large they may be."""
    rows = IngestRows(limits)
    with pytest.raises(PayloadError) as alone:
        rows.row(NewIngestJob(**LEAST, args=args))
    with pytest.raises(PayloadError) as caught:
        rows.columns([NewIngestJob(**LEAST), NewIngestJob(**LEAST, args=args)])
    assert str(caught.value) == f"jobs[1]: {alone.value}"


@pytest.mark.parametrize("wrong", [{"args": {"x": {1}}}, {"delay": -1}])
def test_a_refused_job_is_named_behind_thousands(wrong):
    """Jobs are looked at some thousand at a time, and counted through."""
    given = [*([LEAST] * (CHUNK_ROWS + 1)), LEAST | wrong]
    with pytest.raises(PayloadError, match=rf"^jobs\[{CHUNK_ROWS + 1}\]: "):
        ROWS.columns(NewIngestJob(**one) for one in given)


def test_what_a_generator_does_to_its_one_job_afterwards_changes_no_row():
    """Each is taken as it is when it is handed over."""
    args: dict[str, int] = {}
    job = NewIngestJob(**LEAST, args=args)

    def reused() -> Iterator[NewIngestJob]:
        for n in range(3):
            args["n"], job.dedupe_key = n, f"k{n}"
            yield job

    columns = ROWS.columns(reused())
    assert list(columns.values("args")) == ['{"n":0}', '{"n":1}', '{"n":2}']
    assert list(columns.values("dedupe_key")) == ["k0", "k1", "k2"]
