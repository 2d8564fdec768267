"""`qwf what-if` and the estimate of `qwf explain`, on rows of a queue as workers leave them."""

from __future__ import annotations

import json
from typing import Any, Final

import psycopg
import pytest
from support.processes.commands import qwf_here
from support.rows.jobs import Jobs
from support.rows.plans import explain, rows_read
from support.servers.web_page import served_page, text_of

from queue_workflows.repositories import HeartbeatRepository, LimitRepository, WorkerControlRepository
from queue_workflows.repositories.forecast import ended, queue_now
from queue_workflows.views.forecast.drain import queue_forecast

# Jobs of two seconds, by a worker that had one at a time, each enqueued long before it began.
PAST = """
INSERT INTO ingest_jobs (
    task_name, queue, status, claimed_by, attempt, created_at, run_at, started_at, finished_at, limit_key
)
SELECT 'task', 'fetch', 'completed', 'w1', 1, now() - interval '1 h', now() - interval '1 h',
    now() - make_interval(secs => 2 * n + 2), now() - make_interval(secs => 2 * n), NULL
FROM generate_series(1, %(count)s) AS n
"""


def beat(conn: psycopg.Connection, worker_id: str = "w1", **more: Any) -> None:
    HeartbeatRepository(conn).beat(
        worker_id, **{"host_label": "h1", "queue": "fetch", "pid": 7, "state": "idle"} | more
    )


@pytest.fixture
def there(conn: psycopg.Connection) -> Jobs:
    """A worker with one slot on each of two hosts, a hundred jobs that ended, twenty that wait."""
    conn.execute("DELETE FROM concurrency_limits")
    conn.execute(PAST, {"count": 100})
    for number in (1, 2):
        beat(conn, f"w{number}", host_label=f"h{number}")
    jobs = Jobs("ingest", conn)
    jobs.enqueue(14)
    jobs.enqueue(6, limit_key="host:x")
    LimitRepository(conn).set("host:x", 1, actor="ann")
    return jobs


def asked(dsn: str, *words: str, status: int = 0) -> dict[str, Any]:
    """The answer about the one queue there is."""
    answer = json.loads(qwf_here("--db", dsn, "what-if", *words, "--json", status=status).stdout)
    (queue,) = answer["queues"]
    return dict(queue)


def middle(drain: dict[str, Any]) -> float:
    assert drain["drains_in"] is not None, drain
    return float(drain["drains_in"]["p50_s"])


def test_another_fleet_drains_at_another_time(qwf_dsn: str, there: Jobs) -> None:
    """More workers, a raised or closed limit, a host that is off, a pause; nothing is changed by asking."""
    before = there.rows()
    now = asked(qwf_dsn)
    assert (now["waiting"], now["now"]["workers"], now["now"]["slots"], now["then"]) == (20, 2, 2, None)
    # Fourteen by two at a time, and six one after the other behind them.
    assert 22 < middle(now["now"]) < 31
    four = asked(qwf_dsn, "--workers", "fetch=4")
    assert middle(four["now"]) == pytest.approx(middle(now["now"]), rel=0.2)
    assert middle(four["then"]) < 0.85 * middle(four["now"])
    raised = asked(qwf_dsn, "--workers", "fetch=20", "--limit", "host:*=6")
    assert middle(raised["then"]) < 3.5
    off = asked(qwf_dsn, "--off", "fetch@h2")
    assert (off["then"]["workers"], middle(off["then"]) > 1.35 * middle(off["now"])) == (1, True)
    closed = asked(qwf_dsn, "--limit", "host:x=0", status=1)["then"]
    assert [(why["code"], why["jobs"]) for why in closed["never"]] == [("limit_closed", 6)]
    paused = asked(qwf_dsn, "--pause", "fetch", status=1)["then"]
    assert (paused["slots"], paused["drains_in"], paused["no_guess"]["code"]) == (0, None, "no_worker")
    assert there.rows() == before


