"""`qwf limits`: caps that are changed while everything runs, who holds slots, who waits."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from support.processes.commands import Said, qwf_here
from support.rows.claim_sessions import CLEAR_LIMITS, hand, where
from support.rows.jobs import Jobs, jobs_of

from queue_workflows.repositories import RateRepository

Qwf = Callable[..., Said]


@pytest.fixture
def jobs(qwf_dsn: str) -> Iterator[Jobs]:
    """An empty table, and no limits."""
    with jobs_of("ingest", qwf_dsn) as jobs:
        jobs.connection.execute(CLEAR_LIMITS)
        yield jobs


@pytest.fixture
def qwf(qwf_dsn: str) -> Qwf:
    return lambda *words, **more: qwf_here("--db", qwf_dsn, "limits", *words, **more)


def listed(qwf: Qwf, *words: str) -> dict[str, dict[str, Any]]:
    return {line["key"]: line for line in json.loads(qwf("list", *words, "--json").stdout)}


def audited(connection: psycopg.Connection) -> list[tuple[Any, ...]]:
    sql = "SELECT actor, action, subject_id, reason, details ->> 'was' FROM audit_log ORDER BY id"
    return connection.execute(sql).fetchall()


def test_a_limit_is_set_changed_and_taken_back(jobs: Jobs, qwf: Qwf) -> None:
    """Each time it says what held before, and the log says who did it and why."""
    assert "at most 4 at once, was no limit of its own" in qwf("set", "host:*", "4", "--actor", "ann").stdout
    said = qwf("set", "host:*", "2", "--actor", "bob", "--reason", "they complained").stdout
    assert "at most 2 at once, was 4" in said
    qwf("set", "host:a", "9", "--actor", "ann")
    assert "at most 2, by a pattern" in qwf("clear", "host:a", "--actor", "ann").stdout
    assert json.loads(qwf("clear", "host:*", "--actor", "ann", "--json").stdout) == {
        "key": "host:*",
        "max_slots": None,
        "was": 2,
        "let_out": 0,
    }
    nothing = qwf("clear", "host:*", status=1)
    assert "nobody has set a limit for host:*" in nothing.stderr
    assert audited(jobs.connection) == [
        ("ann", "limits.set", "host:*", None, None),
        ("bob", "limits.set", "host:*", "they complained", "4"),
        ("ann", "limits.set", "host:a", None, None),
        ("ann", "limits.clear", "host:a", None, "9"),
        ("ann", "limits.clear", "host:*", None, "2"),
    ]


def test_a_raised_cap_lets_waiting_jobs_go_on_at_once(jobs: Jobs, qwf: Qwf, qwf_dsn: str) -> None:
    """By the key itself and by a pattern; the command says how many."""
    qwf("set", "host:*", "1")
    for key in ("host:a", "host:b"):
        jobs.enqueue(5, limit_key=key)
    with hand(qwf_dsn, "w1") as worker:
        worker.claim(9)
        assert where(jobs.connection, jobs.table, "host:a") == {"running": 1, "lane": 4}
        assert "; 2 waiting jobs go on" in qwf("set", "host:a", "3").stdout
        assert "; 1 waiting job goes on" in qwf("set", "host:*", "2").stdout
        assert len(worker.claim(9)) == 3
        assert json.loads(qwf("clear", "host:a", "--json").stdout)["let_out"] == 0
        assert json.loads(qwf("clear", "host:*", "--json").stdout)["let_out"] == 5


def test_the_list_shows_caps_holders_and_who_waits(jobs: Jobs, qwf: Qwf, qwf_dsn: str) -> None:
    """Keys with a limit, with holders or with a lane, in order and by pages; for eyes and for machines."""
    assert "no key has a limit" in qwf("list").stderr
    qwf("set", "host:*", "2", "--actor", "ann", "--reason", "polite")
    qwf("set", "closed", "0")
    ids = jobs.enqueue(5, limit_key="host:a")
    jobs.enqueue(20, limit_key="free")
    with hand(qwf_dsn, "w1") as worker:
        worker.claim(5)
        lines = listed(qwf)
        assert list(lines) == ["closed", "free", "host:*", "host:a"]
        seen = lines["host:a"]
        assert [seen[name] for name in ("max_slots", "is_own", "taken", "waiting")] == [2, False, 2, 3]
        assert seen["holders"] == [f"ingest:{job}" for job in ids[:2]]
        assert [lines["host:*"][name] for name in ("max_slots", "is_own", "updated_by")] == [2, True, "ann"]
        assert (lines["free"]["max_slots"], lines["free"]["waiting"]) == (None, 20)
        told = qwf("list").stdout
        assert "2 (pattern)" in told
        assert "polite" in told
    assert list(listed(qwf, "--limit", "2")) == ["closed", "free"]
    assert "--after 'free'" in qwf("list", "--limit", "2").stderr
    assert list(listed(qwf, "--limit", "9", "--after", "free")) == ["host:*", "host:a"]
    assert listed(qwf, "host:z")["host:z"]["max_slots"] == 2


def test_what_is_no_limit_is_refused(jobs: Jobs, qwf: Qwf) -> None:
    """In one line, with what to do."""
    assert "a pattern is a beginning" in qwf("set", "host:*.org", "4", status=2).stderr
    qwf("set", "host:a", "-1", status=2)
    qwf("set", "host:a", "many", status=2)


def test_a_key_neither_breaks_a_line_nor_steers_the_terminal(jobs: Jobs, qwf: Qwf) -> None:
    """A job's key may have anything in it; every answer about it is one line of what prints."""
    key = "a\x1b[31m\nb"
    said = [
        qwf("set", key, "1").stdout,
        qwf("list", "--limit", "1").stderr,
        qwf("clear", key).stdout,
        qwf("clear", key, status=1).stderr,
        qwf("set", key, "--rate", "1").stdout,
        qwf("list", "--rates", "--limit", "1").stderr,
        qwf("clear", key, "--rate").stdout,
        qwf("clear", key, "--rate", status=1).stderr,
        qwf("list", key, "--rates").stderr,
    ]
    assert [(one.count("\n"), one.rstrip("\n").isprintable(), "a?[31m b" in one) for one in said] == [
        (1, True, True)
    ] * len(said)


