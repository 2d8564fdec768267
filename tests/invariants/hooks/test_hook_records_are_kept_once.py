"""What a hook said is kept once, whole, and by nobody but the holder of the attempt that ran it."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb
from support.connections.kept import own_connection
from support.processes.workers import until
from support.rows.jobs import CLEAR
from support.rows.runs import dispatcher, settle

from queue_workflows import cancel_run, register_record_type, retry_run
from queue_workflows.errors import HookError, LeaseLost
from queue_workflows.hooks.files import FoundFile
from queue_workflows.hooks.output.child_runs import DEEPEST
from queue_workflows.hooks.output.machine_records import MOST_SUMMED
from queue_workflows.hooks.output.read import HookLine, HookOutput, read_output
from queue_workflows.hooks.output.record_types import RecordContext, RecordType, registered_types
from queue_workflows.hooks.output.store import (
    Storing,
    keep_what_was_left,
    process_hook_records,
    store_and_process,
)
from queue_workflows.repositories import NewNodeJob, NodeJobRepository, RunRepository
from queue_workflows.repositories.claims.end import Ending
from queue_workflows.repositories.hooks.binaries import BINARY_MISSING, hold_key
from queue_workflows.repositories.hooks.records import HookOfJob, HookRecordRepository
from queue_workflows.repositories.sql.checks import NAME_BYTES
from queue_workflows.repositories.sql.claimed_job import ClaimedNodeJob, Fence
from queue_workflows.states import JobStatus
from queue_workflows.workflow.document.load import load_document

CRAWL = load_document(
    {
        "name": "Snapshot",
        "labels": {"team": "blue", "kind": "crawl"},
        "inputs": {
            "url": {"type": "string"},
            "max_depth": {"type": "integer", "default": 0},
            "url_allow": {"type": "array", "default": []},
            "url_deny": {"type": "array", "default": []},
            "agent": {"type": "string", "default": "plain"},
        },
        "nodes": [{"id": "title", "module": "on_Snapshot__10_title.sh", "plugin": "title", "queue": "hooks"}],
    }
)
URL = "http://site.test/"


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    """Empty tables; each statement is seen at once."""
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR)
        yield connection


def held(conn: psycopg.Connection, **inputs: Any) -> ClaimedNodeJob:
    """A hook's job as its worker holds it, in a run over a page."""
    run = RunRepository(conn).insert(
        CRAWL.name,
        spec=CRAWL.snapshot(),
        spec_hash=CRAWL.hash,
        inputs=CRAWL.checked_inputs({"url": URL, **inputs}),
        labels={"team": "red"},
    )
    return of_run(conn, run.id)


def of_run(conn: psycopg.Connection, run_id: uuid.UUID) -> ClaimedNodeJob:
    """The hook of a run, claimed."""
    job = NewNodeJob(
        run_id=run_id, node_id="title", node_module="on_Snapshot__10_title.sh", plugin="title", queue="hooks"
    )
    NodeJobRepository(conn).insert_many([job])
    return claimed(conn)


def claimed(conn: psycopg.Connection, worker: str = "w1") -> ClaimedNodeJob:
    (job,) = NodeJobRepository(conn).claim("hooks", worker_id=worker, lease_s=30, limit=1)
    return job


def output(*records: dict[str, Any], files: tuple[FoundFile, ...] = ()) -> HookOutput:
    lines = [HookLine(n, record["type"], json.dumps(record)) for n, record in enumerate(records, 1)]
    return HookOutput(tuple(lines), files)


def rows(conn: psycopg.Connection) -> list[tuple[Any, ...]]:
    found = conn.execute(
        "SELECT attempt, plugin, hook, line_no, type, warning FROM hook_records ORDER BY attempt, line_no"
    )
    return found.fetchall()


def store(conn: psycopg.Connection, job: ClaimedNodeJob, what: HookOutput) -> dict[str, int]:
    return store_and_process(conn, job.fence, what, host_label="here")


HOOK = ("title", "on_Snapshot__10_title.sh")


def test_reading_an_output_again_stores_it_once(conn: psycopg.Connection, tmp_path: Path) -> None:
    """From the bytes to the rows: records, warnings with their numbers, files; twice is once."""
    job = held(conn)
    (tmp_path / "title").mkdir()
    (tmp_path / "title" / "a.txt").write_text("x")
    (tmp_path / "out").write_bytes(b'{"type":"Tag","name":"x"}\n{\xff\x00\n{"type":"Zebra","n":1}\n')
    for _ in range(2):
        read = read_output(tmp_path / "title", tmp_path / "out", beneath=tmp_path)
        assert store(conn, job, read) == {"Tag": 1, "Zebra": 1}
    assert rows(conn) == [
        (1, *HOOK, 0, "Files", None),
        (1, *HOOK, 1, "Tag", None),
        (1, *HOOK, 2, "Warning", "not UTF-8: {\\xff\\x00"),
        (1, *HOOK, 3, "Zebra", None),
    ]
    listing = HookRecordRepository(conn).list(job.run_id, kind="Files")[0].payload
    assert [found["path"] for found in listing["files"]] == ["a.txt"]