def test_the_same_in_words(qwf_dsn: str, there: Jobs) -> None:
    """A line a queue, with the range, and what never runs below."""
    words = ("what-if", "fetch", "--workers", "fetch=4", "--limit", "host:x=0")
    head, line, note = qwf_here("--db", qwf_dsn, *words, status=1).stdout.splitlines()
    assert head.split() == ["QUEUE", "WAITING", "FLEET", "DRAINS", "FLEET", "THEN", "WOULD", "DRAIN"]
    assert "fetch  20       2 workers  in about " in line
    assert note == (
        f"fetch, then: 6 jobs never, as ingest:{there.rows()[-6]['id']}: the limit 'host:x' has no room: its"
        " cap is 0, or others have it"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "there is no queue 'nowhere'"),
        (["--workers", "fetch=-1"], "--workers 'fetch=-1' is not a name, `=` and a whole number"),
        (["--limit", "8"], "--limit '8' is not a name, `=` and a whole number"),
        (["--off", "fetch"], "--off 'fetch' is not a queue, `@` and a host, as in gpu@node3"),
        (["--pause", "No Queue"], "No Queue"),
        (["--off", "fetch@nowhere"], "--off 'fetch@nowhere': no worker of the queue is there"),
        (["--workers", "fetch=1", "--workers", "fetch=4"], "--workers says two numbers of 'fetch'"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(qwf_dsn: str, there: Jobs, words: list[str], said: str) -> None:
    """With the status of a wrong use; a database that is away has its own."""
    (*_, last) = qwf_here("--db", qwf_dsn, "what-if", *words, status=2).stderr.splitlines()
    assert said in last
    away = qwf_here("--db", "postgresql://localhost:1/x", "what-if", status=69)
    assert len(away.stderr.splitlines()) == 1


def test_explain_tells_when(qwf_dsn: str, conn: psycopg.Connection, there: Jobs) -> None:
    """A start and an end with their range; or the reason why there is none."""
    ids = [row["id"] for row in there.rows() if row["status"] == "queued"]

    def estimate(job_id: int) -> dict[str, Any]:
        said = qwf_here("--db", qwf_dsn, "explain", f"ingest:{job_id}", "--json").stdout
        return dict(json.loads(said)["estimate"])

    first, tenth = estimate(ids[0]), estimate(ids[9])
    assert first["starts_in"] == {"p10_s": 0, "p50_s": 0, "p90_s": 0}
    assert 1 < first["ends_in"]["p50_s"] < 3
    assert 6 < tenth["starts_in"]["p10_s"] < tenth["starts_in"]["p50_s"] < tenth["starts_in"]["p90_s"] < 11
    (held,) = there.enqueue()
    conn.execute("UPDATE ingest_jobs SET priority = 9 WHERE id = %s", [held])
    there.repository.hold(there.one(), "unknown_task", "draw", delay_s=600)
    assert estimate(held)["no_guess"]["code"] == "held"
    conn.execute("UPDATE ingest_jobs SET task_name = 'rare' WHERE id = %s", [ids[0]])
    rare = estimate(ids[0])
    assert (rare["starts_in"] is not None, rare["ends_in"], rare["no_guess"]["code"]) == (
        True,
        None,
        "unknown_task",
    )
    WorkerControlRepository(conn).set("*", "fetch", "pause", actor="ann")
    assert estimate(ids[9])["no_guess"]["code"] == "no_worker"
    text = qwf_here("--db", qwf_dsn, "explain", f"ingest:{ids[9]}").stdout
    assert "\nno guess when it will be done: no worker of the queue claims anything\nhistory:\n" in text


# Jobs behind each other in the lane of a key, and in the line.
MANY: Final = """
INSERT INTO ingest_jobs (task_name, queue, status, limit_key, hold_reason, hold_key, run_at)
SELECT 'task', 'fetch', CASE WHEN %(key)s::text IS NULL THEN 'queued' ELSE 'scheduled' END, %(key)s,
    CASE WHEN %(key)s::text IS NOT NULL THEN 'limit_full' END, %(key)s,
    now() + make_interval(days => CASE WHEN %(key)s::text IS NULL THEN 0 ELSE 36500 END)
FROM generate_series(1, %(count)s)
RETURNING id
"""


def test_what_is_not_read_waits_too(qwf_dsn: str, conn: psycopg.Connection, there: Jobs) -> None:
    """Of lanes and of the line: a queue drains, and the last job begins, when all before it is done."""
    conn.execute("DELETE FROM ingest_jobs WHERE status <> 'completed'")
    LimitRepository(conn).set("k", 1, actor="ann")
    last = conn.execute(MANY, {"key": "k", "count": 6_000}).fetchall()[-1][0]
    conn.execute(MANY, {"key": "few", "count": 3})
    told = asked(qwf_dsn, "fetch")
    assert (told["waiting"], told["at_least"]) == (6_003, True)
    assert middle(told["now"]) == pytest.approx(12_000, rel=0.15)
    said = json.loads(qwf_here("--db", qwf_dsn, "explain", f"ingest:{last}", "--json").stdout)["estimate"]
    assert said["starts_in"]["p50_s"] == pytest.approx(12_000, rel=0.15)
    assert 1 < said["ends_in"]["p50_s"] - said["starts_in"]["p50_s"] < 3
    # What is for later is no later for what else waits.
    conn.execute("DELETE FROM ingest_jobs WHERE limit_key = 'k'")
    last = conn.execute(MANY, {"key": None, "count": 5_000}).fetchall()[-1][0]
    (tomorrow,) = there.enqueue(delay=86_400.0)
    told = asked(qwf_dsn, "fetch")
    assert (told["waiting"], told["at_least"]) == (5_004, True)
    assert middle(told["now"]) == pytest.approx(86_402, rel=0.01)
    said = json.loads(qwf_here("--db", qwf_dsn, "explain", f"ingest:{last}", "--json").stdout)["estimate"]
    assert said["starts_in"]["p50_s"] == pytest.approx(5_000, rel=0.15)
    assert tomorrow


def test_what_is_for_later_is_not_taken_for_now(
    qwf_dsn: str, there: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where much else is due sooner a job begins at its time all the same, and it is said that more waits."""
    monkeypatch.setattr(queue_now, "_LATER_LOOKED_AT", 0)
    (tomorrow,) = there.enqueue(delay=86_400.0)
    said = json.loads(qwf_here("--db", qwf_dsn, "explain", f"ingest:{tomorrow}", "--json").stdout)["estimate"]
    assert said["starts_in"]["p50_s"] == pytest.approx(86_400, rel=0.01)
    note = "fetch: more is for later than was looked at, which these times leave out"
    assert note in qwf_here("--db", qwf_dsn, "what-if", "fetch").stdout.splitlines()


def test_what_nobody_counts_has_no_guess(conn: psycopg.Connection, there: Jobs) -> None:
    """The bound of a count is none of the queue."""
    read = queue_now.QueueNowRepository(conn).read("fetch", most=10, stale_s=30.0, counted=15)
    told = queue_forecast(read)
    assert told.now.span is None
    assert told.now.no_guess is not None
    assert (told.now.no_guess.code, told.waiting) == ("too_many", 15)
    assert there.rows()


def test_what_is_left_out_is_said(qwf_dsn: str, conn: psycopg.Connection, there: Jobs) -> None:
    """Jobs on hold for anything but a limit, and a key that no job has."""
    conn.execute("DELETE FROM ingest_jobs WHERE status = 'queued' AND limit_key IS NOT NULL")
    there.repository.hold(there.one(), "host_lock", "disk", delay_s=600)
    _, _, *notes = qwf_here("--db", qwf_dsn, "what-if", "fetch", "--limit", "hots:x=1").stdout.splitlines()
    assert notes == [
        "fetch: 1 job is on hold or asleep, and left out of these times",
        "no job that waits or runs there has the key 'hots:x'",
    ]


def test_what_slept_has_no_end(qwf_dsn: str, conn: psycopg.Connection, there: Jobs) -> None:
    """The row of a durable function has the time of its last part alone."""
    conn.execute(
        "UPDATE ingest_jobs SET past_holds = %s WHERE status = 'completed'",
        ['[{"reason": "limit_full"}, {"reason": "asleep"}]'],
    )
    first = min(row["id"] for row in there.rows() if row["status"] == "queued")
    said = json.loads(qwf_here("--db", qwf_dsn, "explain", f"ingest:{first}", "--json").stdout)["estimate"]
    assert (said["ends_in"], said["no_guess"]["code"]) == (None, "durable")


def test_what_runs_has_an_end(qwf_dsn: str, conn: psycopg.Connection, there: Jobs) -> None:
    """By how long it runs already; none where it runs longer than any."""
    job = there.one()
    conn.execute("UPDATE ingest_jobs SET started_at = now() - interval '1 s' WHERE id = %s", [job.id])
    told = json.loads(qwf_here("--db", qwf_dsn, "explain", f"ingest:{job.id}", "--json").stdout)["estimate"]
    assert told["starts_in"] is None
    assert 0.3 < told["ends_in"]["p50_s"] < 1.7
    conn.execute("UPDATE ingest_jobs SET started_at = now() - interval '1 h' WHERE id = %s", [job.id])
    told = json.loads(qwf_here("--db", qwf_dsn, "explain", f"ingest:{job.id}", "--json").stdout)["estimate"]
    assert told["no_guess"]["code"] == "longer_than_any"


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("family", ["ingest", "node"])
def test_no_more_is_read_than_is_wanted(conn: psycopg.Connection, family: str, mode: str) -> None:
    """What ended last is found by the index of when, lanes by theirs, what is due by its own."""
    if family == "ingest":
        conn.execute(PAST, {"count": 20_000})
        conn.execute("ANALYZE ingest_jobs")
    for sql, params, index, most in (
        (ended.ENDED, {"queue": "fetch", "most": 200, "back_s": 7e5}, "finished", 200),
        (queue_now.LANES, {"queue": "fetch", "limit": 50}, "hold", 10),
        (queue_now.LANE_DEPTHS, {"queue": "fetch", "keys": "{host:x}", "most": 50}, "hold", 10),
        (queue_now.LATER, {"queue": "fetch", "limit": 50, "looked_at": 50}, "due", 10),
        (queue_now.OF_KEY, {"key": "host:x", "limit": 50}, "keyed", 10),
    ):
        plan = explain(conn, mode, sql[family], params)
        table = "ingest_jobs" if family == "ingest" else "workflow_node_jobs"
        assert rows_read(plan, table) <= most
        if family == "ingest":
            assert f"ix_ingest_jobs_{index}" in [node.get("Index Name") for node in plan], sql[family]


def test_the_page_says_the_same(qwf_dsn: str, there: Jobs) -> None:
    """The explanation of a job has its start and end; previews of a pause and of a cap say when it drains."""
    last = there.rows()[-1]["id"]
    with served_page(qwf_dsn) as page:
        assert f"/jobs/ingest:{last}/explain#when" in page.get(f"/jobs/ingest:{last}").text
        shown = text_of(page.get(f"/jobs/ingest:{last}/explain"))
        assert "When it will run" in shown
        assert "starts in about" in shown
        paused = text_of(page.preview("queue.pause", "fetch"))
        assert "fetch drains in about" in paused
        assert "now, never then" in paused
        off = text_of(page.preview("workers.off", "h2 fetch"))
        assert off.count("in about") == 2
        capped = text_of(page.preview("limits.set", "host:x", cap="6"))
        assert "fetch drains in about" in capped


def test_no_preview_waits_for_a_forecast(qwf_dsn: str, there: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it takes long to be read, a pause and a cap are offered without it."""
    monkeypatch.setattr(ended, "ENDED", {"ingest": "SELECT pg_sleep(20)"})
    with served_page(qwf_dsn) as page:
        shown = [
            text_of(page.preview("workers.off", "h2 fetch")),
            text_of(page.preview("limits.set", "host:x", cap="6")),
        ]
    assert ["drains" in one for one in shown] == [False, False]
    assert "Set the cap of host:x to 6" in shown[1]
    assert there.rows()
