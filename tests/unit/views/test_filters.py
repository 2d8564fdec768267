"""The grammar of filters: what is written is read as meant, and a typo is named with what is possible."""

from __future__ import annotations

import uuid
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queue_workflows.errors import ExitCode, FilterRefused
from queue_workflows.repositories.reports.job_listing import JobFilter
from queue_workflows.repositories.runs.listing import RunFilter
from queue_workflows.states import JobStatus, RunStatus
from queue_workflows.views.filters import jobs, runs
from queue_workflows.views.filters.grammar import LONGEST_BYTES

RUN = uuid.UUID("0190a4c2-9b1e-7c3d-8e4f-0123456789ab")
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
# What a length of time is written as: seconds to the millisecond, or whole ones of any length.
SPANS = st.one_of(
    st.integers(1, 10 * 365 * 86_400).map(float),
    st.integers(1, 10**9).map(lambda thousandths: thousandths / 1000),
)
JOB_FILTERS = st.builds(
    JobFilter,
    family=st.none() | st.sampled_from(["node", "ingest"]),
    queue=st.none() | TEXTS,
    status=st.none() | st.lists(st.sampled_from(list(JobStatus)), min_size=1, unique=True).map(tuple),
    task=st.none() | TEXTS,
    node=st.none() | TEXTS,
    run_id=st.none() | st.uuids(),
    error=st.none() | TEXTS,
    worker=st.none() | TEXTS,
    held=st.none() | TEXTS,
    older_than_s=st.none() | SPANS,
    newer_than_s=st.none() | SPANS,
)
LABELS = st.dictionaries(
    st.from_regex(r"[a-z][a-z0-9_.-]{0,10}", fullmatch=True),
    TEXTS | st.integers() | st.booleans() | st.none() | st.lists(TEXTS, max_size=2),
    min_size=1,
    max_size=3,
)
RUN_FILTERS = st.builds(
    RunFilter,
    workflow=st.none() | TEXTS,
    labels=st.none() | LABELS,
    status=st.none() | st.lists(st.sampled_from(list(RunStatus)), min_size=1, unique=True).map(tuple),
    poisoned=st.none() | st.just(True),
    older_than_s=st.none() | SPANS,
    newer_than_s=st.none() | SPANS,
    parent=st.none() | st.uuids(),
)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", JobFilter()),
        ("  queue:fetch  status:failed ", JobFilter(queue="fetch", status=("failed",))),
        ('error:"timed out"', JobFilter(error="timed out")),
        (r'error:"say \"no\" \\"', JobFilter(error='say "no" \\')),
        (r"error:C:\temp", JobFilter(error=r"C:\temp")),
        ("status:queued status:running", JobFilter(status=("queued", "running"))),
        ("status:queued status:queued", JobFilter(status=("queued",))),
        ("task:load worker:w7 held:any", JobFilter(task="load", worker="w7", held="any")),
        (f"run:{RUN} node:cut", JobFilter(run_id=RUN, node="cut")),
        (
            "family:node newer:1h30m older:90",
            JobFilter(family="node", newer_than_s=5400.0, older_than_s=90.0),
        ),
    ],
)
def test_a_filter_of_jobs_is_read(text: str, wanted: JobFilter) -> None:
    """Each key, with quotation marks where a value has spaces."""
    assert jobs.job_filter(text) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("workflow:film status:failed", RunFilter(workflow="film", status=("failed",))),
        ('label:customer="Acme Inc" label:size:=3', RunFilter(labels={"customer": "Acme Inc", "size": 3})),
        ("poisoned:yes newer:1d", RunFilter(poisoned=True, newer_than_s=86_400.0)),
        (f"parent:{RUN} status:queued", RunFilter(parent=RUN, status=("queued",))),
    ],
)
def test_a_filter_of_runs_is_read(text: str, wanted: RunFilter) -> None:
    """Labels as the options take them."""
    assert runs.run_filter(text) == wanted