def test_a_retry_takes_the_place_of_what_a_failed_attempt_said(conn: psycopg.Connection) -> None:
    """Partial records are kept; who asks for a run's records gets those of each job's last attempt."""
    job = held(conn)
    store(conn, job, output({"type": "Tag", "name": "one"}, {"type": "Tag", "name": "two"}))
    NodeJobRepository(conn).end_many([Ending(job.fence, JobStatus.QUEUED)])
    again = claimed(conn)
    store(conn, again, output())
    records = HookRecordRepository(conn)
    assert records.counts(job.run_id) == {"Files": 1}
    assert [each.type for each in records.list(job.run_id, all_attempts=True)] == [
        *("Files", "Tag", "Tag"),
        "Files",
    ]


def test_what_a_killed_attempt_printed_is_kept_by_the_next(conn: psycopg.Connection, qwf_dsn: str) -> None:
    """Once, without effect, and only by who holds the job; what was stored in time is left alone."""
    job = held(conn, max_depth=1)
    NodeJobRepository(conn).end_many([Ending(job.fence, JobStatus.QUEUED)])
    again = claimed(conn)
    printed = output({"type": "Run", "url": f"{URL}a"})
    with pytest.raises(LeaseLost):
        keep_what_was_left(conn, again.fence._replace(claimed_by="another"), 1, printed)
    records = HookRecordRepository(conn)
    assert records.stored_before(again.fence) == set()
    taking_it = "SELECT FROM workflow_node_jobs FOR NO KEY UPDATE NOWAIT"
    for _ in range(2):
        with conn.transaction():
            keep_what_was_left(conn, again.fence, 1, printed)
            with psycopg.connect(qwf_dsn) as other, pytest.raises(psycopg.errors.LockNotAvailable):
                other.execute(taking_it)
    assert records.stored_before(again.fence) == {1}
    assert [(row[0], row[4]) for row in rows(conn)] == [(1, "Files"), (1, "Run")]
    assert RunRepository(conn).counts() == {"Snapshot": {"queued": 1}}
    store(conn, again, output())
    assert records.counts(job.run_id) == {"Files": 1}


def test_of_each_earlier_attempt_it_is_known_what_it_came_to(conn: psycopg.Connection) -> None:
    """By its own files, records beside its result and `output_json`; the last result counts."""
    page, empty = FoundFile("p", 1, "text/plain", "ab"), FoundFile("e", 0, "text/plain", "ab")
    said = [
        {"type": "Result", "status": status, "output_str": "x" * 300} for status in ("failed", "succeeded")
    ]
    came_to = [
        (output(*said, files=(page, empty)), ("succeeded", "x" * 200, 2, True)),
        (output(said[0], files=(empty,)), ("failed", "x" * 200, 1, False)),
        (output(said[0], {"type": "Zebra"}), ("failed", "x" * 200, 0, True)),
        (output({"type": "Result", "status": 1, "output_json": [0]}), (None, "", 0, True)),
        (
            output({"type": "ArchiveResult", "status": "noresults", "output_json": {}}),
            ("noresults", "", 0, False),
        ),
        (HookOutput((HookLine(1, "Warning", warning="w"),)), (None, "", 0, False)),
        (HookOutput((), (page,), since_ns=1), (None, "", 1, False)),
    ]
    job = held(conn)
    for what, _ in came_to:
        store(conn, job, what)
        NodeJobRepository(conn).end_many([Ending(job.fence, JobStatus.QUEUED)])
        job = claimed(conn)
    store(conn, job, output({"type": "Zebra"}))
    records = HookRecordRepository(conn)
    expected = [(attempt, *known) for attempt, (_, known) in enumerate(came_to, 1)]
    assert [tuple(one) for one in records.earlier(job.fence, 20)] == expected
    assert [tuple(one) for one in records.earlier(job.fence, 2)] == expected[-2:]
    assert records.of_attempt(job.id, 1) == ([page.as_json(), empty.as_json()], said[1])
    assert records.of_attempt(job.id, 7) == ([page.as_json()], {})


@pytest.mark.parametrize("by", ["nobody", "w1", "w2"])
def test_who_lost_the_lease_writes_nothing(conn: psycopg.Connection, by: str) -> None:
    """Neither after the job has ended, nor when another worker, or its own later attempt, has it."""
    job = held(conn, max_depth=1)
    status = JobStatus.FAILED if by == "nobody" else JobStatus.QUEUED
    NodeJobRepository(conn).end_many([Ending(job.fence, status)])
    if by != "nobody":
        claimed(conn, by)
    with pytest.raises(LeaseLost):
        store(conn, job, output({"type": "Run", "url": f"{URL}a"}))
    assert rows(conn) == []
    assert RunRepository(conn).counts() == {"Snapshot": {"queued": 1}}


