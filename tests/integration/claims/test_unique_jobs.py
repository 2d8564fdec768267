"""`unique=Unique(…)`: one job where many would be the same, also for producers that race."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from support.processes.embedded_users import until

from queue_workflows import (
    ConfigurationError,
    NewIngestJob,
    PayloadError,
    Unique,
    enqueue_ingest_job,
    enqueue_many,
    ingest_task,
)
from queue_workflows.repositories import Enqueued, IngestJobRepository
from queue_workflows.states import JobStatus

Conn = psycopg.Connection[Any]
DEBOUNCED = Unique(by=("args.order",), states=("queued",), replace=("args", "run_at", "priority"))


def ask(conn: Conn, unique: Unique, args: dict[str, Any] | None = None, **options: Any) -> Enqueued:
    return enqueue_ingest_job("index", queue="fetch", args=args, unique=unique, conn=conn, **options)


def claim(jobs: IngestJobRepository) -> Any:
    (job,) = jobs.claim("fetch", worker_id="a:fetch:1", lease_s=60)
    return job


def test_one_job_of_those_that_are_alike(conn: Conn, jobs: IngestJobRepository) -> None:
    """By all args, by one of them, by the queue or by a key of its own; of each task for itself."""
    first = ask(conn, Unique(), {"a": 1, "b": 2})
    assert ask(conn, Unique(), {"b": 2, "a": 1}) == (first.id, False)
    assert ask(conn, Unique(), {"a": 1}).created
    by_one = ask(conn, Unique(by=("args.a", "queue")), {"a": 1, "b": 3})
    assert ask(conn, Unique(by=("args.a", "queue")), {"a": 1, "b": 4}) == (by_one.id, False)
    mine = ask(conn, Unique(key="mine"), {"a": 7})
    assert ask(conn, Unique(key="mine"), {"a": 8}) == (mine.id, False)
    assert enqueue_ingest_job("other", queue="fetch", unique=Unique(key="mine"), conn=conn).created
    assert jobs.fetch(mine.id).args == {"a": 7}
    assert jobs.fetch(mine.id).dedupe_key == "unique:mine"


def test_a_job_counts_while_it_is_in_one_of_the_states(conn: Conn, jobs: IngestJobRepository) -> None:
    """By default while it waits or runs, and no longer; others may be named."""
    first = ask(conn, Unique(key="k"), delay=3600)
    assert ask(conn, Unique(key="k")) == (first.id, False)
    assert jobs.cancel(first.id) is JobStatus.CANCELLED
    second = ask(conn, Unique(key="k"))
    running = claim(jobs)
    assert (running.id, ask(conn, Unique(key="k"))) == (second.id, (second.id, False))
    jobs.complete(running)
    assert ask(conn, Unique(key="k", states=("queued", "completed"))) == (second.id, False)
    assert ask(conn, Unique(key="k")).created


def test_a_job_counts_within_its_period(conn: Conn, jobs: IngestJobRepository) -> None:
    """One that was enqueued before is none that is alike."""
    first = ask(conn, Unique(key="k", period=timedelta(hours=1)))
    assert ask(conn, Unique(key="k", period=3600)) == (first.id, False)
    conn.execute("UPDATE ingest_jobs SET created_at = created_at - interval '2 hours'")
    assert ask(conn, Unique(key="k", period=3600)).created
    assert jobs.fetch(first.id).status == "queued"


def test_a_job_that_waits_is_changed(conn: Conn, jobs: IngestJobRepository) -> None:
    """Debounce: the last args, due time and priority; only those that are named."""
    first = ask(conn, DEBOUNCED, {"order": 1, "text": "a"}, delay=10)
    due = jobs.fetch(first.id).run_at
    assert ask(conn, DEBOUNCED, {"order": 1, "text": "b"}, delay=3600, priority=8) == (first.id, False)
    row = jobs.fetch(first.id)
    assert (row.args, row.priority, row.status) == ({"order": 1, "text": "b"}, 8, "scheduled")
    assert row.run_at > due + timedelta(minutes=50)
    ask(conn, Unique(by=("args.order",), replace=("priority",)), {"order": 1, "text": "c"}, priority=2)
    assert (jobs.fetch(first.id).args["text"], jobs.fetch(first.id).priority) == ("b", 2)
    now = ask(conn, DEBOUNCED, {"order": 2})
    assert ask(conn, DEBOUNCED, {"order": 2}, delay=60) == (now.id, False)
    assert jobs.fetch(now.id).status == "scheduled"


def test_a_change_while_the_job_runs_is_not_lost(conn: Conn, jobs: IngestJobRepository) -> None:
    """It becomes the next job, which takes the changes after it; the running one is left to its worker."""
    first = ask(conn, DEBOUNCED, {"order": 1, "text": "a"})
    running = claim(jobs)
    second = ask(conn, DEBOUNCED, {"order": 1, "text": "b"})
    assert (running.id, second.created) == (first.id, True)
    assert ask(conn, DEBOUNCED, {"order": 1, "text": "c"}) == (second.id, False)
    jobs.complete(running)
    assert ask(conn, DEBOUNCED, {"order": 1, "text": "d"}) == (second.id, False)
    assert claim(jobs).args == {"order": 1, "text": "d"}
    third = ask(conn, DEBOUNCED, {"order": 1, "text": "e"})
    assert third.created
    assert ask(conn, DEBOUNCED, {"order": 1, "text": "f"}) == (third.id, False)
    assert jobs.fetch(first.id).dedupe_key is None


def test_a_producer_that_takes_its_time_keeps_no_lease_from_being_renewed(
    conn: Conn, jobs: IngestJobRepository, qwf_dsn: str
) -> None:
    """A running job's row is not locked, whatever a producer asked for beside it."""
    ask(conn, DEBOUNCED, {"order": 1})
    running = claim(jobs)
    conn.execute("SET lock_timeout = '5s'")
    with psycopg.connect(qwf_dsn) as slow:
        assert ask(slow, DEBOUNCED, {"order": 1}).created
        assert list(jobs.renew([running.fence], lease_s=60)) == [running.id]