def test_a_rate_is_set_shown_and_taken_back(jobs: Jobs, qwf: Qwf) -> None:
    """In the unit in which one thinks of it; the log has it, and what is in a bucket is shown."""
    jobs.connection.execute("TRUNCATE rate_limits")
    assert qwf("set", "api:*", "--rate", "100/min", "--actor", "ann").stdout == (
        "api:*: 100/min, 2 at once, was no rate of its own\n"
    )
    said = qwf("set", "k", "--rate", "2/h", "--burst", "5", "--actor", "ann", "--reason", "x").stdout
    assert said == "k: 2/h, 5 at once, was no rate of its own\n"
    assert json.loads(qwf("set", "k", "--rate", "1/d", "--actor", "bob", "--json").stdout) == {
        "key": "k",
        "per_s": 1 / 86_400,
        "burst": 1,
        "was_rate": {"per_s": 2 / 3600, "burst": 5},
    }
    rates = RateRepository(jobs.connection)
    rates.take("k", 1)
    rates.penalize("k", 1e6)
    _, pattern, bucket = (line.split() for line in qwf("list", "--rates").stdout.splitlines())
    assert (pattern[0], pattern[3:6]) == ("api:*", ["-", "-", "ann"])
    assert (bucket[:4], int(bucket[4]) > 9e5, bucket[-2:]) == (["k", "1/d", "1", "0"], True, ["bob", "-"])
    (found,) = json.loads(qwf("list", "--rates", "k", "--json").stdout)
    assert (found["key"], found["tokens"], found["blocked_s"] > 9e5) == ("k", 0, True)
    for form in ((), ("--json",)):
        said = qwf("list", "--rates", "nil", "k", "cap", *form)
        assert said.stderr == "without a rate of its own: cap, nil\n"
        assert '"k"' in said.stdout if form else said.stdout.count("\n") == 2
    assert qwf("list", "--rates", "nil").stderr == "without a rate of its own: nil\n"
    assert qwf("clear", "k", "--rate", "--actor", "ann").stdout == "k: no rate of its own any more\n"
    assert "k has no rate" in qwf("clear", "k", "--rate", status=1).stderr
    assert [line[:3] for line in audited(jobs.connection)] == [
        ("ann", "limits.set", "api:*"),
        ("ann", "limits.set", "k"),
        ("bob", "limits.set", "k"),
        ("ann", "limits.clear", "k"),
    ]