def test_a_death_before_the_commit_leaves_nothing(conn: psycopg.Connection, qwf_dsn: str) -> None:
    """Records and what they started are one transaction: a worker that dies in it has said nothing."""

    @register_record_type("Death")
    def die(_record: dict[str, Any], ctx: RecordContext) -> None:
        ctx.conn.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    job = held(conn, max_depth=1)
    child = {"type": "Run", "url": f"{URL}a"}
    with psycopg.connect(qwf_dsn, autocommit=True) as dying, pytest.raises(psycopg.OperationalError):
        store(dying, job, output(child, {"type": "Death"}))
    assert rows(conn) == []
    assert RunRepository(conn).counts() == {"Snapshot": {"queued": 1}}
    store(conn, job, output(child))
    assert RunRepository(conn).counts() == {"Snapshot": {"queued": 2}}


def test_a_handler_that_raises_costs_its_own_record(conn: psycopg.Connection) -> None:
    """What it wrote is undone, its record says why, and the records around it count."""

    @register_record_type("Price")
    def keep(record: dict[str, Any], ctx: RecordContext) -> None:
        ctx.conn.execute("UPDATE workflow_runs SET parcel_id = %s WHERE id = %s", [record["of"], ctx.run_id])
        if record["of"] == "wrong":
            ctx.conn.execute("SELECT 1 / 0")

    job = held(conn)
    prices = [{"type": "Price", "of": of} for of in ("right", "wrong")]
    assert store(conn, job, output(*prices, {"type": "Tag", "name": "x"}, {"type": "Tag"})) == {
        "Price": 1,
        "Tag": 1,
    }
    assert [row[3:] for row in rows(conn)] == [
        (0, "Files", None),
        (1, "Price", None),
        (2, "Price", "Price: division by zero"),
        (3, "Tag", None),
        (4, "Tag", "Tag: a tag has a name"),
    ]
    run = RunRepository(conn).fetch(job.run_id)
    assert run is not None
    assert run.parcel_id == "right"


def test_handlers_keep_nobody_from_renewing(conn: psycopg.Connection, qwf_dsn: str) -> None:
    """However long they take: a worker renews all its leases in one statement, which waits for every row."""
    job = held(conn)

    @register_record_type("Slow")
    def renew(_record: dict[str, Any], _ctx: RecordContext) -> None:
        with psycopg.connect(qwf_dsn, autocommit=True, options="-c lock_timeout=5s") as guardian:
            assert NodeJobRepository(guardian).renew([job.fence], lease_s=30) == {job.id: None}

    assert store(conn, job, output({"type": "Slow"}, {"type": "Slow"})) == {"Slow": 2}
    assert [row[5] for row in rows(conn)] == [None] * 3


@pytest.mark.parametrize("others", [[{"type": "Run", "url": f"{URL}a"}], []])
def test_who_loses_the_lease_meanwhile_takes_everything_back(
    conn: psycopg.Connection, qwf_dsn: str, others: list[dict[str, Any]]
) -> None:
    """The fence is held when all handlers are through, also if they are the app's alone."""
    job = held(conn, max_depth=1)

    @register_record_type("Late")
    def lose(_record: dict[str, Any], ctx: RecordContext) -> None:
        with psycopg.connect(qwf_dsn, autocommit=True, options="-c lock_timeout=5s") as other:
            NodeJobRepository(other).end_many([Ending(job.fence, JobStatus.QUEUED)])
        ctx.conn.execute("UPDATE workflow_runs SET parcel_id = 'late' WHERE id = %s", [ctx.run_id])

    hook = HookOfJob(job.run_id, *HOOK)
    printed = output(*others, {"type": "Late"})
    storing = Storing(job.fence, printed, host_label="here", hook=hook, clock=lambda: 0.0)
    with pytest.raises(LeaseLost):
        storing.store_part(conn)
    assert rows(conn) == []
    (run,) = RunRepository(conn).list()
    assert (run.id, run.parcel_id) == (job.run_id, None)


def test_many_records_are_stored_part_by_part(conn: psycopg.Connection, qwf_dsn: str) -> None:
    """Each part is there when it is done; what a death leaves of an attempt is kept by the next."""
    job = held(conn, max_depth=1)
    printed = found_links("a", "b", "c")
    storing = Storing(job.fence, printed, host_label="here", clock=count(0.0, 10.0).__next__)
    with psycopg.connect(qwf_dsn, autocommit=True) as another:
        for lines in ([1], [1, 2]):
            storing.store_part(conn)
            assert [row[3] for row in rows(another)] == lines
            assert not storing.is_done
    assert (storing.counts, len(children(conn, job))) == ({"Snapshot": 2}, 2)
    NodeJobRepository(conn).end_many([Ending(job.fence, JobStatus.QUEUED)])
    again = claimed(conn)
    assert HookRecordRepository(conn).stored_before(again.fence) == set()
    keep_what_was_left(conn, again.fence, 1, printed)
    assert [row[:1] + row[3:5] for row in rows(conn)] == [
        (1, 0, "Files"),
        *((1, line, "Snapshot") for line in (1, 2, 3)),
    ]
    assert store(conn, again, printed) == {"Snapshot": 3}
    assert len(children(conn, job)) == 3