@pytest.mark.parametrize("unique", [Unique(key="k"), DEBOUNCED])
@pytest.mark.parametrize("commits", [True, False])
def test_of_two_producers_one_waits(
    conn: Conn, jobs: IngestJobRepository, qwf_dsn: str, unique: Unique, commits: bool
) -> None:
    """For the other's transaction, by a lock of the server: then it finds its job, or inserts its own."""
    answers: list[Enqueued] = []
    with psycopg.connect(qwf_dsn) as first, psycopg.connect(qwf_dsn) as second:
        mine = ask(first, unique, {"order": 1, "text": "first"})
        other = threading.Thread(target=_ask_and_commit, args=(second, unique, answers))
        other.start()
        until(lambda: _waits(conn, second.info.backend_pid), "it waits")
        assert not answers
        if commits:
            first.commit()
        else:
            first.rollback()
        other.join(60)
    (theirs,) = answers
    assert theirs == ((mine.id, False) if commits else (theirs.id, True))
    (row,) = jobs.list()
    assert row.args["text"] == ("first" if commits and unique is not DEBOUNCED else "second")


def test_a_claim_and_a_change_at_once(conn: Conn, jobs: IngestJobRepository, qwf_dsn: str) -> None:
    """A change waits for a claim that is not committed yet, and then is a job of its own."""
    first = ask(conn, DEBOUNCED, {"order": 1, "text": "a"})
    answers: list[Enqueued] = []
    with psycopg.connect(qwf_dsn) as worker, psycopg.connect(qwf_dsn) as producer:
        claim(IngestJobRepository(worker))
        other = threading.Thread(target=_ask_and_commit, args=(producer, DEBOUNCED, answers))
        other.start()
        until(lambda: _waits(conn, producer.info.backend_pid), "it waits")
        worker.commit()
        other.join(60)
    (second,) = answers
    assert second.created
    assert [(job.id, job.status, job.args["text"]) for job in jobs.list(newest_first=False)] == [
        (first.id, "running", "a"),
        (second.id, "queued", "second"),
    ]