JOB_KEYS = "family, queue, status, task, node, run, error, worker, held, older, newer"
MISTAKES = {
    "stauts:failed": f"no filter 'stauts': one of {JOB_KEYS}",
    "failed": f"'failed' is no filter: write key:value, the key: one of {JOB_KEYS}",
    "status:fialed": f"status 'fialed': one of {', '.join(status.value for status in JobStatus)}",
    "family:nodes": "family 'nodes': one of node, ingest",
    "queue:": "queue: has no value: write queue:value",
    'queue:""': "queue: has no value: write queue:value",
    'task:x error:"timed out': "the quotation mark in 'error:\"timed out' is never closed",
    "queue:a queue:b": "queue is given twice, as 'a' and as 'b'",
    "newer:soon": "newer 'soon' is no length of time: write 90s, 15m, 2h, 1d or 1h30m",
    "run:7": "run '7' is no run's id: write all of it, as `qwf run list` shows it",
    "error:" + "x" * LONGEST_BYTES: "a filter has at most 4,096 bytes, not 4,102",
}


@pytest.mark.parametrize("text", MISTAKES, ids=lambda text: text[:20])
def test_a_typo_is_named_with_what_is_possible(text: str) -> None:
    """On one line, as a mistake of the command line."""
    with pytest.raises(FilterRefused) as refused:
        jobs.job_filter(text)
    assert (str(refused.value), refused.value.exit_code) == (MISTAKES[text], ExitCode.USAGE)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("label:x", "label 'x': write name=text, or name:=JSON"),
        ("label:a=1 label:a=2", "label 'a' is given twice"),
        ("status:scheduled", "status 'scheduled': one of " + ", ".join(status.value for status in RunStatus)),
        ("poisoned:no", "poisoned 'no': one of yes"),
        ("parent:7", "parent '7' is no run's id: write all of it, as `qwf run list` shows it"),
    ],
)
def test_a_typo_of_a_filter_of_runs(text: str, said: str) -> None:
    """Statuses are those of runs."""
    with pytest.raises(FilterRefused) as refused:
        runs.run_filter(text)
    assert str(refused.value) == said


@given(JOB_FILTERS)
def test_a_filter_of_jobs_comes_back_from_its_text(wanted: JobFilter) -> None:
    """Whatever its values hold."""
    assert jobs.job_filter(jobs.text_of(wanted)) == wanted


@given(RUN_FILTERS)
def test_a_filter_of_runs_comes_back_from_its_text(wanted: RunFilter) -> None:
    """Whatever its values hold."""
    assert runs.run_filter(runs.text_of(wanted)) == wanted


@given(st.text(max_size=200))
def test_any_text_is_a_filter_or_refused(text: str) -> None:
    """Nothing else comes of it."""
    with suppress(FilterRefused):
        jobs.job_filter(text)


def test_options_and_a_text_are_one_filter() -> None:
    """What both say has to be the same; statuses in any order."""
    by_options = JobFilter(queue="fetch", status=("queued", "failed"))
    assert jobs.with_text(by_options, None) is by_options
    assert jobs.with_text(by_options, "status:failed status:queued task:x") == JobFilter(
        queue="fetch", status=("queued", "failed"), task="x"
    )
    with pytest.raises(FilterRefused, match=r"^queue is given as an option and, differently, in the"):
        jobs.with_text(by_options, "queue:load")
    labelled = RunFilter(labels={"a": "1"})
    assert runs.with_text(labelled, "label:b=2").labels == {"a": "1", "b": "2"}
    with pytest.raises(FilterRefused, match=r"^label 'a' is given as an option"):
        runs.with_text(labelled, "label:a=2")


def test_what_the_grammar_has_no_word_for() -> None:
    """Conditions of the engine's own are no part of a text."""
    wanted: dict[str, Any] = {"ended_within_s": 60.0, "goes_on": True}
    assert jobs.text_of(JobFilter(queue="q", **wanted)) == "queue:q"