def test_a_handlers_own_database_may_be_away(conn: psycopg.Connection) -> None:
    """That is a warning beside its record, as any failure of a handler; the others are stored."""

    @register_record_type("Elsewhere")
    def connect(_record: dict[str, Any], _ctx: RecordContext) -> None:
        psycopg.connect("host=/nowhere dbname=none")

    assert store(conn, held(conn), output({"type": "Elsewhere"}, {"type": "Tag", "name": "x"})) == {"Tag": 1}
    assert [row[3:5] for row in rows(conn)] == [(0, "Files"), (1, "Elsewhere"), (2, "Tag")]
    assert rows(conn)[1][5].startswith("Elsewhere: ")


def test_a_class_is_registered_by_its_from_jsonl(conn: psycopg.Connection) -> None:
    """Records need not come from a hook: whoever has a transaction and a context may process them."""

    @register_record_type("Song")
    class Song:
        taken: list[str] = []

        @classmethod
        def from_jsonl(cls, record: dict[str, Any], ctx: RecordContext) -> None:
            cls.taken.append(f"{ctx.line_no} {record['title']}")

    job = held(conn)
    ctx = RecordContext(conn, job.run_id, job.id, job.attempt, *HOOK, "here")
    with conn.transaction():
        counts = process_hook_records(
            [{"type": "Song", "title": "a"}, {"type": "Other"}, {"type": "Song", "title": "b"}], ctx
        )
    assert (counts, Song.taken) == ({"Other": 1, "Song": 2}, ["1 a", "3 b"])


# A crawl.


def children(conn: psycopg.Connection, job: ClaimedNodeJob) -> list[tuple[str, Any, int]]:
    found = RunRepository(conn).list(parent_run_id=job.run_id, newest_first=False)
    assert all(run.labels["crawl"] == str(job.run_id) and run.labels["team"] == "red" for run in found)
    return [(run.inputs["url"], run.labels["crawl_depth"], run.depth) for run in found]


def found_links(*urls: str) -> HookOutput:
    return output(*({"type": "Snapshot", "url": url} for url in urls))


def test_a_crawl_starts_each_page_once(conn: psycopg.Connection) -> None:
    """However it is written, however many name it, and however often it is tried; but for the first page."""
    job = held(conn, max_depth=1)
    links = found_links("a", "HTTP://Site.test:80/a#top", "b?x=1", "/", URL, "#here", "mailto:me@x.test")
    for _ in range(2):
        assert store(conn, job, links) == {"Snapshot": 7}
    assert children(conn, job) == [(f"{URL}a", 1, 1), (f"{URL}b?x=1", 1, 1)]
    NodeJobRepository(conn).end_many([Ending(job.fence, JobStatus.QUEUED)])
    again = claimed(conn)
    store(conn, again, links)
    assert len(children(conn, job)) == 2


def test_a_page_keeps_its_user_as_it_is_written(conn: psycopg.Connection) -> None:
    """Only a host's name is the same in capitals."""
    job = held(conn, max_depth=1)
    store(conn, job, found_links("http://Ann:Secret@Site.TEST:80/a"))
    assert children(conn, job) == [("http://Ann:Secret@site.test/a", 1, 1)]


def test_a_cancel_takes_the_crawl_with_it(conn: psycopg.Connection) -> None:
    """The runs that a cancelled run has found are cancelled, and each can be retried; it finds no more."""
    job = held(conn, max_depth=2)
    store(conn, job, found_links("a"))
    cancel_run(job.run_id, conn=conn, reason="enough")
    settle(dispatcher(conn))
    store(conn, job, found_links("b"))
    NodeJobRepository(conn).end_many([Ending(job.fence, JobStatus.COMPLETED)])
    settle(dispatcher(conn))
    (child,) = RunRepository(conn).list(parent_run_id=job.run_id)
    assert (child.status, child.cancel_reason) == ("cancelled", "enough")
    retry_run(child.id, conn=conn)
    again = RunRepository(conn).fetch(child.id)
    assert again is not None
    assert again.status == "running"


def test_a_crawl_goes_so_deep_and_where_it_may(conn: psycopg.Connection) -> None:
    """`max_depth` 0 goes nowhere; the lists of the crawl's inputs say where else, whatever a page says.

    What the run says of itself besides holds for those that it found.
    """
    nowhere = held(conn)
    store(conn, nowhere, found_links("a"))
    assert children(conn, nowhere) == []
    job = held(conn, max_depth=1, url_allow=["^http://site"], url_deny=["private"])
    said = (8, "east", f"00-{'1' * 32}-{'2' * 16}-01")
    conn.execute(
        "UPDATE workflow_runs SET (priority, parcel_id, traceparent) = (%s, %s, %s) WHERE id = %s",
        [*said, job.run_id],
    )
    links = [{"type": "Run", "url": url, "inputs": {"max_depth": 9}} for url in ("a", "private/b")]
    store(conn, job, output(*links, {"type": "Run", "url": "http://other.test/"}))
    assert children(conn, job) == [(f"{URL}a", 1, 1)]
    (child,) = RunRepository(conn).list(parent_run_id=job.run_id)
    assert child.inputs["max_depth"] == 1
    assert (child.priority, child.parcel_id, child.traceparent) == said
    wrong = held(conn, max_depth=1, url_allow=["("])
    assert store(conn, wrong, found_links("a")) == {}
    warned = HookRecordRepository(conn).list(wrong.run_id, kind="Snapshot")[0].warning
    assert warned is not None
    assert "no list of regular expressions" in warned