def test_many_producers_make_one_job(conn: Conn, jobs: IngestJobRepository, qwf_dsn: str) -> None:
    """Whatever becomes of the jobs meanwhile, never are two there that wait or run."""
    made: list[int] = []

    def produce() -> None:
        with psycopg.connect(qwf_dsn, autocommit=True) as mine:
            for _ in range(20):
                made.append(ask(mine, Unique(key="k")).id)

    threads = [threading.Thread(target=produce) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        for job in jobs.claim("fetch", worker_id="a:fetch:1", lease_s=60, limit=5):
            jobs.complete(job)
        assert len(jobs.list(status=("queued", "running", "scheduled"))) <= 1
    assert {job.id for job in jobs.list(limit=1000)} == set(made)


def many(conn: Conn, *asked: tuple[dict[str, Any], Unique | None], **options: Any) -> list[Enqueued]:
    """One call of `enqueue_many` for all of these."""
    jobs = [
        NewIngestJob(task_name="index", queue="fetch", args=args, unique=unique, **options)
        for args, unique in asked
    ]
    return enqueue_many(jobs, conn=conn)


def test_many_at_once_are_each_unique(conn: Conn, jobs: IngestJobRepository) -> None:
    """Beside others that are not, in the order of the call; those of one key after each other."""
    there = ask(conn, Unique(), {"n": 1})
    waits = ask(conn, DEBOUNCED, {"order": 7, "text": "a"})
    answers = many(
        conn,
        ({"n": 0}, None),
        ({"n": 1}, Unique()),
        ({"n": 2}, Unique()),
        ({"n": 2}, None),
        ({"n": 2}, Unique()),
        ({"order": 7, "text": "b"}, DEBOUNCED),
        ({"order": 7, "text": "c"}, DEBOUNCED),
        ({"order": 8, "text": "d"}, DEBOUNCED),
        ({"order": 8, "text": "e"}, DEBOUNCED),
    )
    assert [at for at, answer in enumerate(answers) if answer.created] == [0, 2, 3, 7]
    assert answers[1].id == there.id
    assert answers[2].id == answers[4].id
    assert {answers[5].id, answers[6].id} == {waits.id}
    assert answers[7].id == answers[8].id
    found = [job.args for job in sorted(jobs.list(limit=100), key=lambda job: job.position)]
    assert found == [
        {"n": 1},
        {"order": 7, "text": "c"},
        {"n": 0},
        {"n": 2},
        {"n": 2},
        {"order": 8, "text": "e"},
    ]


def test_many_follow_jobs_that_run_or_are_over(conn: Conn, jobs: IngestJobRepository) -> None:
    """Each key for itself, as for a single job."""
    over = ask(conn, DEBOUNCED, {"order": 1})
    jobs.complete(claim(jobs))
    runs = ask(conn, DEBOUNCED, {"order": 2})
    claim(jobs)
    first = many(conn, ({"order": 1}, DEBOUNCED), ({"order": 2}, DEBOUNCED), ({"order": 3}, DEBOUNCED))
    assert all(answer.created for answer in first)
    again = many(conn, ({"order": 3}, DEBOUNCED), ({"order": 2}, DEBOUNCED), ({"order": 1}, DEBOUNCED))
    assert again == [Enqueued(answer.id, False) for answer in reversed(first)]
    assert {over.id, runs.id}.isdisjoint(answer.id for answer in first)


def test_two_calls_of_many_do_not_deadlock(conn: Conn, jobs: IngestJobRepository, qwf_dsn: str) -> None:
    """The keys are locked in one order, whatever that of the jobs."""
    wanted = [({"n": number}, Unique()) for number in range(200)]
    answers: list[list[Enqueued]] = []
    start = threading.Barrier(2)

    def produce(asked: list[tuple[dict[str, Any], Unique]]) -> None:
        with psycopg.connect(qwf_dsn) as mine:
            start.wait()
            answers.append(many(mine, *asked))

    threads = [threading.Thread(target=produce, args=(asked,)) for asked in (wanted, wanted[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    one, other = answers
    assert {answer.id for answer in one} == {answer.id for answer in other}
    assert sorted(sum(answer.created for answer in each) for each in answers) == [0, 200]
    assert len(jobs.list(limit=1000)) == 200


def test_what_makes_no_sense_among_many_is_refused(conn: Conn, jobs: IngestJobRepository) -> None:
    """By its number; a job with two keys, what is no Unique, and more than the server has locks for."""
    with pytest.raises(PayloadError, match="both dedupe_key and unique") as refused:
        many(conn, ({"n": 1}, None), ({"n": 2}, Unique()), dedupe_key="k")
    assert refused.value.path == "jobs[1].unique"
    with pytest.raises(PayloadError, match="is no Unique"):
        many(conn, ({"n": 1}, True))  # type: ignore[arg-type]
    with pytest.raises(PayloadError, match="commit between the calls"):
        many(conn, *(({"n": number}, Unique()) for number in range(2001)))
    assert jobs.list() == []


@ingest_task("unique.index", queue="fetch", unique=Unique(by=("args.order",), replace=("args",)))
def index(reason: str | None, args: dict[str, Any]) -> None:
    """Nothing."""


def test_a_task_may_be_unique_by_itself(conn: Conn, jobs: IngestJobRepository) -> None:
    """All ways by the task have it; what is said of a job takes its place, a key of its own for one."""
    first = index.enqueue({"order": 1, "text": "a"}, conn=conn)
    assert index.enqueue({"order": 1, "text": "b"}, conn=conn) == (first.id, False)
    assert index.enqueue_many([{"order": 1, "text": "c"}], conn=conn) == [(first.id, False)]
    assert enqueue_many([index.job({"order": 1, "text": "d"})], conn=conn) == [(first.id, False)]
    assert jobs.fetch(first.id).args == {"order": 1, "text": "d"}
    assert index.enqueue({"order": 1}, dedupe_key="mine", conn=conn).created
    assert index.enqueue({"order": 1}, unique=Unique(key="mine"), conn=conn).created
    with pytest.raises(ConfigurationError, match="is no Unique"):
        ingest_task("unique.wrong", unique="args")(index.fn)  # type: ignore[arg-type]


SQL = "SELECT id, created FROM qwf_enqueue('index', 'fetch', %s::jsonb, %s::jsonb)"


def by_sql(conn: Conn, args: dict[str, Any], **options: Any) -> tuple[int, bool]:
    """What the function answers."""
    found = conn.execute(SQL, (json.dumps(args), json.dumps(options))).fetchone()
    assert found is not None
    return found


@pytest.mark.parametrize(
    "args",
    [{}, {"b": 1, "a": [1.50, None, "é\n"]}, {"n": 1e22, "m": 1e-7, "z": -0.0, "big": 12345678901234567890}],
    ids=["none", "some", "numbers"],
)
@pytest.mark.parametrize(
    ("unique", "said"),
    [
        (Unique(), {}),
        (Unique(by=("args.b", "queue")), {"by": ["args.b", "queue"]}),
        (Unique(key="mine", period=60), {"key": "mine", "period": 60}),
    ],
    ids=["args", "parts", "key"],
)
def test_sql_has_the_same_keys(
    conn: Conn, unique: Unique, said: dict[str, Any], args: dict[str, Any]
) -> None:
    """What was enqueued by the verb is found by the function, and the other way round."""
    first = ask(conn, unique, args)
    assert by_sql(conn, args, unique=said) == (first.id, False)
    conn.execute("TRUNCATE ingest_jobs CASCADE")
    made = by_sql(conn, args, unique=said)
    assert made[1] is True
    assert ask(conn, unique, args) == (made[0], False)


def test_sql_changes_and_follows_as_the_verb_does(conn: Conn, jobs: IngestJobRepository) -> None:
    """Debounce, a job that runs, one that is over, and the states that count."""
    said = {"by": ["args.order"], "states": ["queued"], "replace": ["args", "run_at", "priority"]}
    first, _ = by_sql(conn, {"order": 1, "text": "a"}, unique=said)
    assert by_sql(conn, {"order": 1, "text": "b"}, unique=said, delay=60, priority=8) == (first, False)
    row = jobs.fetch(first)
    assert (row.args["text"], row.priority, row.status) == ("b", 8, "scheduled")
    by_sql(conn, {"order": 1, "text": "c"}, unique=said, run_at="2020-01-01T00:00:00Z")
    jobs.promote()
    running = claim(jobs)
    assert running.id == first
    second, created = by_sql(conn, {"order": 1, "text": "d"}, unique=said)
    assert created
    assert ask(conn, DEBOUNCED, {"order": 1, "text": "e"}) == (second, False)
    assert by_sql(conn, {"order": 1, "text": "f"}, unique=said) == (second, False)
    jobs.complete(running)
    assert by_sql(conn, {"order": 1, "text": "g"}, unique=said) == (second, False)
    jobs.complete(claim(jobs))
    assert by_sql(conn, {"order": 1}, unique=said | {"states": ["completed"]}) == (first, False)
    assert by_sql(conn, {"order": 1}, unique=said)[1] is True


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"by": []}, "makes no sense"),
        ({"by": ["args."]}, "makes no sense"),
        ({"by": ["args"], "key": "k"}, "not both"),
        ({"states": ["sleeping"]}, "makes no sense"),
        ({"replace": ["queue"]}, "makes no sense"),
        ({"period": 0}, "makes no sense"),
        ({"for": 60}, "makes no sense"),
        (True, "unique is a object"),
    ],
)
def test_sql_refuses_what_makes_no_sense(
    conn: Conn, jobs: IngestJobRepository, said: Any, words: str
) -> None:
    """In words, with the code of a wrong parameter."""
    with pytest.raises(psycopg.Error, match=words) as refused:
        by_sql(conn, {}, unique=said)
    assert refused.value.sqlstate == "22023"
    with pytest.raises(psycopg.Error, match="both dedupe_key and unique are given"):
        by_sql(conn, {}, unique={}, dedupe_key="k")
    assert jobs.list() == []


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Unique(by=()),
        lambda: Unique(by="args"),  # type: ignore[arg-type]
        lambda: Unique(by=("args.",)),
        lambda: Unique(states=()),
        lambda: Unique(states=("sleeping",)),
        lambda: Unique(replace=("queue",)),
        lambda: Unique(period=0),
        lambda: Unique(key=""),
    ],
)
def test_what_makes_no_sense_is_refused(wrong: Callable[[], Unique]) -> None:
    """Where it is written."""
    with pytest.raises(PayloadError):
        wrong()


def test_a_key_and_unique_are_refused_together(conn: Conn, jobs: IngestJobRepository) -> None:
    """They would be two keys of one job."""
    with pytest.raises(PayloadError, match="both dedupe_key and unique are given"):
        ask(conn, Unique(), dedupe_key="a")
    assert jobs.list() == []


def _ask_and_commit(conn: Conn, unique: Unique, answers: list[Enqueued]) -> None:
    answers.append(ask(conn, unique, {"order": 1, "text": "second"}))
    conn.commit()


def _waits(conn: Conn, pid: int) -> bool:
    found = conn.execute("SELECT cardinality(pg_blocking_pids(%s)) > 0", (pid,)).fetchone()
    return found == (True,)
