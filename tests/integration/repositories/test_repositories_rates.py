"""Token buckets in Postgres: their arithmetic against a plain one, who rules a key, and what a take costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.connections.kept import own_connection
from support.processes.threads import together
from support.reference.examples import examples
from support.rows.plans import explain

from queue_workflows.errors import PayloadError
from queue_workflows.repositories import RateRepository
from queue_workflows.repositories.limits import rates
from queue_workflows.repositories.limits.rates import Rule, Taken


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    with own_connection(qwf_dsn) as connection:
        connection.execute("TRUNCATE rate_limits, audit_log")
        yield connection


@pytest.fixture
def buckets(conn: psycopg.Connection) -> RateRepository:
    return RateRepository(conn)


def shift(connection: psycopg.Connection, seconds: float) -> None:
    """Let so much time go by, for every bucket."""
    connection.execute(
        "UPDATE rate_limits SET refilled_at = refilled_at - make_interval(secs => %(s)s),"
        " blocked_until = blocked_until - make_interval(secs => %(s)s)",
        {"s": seconds},
    )


@dataclass
class Plain:
    """The same bucket in plain Python; told the time."""

    rule: Rule
    tokens: float
    at: datetime
    blocked: datetime | None = None

    def fill(self, now: datetime) -> None:
        since = max(self.at, self.blocked) if self.blocked else self.at
        gained = self.rule.per_s * max(0.0, (now - since).total_seconds())
        self.tokens, self.at = min(self.rule.burst, self.tokens + gained), now

    def take(self, cost: float, max_wait_s: float) -> tuple[bool, float]:
        blocked_s = max(0.0, (self.blocked - self.at).total_seconds()) if self.blocked else 0.0
        wait_s = blocked_s + max(0.0, cost - self.tokens) / self.rule.per_s
        granted = cost <= self.rule.burst and wait_s <= max_wait_s
        self.tokens -= cost if granted else 0
        return granted, wait_s


amounts = st.floats(0.01, 50)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("take"), amounts, st.sampled_from([0.0, 1.0, 30.0, 1e6])),
        st.tuples(st.just("pass"), st.floats(0, 20), st.none()),
        st.tuples(st.just("refund"), amounts, st.none()),
        st.tuples(st.just("penalize"), st.floats(0, 10), st.none()),
    ),
    min_size=1,
    max_size=12,
)


@settings(
    max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(per_s=amounts, burst=amounts, steps=steps)
def test_a_bucket_is_what_plain_arithmetic_says(
    conn: psycopg.Connection, per_s: float, burst: float, steps: list[tuple[str, float, Any]]
) -> None:
    """Whatever is taken, refunded, blocked and waited for, in any order."""
    conn.execute("TRUNCATE rate_limits")
    buckets, rule = RateRepository(conn), Rule(per_s, burst)
    buckets.take("k", 0, rule=rule)
    plain = Plain(rule, burst, seen(buckets).refilled_at)
    for what, amount, max_wait_s in steps:
        if what == "pass":
            shift(conn, amount)
            plain.at -= timedelta(seconds=amount)
            plain.blocked = plain.blocked and plain.blocked - timedelta(seconds=amount)
        elif what == "take":
            taken = buckets.take("k", amount, rule=rule, max_wait_s=max_wait_s)
            plain.fill(seen(buckets).refilled_at)
            assert taken is not None
            granted, wait_s = plain.take(amount, max_wait_s)
            assert taken.wait_s == pytest.approx(wait_s, abs=1e-4)
            if abs(wait_s - max_wait_s) > 1e-4:
                assert taken.granted == granted
            else:
                plain.tokens = seen(buckets).tokens
        elif what == "refund":
            buckets.refund("k", amount, seen(buckets).blocked_until)
            plain.tokens = min(burst, plain.tokens + amount)
        else:
            before, until = plain.blocked, buckets.penalize("k", amount)
            assert until is not None
            if until != before:
                plain.blocked, plain.tokens = until, 0.0
        row = seen(buckets)
        assert row.tokens == pytest.approx(plain.tokens, abs=1e-3)
        # Microseconds of the shift are rounded.
        plain.at, plain.blocked, plain.tokens = row.refilled_at, row.blocked_until, row.tokens


def seen(buckets: RateRepository) -> Any:
    row = buckets.fetch("k")
    assert row is not None
    return row


def test_tokens_are_granted_in_advance_and_in_turn(buckets: RateRepository) -> None:
    """Who comes later waits longer; who would wait too long takes nothing."""
    rule = Rule(0.001, 2)
    waits = [buckets.take("k", 1, rule=rule) for _ in range(4)]
    assert [round(each.wait_s / 1000, 1) for each in waits if each] == [0, 0, 1, 2]
    refused = buckets.take("k", 1, rule=rule, max_wait_s=2500)
    assert refused is not None
    assert (refused.granted, round(refused.wait_s / 1000, 1)) == (False, 3)
    again = buckets.take("k", 1, rule=rule, max_wait_s=3500)
    assert again is not None
    assert (again.granted, round(again.wait_s / 1000, 1)) == (True, 3)


def test_a_cost_above_the_burst_takes_nothing(buckets: RateRepository) -> None:
    """It could never be paid."""
    refused = buckets.take("k", 3, rule=Rule(1, 2))
    assert refused is not None
    assert (refused.granted, refused.rule) == (False, Rule(1, 2))
    assert seen(buckets).tokens == 2


def test_the_rule_of_a_key(conn: psycopg.Connection, buckets: RateRepository) -> None:
    """Its own, else the longest pattern's, else the caller's, else what it was last used by; live."""

    def ruled(rule: Rule | None = None) -> tuple[float, float] | None:
        taken = buckets.take("host:a.org", 0, rule=rule)
        return taken and tuple(taken.rule)

    assert ruled() is None
    assert ruled(Rule(1, 1)) == (1, 1)
    assert ruled() == (1, 1)
    assert ruled(Rule(2, 3)) == (2, 3)
    buckets.set("host:*", 4, 4, actor="ann")
    assert ruled(Rule(2, 3)) == (4, 4)
    buckets.set("host:a.*", 5, 5, actor="ann")
    buckets.set("h*", 9, 9, actor="ann")
    assert ruled() == (5, 5)
    buckets.set("host:a.org", 6, actor="ann", reason="they asked")
    assert ruled(Rule(2, 3)) == (6, 6)
    buckets.clear("host:a.org", actor="bob")
    assert ruled() == (5, 5)
    said = conn.execute(
        "SELECT actor, action, subject_kind, subject_id, reason, details FROM audit_log ORDER BY id"
    ).fetchall()
    assert said[-2:] == [
        (
            "ann",
            "limits.set",
            "rate_limit",
            "host:a.org",
            "they asked",
            {"per_s": 6, "burst": 6, "was": {"per_s": 5, "burst": 5}},
        ),
        ("bob", "limits.clear", "rate_limit", "host:a.org", None, {"was": {"per_s": 6, "burst": 6}}),
    ]


def test_a_pattern_makes_buckets(buckets: RateRepository) -> None:
    """A key that it matches needs no rule of its own, and starts full."""
    buckets.set("host:*", 0.001, 3, actor="ann")
    waits = [buckets.take("host:b.org", 1, rule=Rule(99, 99)) for _ in range(4)]
    assert [each and each.wait_s < 1 for each in waits] == [True, True, True, False]
    assert [row.rate_key for row in buckets.list(set_only=True)] == ["host:*"]
    assert [row.rate_key for row in buckets.list()] == ["host:*", "host:b.org"]


def test_a_smaller_burst_holds_at_once(buckets: RateRepository) -> None:
    """What a bucket has above it is gone; what it owes it goes on owing, at the new speed."""
    buckets.take("k", 0, rule=Rule(0.001, 100))
    buckets.set("k", 0.001, 2, actor="ann")
    assert seen(buckets).tokens == 2
    for _ in range(4):
        buckets.take("k", 1)
    buckets.set("k", 0.002, 1, actor="ann")
    taken = buckets.take("k", 1)
    assert taken is not None
    assert taken.wait_s == pytest.approx(1500, abs=100)


def test_a_block_voids_what_was_granted_in_advance(conn: psycopg.Connection, buckets: RateRepository) -> None:
    """All take anew, paced from its end on; a shorter block changes nothing, nor does a refund of before."""
    taken = [buckets.take("k", 1, rule=Rule(0.01, 1)) for _ in range(3)]
    assert not buckets.is_void("k", taken[2].epoch)
    until = buckets.penalize("k", 1000)
    assert buckets.penalize("k", 500) == until
    assert all(buckets.is_void("k", each.epoch) for each in taken)
    assert not buckets.refund("k", 1, taken[0].epoch)
    again = [buckets.take("k", 1) for _ in range(2)]
    assert [each.wait_s for each in again] == [pytest.approx(1100, abs=20), pytest.approx(1200, abs=20)]
    assert buckets.refund("k", 1, again[1].epoch)
    shift(conn, 1150)
    after = buckets.take("k", 1)
    assert after is not None
    assert after.wait_s == pytest.approx(50, abs=20)


def test_nobody_penalizes_a_key_without_a_rule(buckets: RateRepository) -> None:
    """There is nobody whom it would slow."""
    assert buckets.penalize("k", 10) is None
    assert buckets.penalize("k", 10, rule=Rule(1, 1)) is not None


@pytest.mark.parametrize(
    ("key", "per_s", "burst"),
    [
        ("a*b", 1, 1),
        ("", 1, 1),
        ("k", 0, 1),
        ("k", -1, 1),
        ("k", 1, 0),
        ("k", float("nan"), 1),
        ("k", True, 1),
    ],
)
def test_a_rule_is_checked(buckets: RateRepository, key: str, per_s: float, burst: float) -> None:
    """Before anything is written."""
    with pytest.raises(PayloadError):
        buckets.set(key, per_s, burst, actor="ann")
    assert buckets.list() == []


def test_unused_buckets_are_forgotten(
    conn: psycopg.Connection, buckets: RateRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that would be the same if made anew; one that owes, is blocked, in use or set by hand stays."""
    for key in ("a idle", "b owes", "c blocked", "d idle"):
        buckets.take(key, 1, rule=Rule(1, 1))
    buckets.take("b owes", 1e6, rule=Rule(1, 1e6))
    buckets.take("b owes", 1e6, rule=Rule(1, 1e6))
    buckets.set("e set", 1, actor="ann")
    buckets.set("f*", 1, actor="ann")
    shift(conn, 90_000)
    buckets.penalize("c blocked", 10)
    buckets.take("g used", 1, rule=Rule(1, 1))
    monkeypatch.setattr(rates, "SEEN_AT_ONCE", 2)
    seen_up_to = [""]
    while not seen_up_to[1:] or seen_up_to[-1]:
        seen_up_to.append(buckets.forget(for_s=86_400, after=seen_up_to[-1]))
    assert seen_up_to == ["", "b owes", "d idle", "f*", ""]
    assert [row.rate_key for row in buckets.list()] == ["b owes", "c blocked", "e set", "f*", "g used"]