def test_a_page_of_a_page_is_one_step_further(conn: psycopg.Connection) -> None:
    """Up to the depth of its crawl; it is as the page that named it, but for what the record says."""
    job = held(conn, max_depth=2, agent="firm")
    other = {"type": "Run", "url": "b", "inputs": {"agent": "other"}}
    store(conn, job, output({"type": "Run", "url": "a"}, other))
    first, second = RunRepository(conn).list(parent_run_id=job.run_id, newest_first=False)
    assert (first.inputs["agent"], second.inputs["agent"]) == ("firm", "other")
    crawl = {"team": "red", "kind": "crawl", "crawl": str(job.run_id)}
    assert first.labels == crawl | {"crawl_depth": 1}
    deeper = of_run(conn, first.id)
    store(conn, deeper, found_links("c"))
    (third,) = RunRepository(conn).list(parent_run_id=first.id)
    assert (third.labels, third.depth) == (crawl | {"crawl_depth": 2}, 2)
    deepest = of_run(conn, third.id)
    store(conn, deepest, found_links("d"))
    assert RunRepository(conn).list(parent_run_id=third.id) == []


def test_no_crawl_is_without_an_end(conn: psycopg.Connection) -> None:
    """However deep its inputs would have it go."""
    job = held(conn, max_depth=1_000_000)
    for depth in (DEEPEST - 1, DEEPEST):
        label = Jsonb({"crawl_depth": depth})
        conn.execute("UPDATE workflow_runs SET labels = labels || %s WHERE id = %s", [label, job.run_id])
        store(conn, job, found_links(f"page{depth}"))
    assert children(conn, job) == [(f"{URL}page{DEEPEST - 1}", DEEPEST, 1)]


def test_what_is_said_of_a_machine_is_of_the_one_that_ran_the_hook(conn: psycopg.Connection) -> None:
    """Whatever machine the records name; facts add up."""
    far = {"host_label": "far", "machine_id": 0}
    said = [
        {"type": "Machine", "facts": {"cpus": 2, "os": "old"}, **far},
        {"type": "Machine", "facts": {"os": "new"}, **far},
        {"type": "Binary", "name": "sh", "abspath": "/bin/sh", **far},
    ]
    assert store_and_process(conn, held(conn).fence, output(*said), host_label="near") == {
        "Binary": 1,
        "Machine": 2,
    }
    known = conn.execute(
        "SELECT host_label, facts, name FROM machines LEFT JOIN binaries ON machine_id = machines.id"
        " WHERE host_label IN ('near', 'far')"
    )
    assert known.fetchall() == [("near", {"cpus": 2, "os": "new"}, "sh")]


def test_a_program_that_a_hook_reports_lets_those_go_on_that_waited_for_it(conn: psycopg.Connection) -> None:
    """On its own machine; who waits for another, or elsewhere, waits on."""
    waiting = []
    for key in (hold_key("near", "sh"), hold_key("far", "sh"), hold_key("near", "zsh")):
        job = held(conn)
        aside = {"delay_s": 3600.0, "hold_reason": BINARY_MISSING, "hold_key": key}
        NodeJobRepository(conn).end(Ending(job.fence, JobStatus.SCHEDULED, **aside))
        waiting.append(job.id)
    said = output({"type": "Binary", "name": "sh", "abspath": "/bin/sh"})
    store_and_process(conn, held(conn).fence, said, host_label="near")
    found = conn.execute("SELECT id FROM workflow_node_jobs WHERE status = 'queued'").fetchall()
    assert found == [(waiting[0],)]


def test_what_cannot_be_stored_is_not_tried_for_ever(conn: psycopg.Connection, qwf_dsn: str) -> None:
    """A record whose handler takes the connection along each time ends its hook's attempt."""

    @register_record_type("Fatal")
    def kill(_record: dict[str, Any], ctx: RecordContext) -> None:
        ctx.conn.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    storing = Storing(held(conn).fence, output({"type": "Fatal"}), host_label="here")
    for _ in range(10):
        with psycopg.connect(qwf_dsn, autocommit=True) as own, pytest.raises(psycopg.OperationalError):
            storing.store_part(own)
    with pytest.raises(HookError, match="could not be stored, though it was tried 10 times"):
        storing.store_part(conn)
    assert rows(conn) == []