@pytest.mark.parametrize(
    "words",
    [
        ("k",),
        ("k", "4", "--rate", "5/s"),
        ("k", "4", "--burst", "5"),
        ("k", "--rate", "5/w"),
        ("k", "--rate", "0/s"),
        ("k", "--rate", "-5/s"),
        ("k", "--rate", "fast"),
        ("k", "--rate", "\u0665/s"),
        ("k", "--rate", "5/s", "--burst", "0"),
        ("a*b", "--rate", "5/s"),
    ],
)
def test_a_rate_is_checked(qwf: Qwf, words: tuple[str, ...]) -> None:
    """A usage error that changes nothing."""
    assert "Traceback" not in qwf("set", *words, status=2).stderr


@pytest.mark.parametrize(
    "words",
    [("list", "--after", "\udcff"), ("list", "\udcff", "--rates"), ("set", "a\udcff", "3")],
    ids=["a place in the list", "a rate", "a cap"],
)
def test_a_key_that_is_no_text_is_a_wrong_command_line(qwf: Qwf, words: tuple[str, ...]) -> None:
    """Bytes that are no UTF-8 reach a command as half characters, which no database takes."""
    said = qwf(*words, status=2)
    assert "is no text in UTF-8" in said.stderr
    assert (said.stdout, said.stderr.count("\n")) == ("", 1)


def test_one_key_is_shown_with_its_holder_and_what_comes_next(jobs: Jobs, qwf: Qwf, qwf_dsn: str) -> None:
    """The job that holds the slot, on which worker, then what is queued before what is in the lane."""
    qwf("set", "host:a", "1", "--actor", "ann")
    ids = jobs.enqueue(20, limit_key="host:a")
    with hand(qwf_dsn, "ingest") as worker:
        (held,) = worker.claim()
        told = json.loads(qwf("show", "host:a", "--json").stdout)
        table = qwf("show", "host:a").stdout
    (slot,) = told["slots"]
    assert (slot["job"], slot["attempt"], slot["worker_id"]) == (
        f"ingest:{held.id}",
        1,
        held.claimed_by,
    )
    assert {name: told[name] for name in ("key", "max_slots", "is_own", "taken", "waiting")} == {
        "key": "host:a",
        "max_slots": 1,
        "is_own": True,
        "taken": 1,
        "waiting": 19,
    }
    waiting = [one for one in ids if one != held.id]
    assert {one["job"] for one in told["next"]} == {f"ingest:{one}" for one in waiting}
    lanes = [one["in_lane"] for one in told["next"]]
    assert lanes == sorted(lanes)
    assert f"ingest:{held.id}" in table
    assert "in its lane" in table


def test_a_key_that_nobody_uses_is_shown_as_that(jobs: Jobs, qwf: Qwf) -> None:
    """It is no error to ask about a key before its first job."""
    assert qwf("show", "host:z").stderr == "nothing holds host:z and nothing waits for it\n"
    assert json.loads(qwf("show", "host:z", "--json").stdout)["slots"] == []