def test_takes_of_many_sessions_add_up(qwf_dsn: str, buckets: RateRepository) -> None:
    """Eight sessions at once are granted places of one line: no two the same, none left out."""
    rule = Rule(0.001, 1)

    def twenty() -> list[Taken | None]:
        with psycopg.connect(qwf_dsn, autocommit=True) as own:
            repository = RateRepository(own)
            return [repository.take("k", 1, rule=rule) for _ in range(20)]

    waits = sorted(each.wait_s for taken in together(*[twenty] * 8) for each in taken if each)
    assert [round(wait / 1000) for wait in waits] == list(range(160))


def test_a_take_waits_for_the_one_before(qwf_dsn: str, conn: psycopg.Connection) -> None:
    """A second take that meets an open one sees what that took; its time is that of its turn."""
    RateRepository(conn).take("k", 0, rule=Rule(0.001, 1))
    with psycopg.connect(qwf_dsn) as first, psycopg.connect(qwf_dsn, autocommit=True) as second:
        assert RateRepository(first).take("k", 1) is not None

        def commit_when_waited_for() -> None:
            waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = %s"
            while conn.execute(waiting, [second.info.backend_pid]).fetchone() == (0,):
                pass
            began.extend(conn.execute("SELECT clock_timestamp()").fetchone() or ())
            first.commit()

        began: list[datetime] = []
        _, taken = together(commit_when_waited_for, lambda: RateRepository(second).take("k", 1))
        assert taken is not None
        assert round(taken.wait_s / 1000) == 1
        assert seen(RateRepository(conn)).refilled_at > began[0]


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("analyzed", [True, False], ids=["analyzed", "never analyzed"])
def test_a_take_reads_by_index(conn: psycopg.Connection, mode: str, analyzed: bool) -> None:
    """However many buckets there are, it reads one, and the patterns."""
    conn.execute("ALTER TABLE rate_limits SET (autovacuum_enabled = off)")
    conn.execute(
        "INSERT INTO rate_limits (rate_key, tokens_per_s, burst, tokens)"
        " SELECT 'host:' || n, 1, 1, 1 FROM generate_series(1, 20000) AS n"
    )
    RateRepository(conn).set("host:*", 1, 1, actor="ann")
    if analyzed:
        conn.execute("VACUUM ANALYZE rate_limits")
    params = {
        "rate_key": "host:77",
        "cost": 1,
        "per_s": None,
        "burst": None,
        "max_wait_s": 1.0,
        "relaxed": False,
    }
    part = explain(conn, mode, rates.FORGET, {"for_s": 1.0, "after": "host:5", "limit": 100})
    assert all(node["Node Type"] != "Seq Scan" for node in part)
    for sql in (rates.TAKE, rates.CREATE):
        plan = explain(conn, mode, sql, params)
        scans = [node for node in plan if "Scan" in node["Node Type"] and "rate_limits" in str(node)]
        assert all(node["Node Type"] != "Seq Scan" for node in scans)
        assert "ix_rate_limits_patterns" in [node.get("Index Name") for node in plan]
        read = [node["Actual Rows"] + node.get("Rows Removed by Filter", 0) for node in scans]
        assert max(read) <= 2