def test_an_apps_own_handler_takes_the_place_of_a_built_in_one(
    conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same type, also for what that one would refuse."""
    taken: list[Any] = []
    own = RecordType(lambda record, _ctx: taken.append(record))
    monkeypatch.setitem(registered_types()._types, "Tag", own)
    assert store(conn, held(conn), output({"type": "Tag"})) == {"Tag": 1}
    assert taken == [{"type": "Tag"}]


WAITING = """SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock'"""


def test_pages_that_name_the_same_ones_wait_in_no_circle(conn: psycopg.Connection, qwf_dsn: str) -> None:
    """In whatever order they name them: all that a page names is started in the order of its key."""
    root = held(conn, max_depth=2)
    store(conn, root, found_links("one", "two"))
    pages = RunRepository(conn).list(parent_run_id=root.run_id)
    jobs = [of_run(conn, page.id) for page in pages]
    names = [f"page{number}" for number in range(9)]
    failed: list[Exception] = []

    def print_links(job: ClaimedNodeJob, links: list[str]) -> None:
        with psycopg.connect(qwf_dsn, autocommit=True) as own:
            try:
                store(own, job, found_links(*links))
            except psycopg.Error as wrong:
                failed.append(wrong)

    with psycopg.connect(qwf_dsn) as other:
        # Somebody names the one in the middle, and has not committed yet.
        digest = hashlib.sha256(f"{URL}{names[4]}".encode()).hexdigest()[:40]
        key = f"crawl:{root.run_id}:{digest}"
        RunRepository(other).insert(CRAWL.name, spec=CRAWL.snapshot(), spec_hash=CRAWL.hash, dedupe_key=key)
        orders = zip(jobs, (names, names[::-1]), strict=True)
        threads = [threading.Thread(target=print_links, args=each) for each in orders]
        for thread in threads:
            thread.start()
        until(lambda: conn.execute(WAITING).fetchone() == (2,))
        other.rollback()
        for thread in threads:
            thread.join()
    assert failed == []
    found = [RunRepository(conn).list(parent_run_id=page.id) for page in pages]
    assert sorted(run.inputs["url"] for runs in found for run in runs) == [f"{URL}{name}" for name in names]


def test_runs_that_cannot_be_started_are_warnings(conn: psycopg.Connection) -> None:
    """Each record's own; what else the hook said has its effect."""
    job = held(conn, max_depth=1)
    conn.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not today'; END $$;"
        "CREATE TRIGGER refuse BEFORE INSERT ON workflow_runs EXECUTE FUNCTION refuse()"
    )
    try:
        tag = {"type": "Tag", "name": "t"}
        links = [{"type": "Run", "url": url} for url in ("a", "b", "mailto:c@d")]
        assert store(conn, job, output(*links, tag)) == {"Run": 1, "Tag": 1}
    finally:
        conn.execute("DROP FUNCTION refuse CASCADE")
    warned = [(row[3], (row[5] or "").splitlines()[:1]) for row in rows(conn) if row[3]]
    assert warned == [(1, ["Run: not today"]), (2, ["Run: not today"]), (3, []), (4, [])]


def test_what_has_no_other_effect_is_stored_by_one_statement(conn: psycopg.Connection, qwf_dsn: str) -> None:
    """With the same rows, once, under the same fence: who has lost the job writes nothing."""
    job = held(conn)
    hook = HookOfJob(job.run_id, *HOOK)
    lines = [
        HookLine(1, "Note", '{"type": "Note", "name": "x"}'),
        HookLine(2, "Warning", warning="not JSON"),
        HookLine(3, "Result", '{"type": "Result", "status": "odd"}'),
        HookLine(4, "Zebra", '{"type": "Zebra"}'),
    ]

    def stored(fence: Fence) -> Counter[str]:
        storing = Storing(fence, HookOutput(tuple(lines)), host_label="here", hook=hook)
        storing.store_part(once)
        assert storing.is_done
        return storing.counts

    with psycopg.connect(qwf_dsn, autocommit=True) as once:
        for _ in range(2):
            assert stored(job.fence) == {"Note": 1, "Zebra": 1}
        assert once.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        assert [row[3:] for row in rows(conn)] == [
            (0, "Files", None),
            (1, "Note", None),
            (2, "Warning", "not JSON"),
            (3, "Result", "Result: status must be one of succeeded, noresults, failed, skipped, not 'odd'"),
            (4, "Zebra", None),
        ]
        assert {row[:3] for row in rows(conn)} == {(1, *HOOK)}
        NodeJobRepository(conn).end_many([Ending(job.fence, JobStatus.QUEUED)])
        again = claimed(conn, "w2")
        with pytest.raises(LeaseLost):
            stored(job.fence._replace(attempt=again.attempt))
        assert len(rows(conn)) == 5


def test_what_does_not_fit_into_one_statement_is_stored_all_the_same(
    conn: psycopg.Connection, qwf_dsn: str
) -> None:
    """In as many as it takes, all of them or none."""
    job = held(conn)
    text = json.dumps({"type": "Zebra", "text": "x" * 900_000})
    large = HookOutput(tuple(HookLine(number, "Zebra", text) for number in range(1, 11)))
    hook = HookOfJob(job.run_id, *HOOK)
    storing = Storing(job.fence, large, host_label="here", hook=hook, clock=lambda: 0.0)
    with psycopg.connect(qwf_dsn, autocommit=True) as once:
        storing.store_part(once)
    assert (storing.is_done, storing.counts, len(rows(conn))) == (True, {"Zebra": 10}, 11)


def test_checksums_are_made_before_anything_is_stored_and_of_so_much(
    conn: psycopg.Connection, tmp_path: Path
) -> None:
    """A huge sparse file holds up no transaction: it has none, and a warning; nor has what has no end."""
    job = held(conn)
    for name, size in {"small": 0, "sparse": MOST_SUMMED + 1}.items():
        program = tmp_path / name
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
        if size:
            os.truncate(program, size)
    printed = output(
        *({"type": "Binary", "name": name, "abspath": str(tmp_path / name)} for name in ("small", "sparse"))
    )
    storing = Storing(job.fence, printed, host_label="here")
    # Whoever reads it now reads something else.
    (tmp_path / "small").write_text("other")
    while not storing.is_done:
        storing.store_part(conn)
    assert storing.counts == {"Binary": 2}
    found = conn.execute("SELECT name, sha256 FROM binaries WHERE name IN ('small', 'sparse') ORDER BY name")
    assert found.fetchall() == [("small", hashlib.sha256(b"#!/bin/sh\n").hexdigest()), ("sparse", None)]
    warnings = {line_no: warning for *_, line_no, _, warning in rows(conn)}
    assert warnings[1] is None
    assert f"{tmp_path}/sparse has no checksum" in str(warnings[2])


def labels_of(conn: psycopg.Connection, run_id: uuid.UUID) -> dict[str, Any]:
    run = RunRepository(conn).fetch(run_id)
    assert run is not None
    return run.labels


def test_a_tag_is_a_label_of_its_run(conn: psycopg.Connection) -> None:
    """With its value, or true; a run that is found on the way does not bear it."""
    job = held(conn, max_depth=1)
    tags = ({"type": "Tag", "name": "news"}, {"type": "Tag", "name": " lang ", "value": "en"})
    assert store(conn, job, output(*tags, {"type": "Snapshot", "url": "/found"})) == {
        "Snapshot": 1,
        "Tag": 2,
    }
    assert labels_of(conn, job.run_id) == {"team": "red", "tag:news": True, "tag:lang": "en"}
    (again,) = (
        of_run(conn, run_id)
        for (run_id,) in conn.execute(
            "SELECT id FROM workflow_runs WHERE parent_run_id IS NOT NULL"
        ).fetchall()
    )
    assert "tag:news" not in labels_of(conn, again.run_id)
    found = RunRepository(conn).list(labels={"tag:news": True})
    assert [run.id for run in found] == [job.run_id]


def test_a_record_of_the_runs_own_type_with_its_id_updates_it(conn: psycopg.Connection) -> None:
    """Its title and its labels, the last one of each; without its id it is a page that was found."""
    job = held(conn, max_depth=1)
    own = {"type": "Snapshot", "id": str(job.run_id)}
    records = (
        {**own, "title": "Canals", "url": URL, "labels": {"lang": "en", "n": 1}},
        {**own, "title": "Canals and locks", "labels": {"n": 2, "title": "another"}},
        {"type": "Snapshot", "id": str(uuid.uuid4()), "url": "/other", "title": "Other"},
        {"type": "Snapshot", "id": "", "url": "/third"},
        {"type": "Page", "id": str(job.run_id), "title": "of another type"},
    )
    assert store(conn, job, output(*records)) == {"Page": 1, "Snapshot": 4}
    assert labels_of(conn, job.run_id) == {
        "team": "red",
        "lang": "en",
        "n": 2,
        "title": "Canals and locks",
    }
    urls = conn.execute(
        "SELECT inputs ->> 'url' FROM workflow_runs WHERE parent_run_id IS NOT NULL ORDER BY 1"
    )
    assert [url for (url,) in urls.fetchall()] == [f"{URL}other", f"{URL}third"]
    titled = conn.execute("SELECT count(*) FROM workflow_runs WHERE labels ? 'title'")
    assert titled.fetchone() == (1,)


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"title": 5}, "the title of a run is a text, not 5"),
        ({"labels": ["a"]}, "the `labels` of a run are an object"),
        ({"labels": {"crawl": "x"}}, "the label crawl is the engine's own"),
        ({"labels": {str(n): n for n in range(201)}}, "the run would have more than 200 labels"),
        ({"labels": {"a": {"b": 1}}}, "the label 'a' is no text, number, true or false"),
        ({"labels": {"a": None}}, "the label 'a' is no text, number, true or false"),
        ({"labels": {"": 1}}, f"the name of a label has 1 to {NAME_BYTES} bytes"),
    ],
)
def test_what_cannot_be_said_of_a_run_is_a_warning(
    conn: psycopg.Connection, record: dict[str, Any], said: str
) -> None:
    """The run stays as it is, and what else the hook said has its effect."""
    job = held(conn)
    own = {"type": "Snapshot", "id": str(job.run_id)}
    assert store(conn, job, output({**own, **record}, {"type": "Zebra"})) == {"Zebra": 1}
    assert labels_of(conn, job.run_id) == {"team": "red"}
    assert [warning for *_, warning in rows(conn) if warning] == [f"Snapshot: {said}"]


def test_a_title_is_not_lost_with_too_many_labels(conn: psycopg.Connection) -> None:
    """Of what is said at once, each line that can be written is; one that cannot be is told of."""
    job = held(conn)
    own = {"type": "Snapshot", "id": str(job.run_id), "title": "Canals"}
    tags = [{"type": "Tag", "name": str(number)} for number in range(200)]
    many = {**own, "labels": {str(n): n for n in range(201)}}
    assert store(conn, job, output(many, *tags)) == {"Tag": 198}
    labels = labels_of(conn, job.run_id)
    assert (labels["title"], labels["team"], len(labels)) == ("Canals", "red", 200)
    assert len([warning for *_, warning in rows(conn) if warning]) == 3


@pytest.mark.parametrize("value", [["a"], {"a": 1}])
def test_a_tag_has_a_name_and_at_most_a_plain_value(conn: psycopg.Connection, value: Any) -> None:
    """Anything else is a warning."""
    job = held(conn)
    tag = {"type": "Tag", "name": "x"}
    assert store(conn, job, output({**tag, "value": value}, {**tag, "name": "x" * 3_000})) == {}
    assert [warning for *_, warning in rows(conn) if warning] == [
        "Tag: the value of a tag is a text, a number, true or false",
        f"Tag: the name of a tag has at most {NAME_BYTES} bytes",
    ]


def test_who_lost_the_job_labels_nothing(conn: psycopg.Connection) -> None:
    """A label is there together with the record that made it, or not at all."""
    job = held(conn)
    conn.execute("UPDATE workflow_node_jobs SET attempt = attempt + 1 WHERE id = %s", [job.id])
    with pytest.raises(LeaseLost):
        store(conn, job, output({"type": "Tag", "name": "late"}))
    assert labels_of(conn, job.run_id) == {"team": "red"}


def test_a_program_without_a_path_is_asked_for(conn: psycopg.Connection) -> None:
    """It stands among the machine's programs, with whoever may install it, until somebody does."""
    conn.execute("TRUNCATE machines, binaries CASCADE")
    asked = {"type": "Binary", "name": "yt-dlp", "binproviders": "pip,env", "overrides": {"pip": {"x": 1}}}
    found = {"type": "Binary", "name": "sh", "abspath": "/bin/sh", "binprovider": "env"}
    wrong = ({**asked, "name": ""}, {**asked, "overrides": []}, {**asked, "overrides": ["a"]})
    assert store(conn, held(conn), output(asked, found, *wrong)) == {"Binary": 3}
    stored = "SELECT name, status, bin_providers, overrides, provider FROM binaries ORDER BY name"
    assert conn.execute(stored).fetchall() == [
        ("sh", "installed", None, {}, "env"),
        ("yt-dlp", "queued", "pip,env", {"pip": {"x": 1}}, None),
    ]


def test_pages_of_a_crawl_with_a_cap_wait_for_their_turn(conn: psycopg.Connection) -> None:
    """They are on hold from their first moment, and the run that has the cap is told."""
    job = held(conn, max_depth=1)
    conn.execute("UPDATE workflow_runs SET max_open_runs = 2, capped_by = id WHERE id = %s", [job.run_id])
    store(conn, job, output({"type": "Run", "url": "a"}, {"type": "Run", "url": "b"}))
    on_hold = "SELECT hold_reason, capped_by FROM workflow_runs WHERE parent_run_id = %s"
    assert conn.execute(on_hold, [job.run_id]).fetchall() == [("open_runs", job.run_id)] * 2
    told = "SELECT run_id FROM workflow_dispatch_events WHERE kind = 'descendants'"
    assert conn.execute(told).fetchall() == [(job.run_id,)]


def test_a_version_that_a_record_asks_for_is_told_to_be_passed_over(conn: psycopg.Connection) -> None:
    """The program is asked for all the same; what plugins say of its version is what counts."""
    conn.execute("TRUNCATE machines, binaries CASCADE")
    job = held(conn)
    store(conn, job, output({"type": "Binary", "name": "yt-dlp", "min_version": "2.0"}))
    (record,) = HookRecordRepository(conn).list(job.run_id, kind="Binary")
    assert record.warning is not None
    assert record.warning.startswith("Binary: yt-dlp is asked for in any version: a `min_version` is kept of")
    assert conn.execute("SELECT name, status FROM binaries").fetchall() == [("yt-dlp", "queued")]
