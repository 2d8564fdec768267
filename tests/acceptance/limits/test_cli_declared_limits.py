"""What operators see of limits that code declares: whose word holds, where apps differ, what has adapted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.commands import Said, qwf_here
from support.processes.workers import running_scheduler, running_worker, until
from support.rows.claim_sessions import cap, hand
from support.stages.declaring import EMPTY_LIMITS, declare

from queue_workflows import enqueue_ingest_job
from queue_workflows.engine.registry.declared import LimitDeclaring
from queue_workflows.engine.registry.tasks import TaskRegistry
from queue_workflows.repositories.limits.adapted import AdaptedRepository
from queue_workflows.settings.declared_limits import Adaptive, Rate, declared_limits

Qwf = Callable[..., Said]
LATER_S = 86_400


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    """A connection in autocommit; nothing is declared or set."""
    with own_connection(qwf_dsn) as connection:
        connection.execute(EMPTY_LIMITS)
        yield connection


@pytest.fixture
def qwf(qwf_dsn: str) -> Qwf:
    return lambda *words, **more: qwf_here("--db", qwf_dsn, *words, **more)


def lines(said: Said) -> list[list[str]]:
    """The words of each line."""
    return [line.split() for line in said.stdout.splitlines()]


def test_the_list_names_the_apps_and_what_holds(conn: psycopg.Connection, qwf: Qwf) -> None:
    """The stricter of two, an operator's word above them, and a rate that nobody has used."""
    declare(conn, "shop", **{"host:*": 5, "mine": 3, "unpaywall": Rate(10, burst=20)})
    declare(conn, "films", **{"host:*": 2, "unpaywall": Rate(5, burst=20)})
    cap(conn, "mine", 9)
    assert lines(qwf("limits", "list")) == [
        ["KEY", "CAP", "TAKEN", "WAITING", "HELD", "BY", "SET", "BY", "WHY"],
        ["host:*", "2", "-", "-", "-", "declared", "by", "films,", "shop", "films:", "2,", "shop:", "5"],
        ["mine", "9", "0", "0", "-", "me", "declared:", "3"],
    ]
    said = " ".join(lines(qwf("limits", "list", "--rates"))[1])
    assert said == "unpaywall 5/s 20 20 - declared by films, shop they differ, the stricter holds"
    seen = {one["key"]: one for one in json.loads(qwf("limits", "list", "--json").stdout)}
    assert (seen["mine"]["source"], seen["host:*"]["source"]) == ("operator", "declared")
    assert seen["host:*"]["declared"] == [
        {"key": "host:*", "owner": "films", "max_slots": 2, "floor": None},
        {"key": "host:*", "owner": "shop", "max_slots": 5, "floor": None},
    ]


def test_an_operators_word_is_given_up(conn: psycopg.Connection, qwf: Qwf) -> None:
    """Each time it is said what is declared."""
    declare(conn, "shop", mine=3)
    would = qwf("limits", "set", "mine", "9", "--dry-run").stdout.splitlines()[0]
    assert would == "mine: would be at most 9 at once, is 3, declared by shop; nothing is changed"
    assert qwf("limits", "set", "mine", "9").stdout == "mine: at most 9 at once, was 3, declared by shop\n"
    again = qwf("limits", "set", "mine", "8").stdout
    assert again == "mine: at most 8 at once, was 9; declared by shop: 3\n"
    assert qwf("limits", "clear", "mine").stdout == "mine: at most 3, declared by shop\n"
    assert "nobody has set a limit for mine" in qwf("limits", "clear", "mine", status=1).stderr


def test_a_rate_that_is_set_names_what_is_declared(conn: psycopg.Connection, qwf: Qwf) -> None:
    """As a cap that is set does, also of one that nobody has used yet."""
    declare(conn, "shop", crossref=Rate(10, burst=20))
    said = qwf("limits", "set", "crossref", "--rate", "5/s").stdout
    assert said == "crossref: 5/s, 5 at once, was 10/s, 20 at once, declared by shop\n"
    again = qwf("limits", "set", "crossref", "--rate", "4/s").stdout
    assert again == "crossref: 4/s, 4 at once, was 5/s, 5 at once; declared by shop: 10/s\n"


def test_the_doctor_names_apps_that_differ(conn: psycopg.Connection, qwf: Qwf) -> None:
    """Limits and tasks, with what holds; and nothing once they say the same."""
    check = _declared(qwf)
    assert (check["status"], check["data"]) == ("ok", {"disputed": []})
    for owner, most in (("shop", 5), ("films", 2)):
        tasks = TaskRegistry()
        tasks.register("fetch", lambda _reason: None, limit_key=f"{owner}:key")
        LimitDeclaring(owner, declared_limits({"mine": most}), tasks).keep(conn)
    check = _declared(qwf)
    assert (check["status"], check["found"]) == (
        "warn",
        "films and shop declare the limit mine differently, and 1 more",
    )
    assert check["advice"] == "the stricter holds; have them say the same"


def _declared(qwf: Qwf) -> dict[str, Any]:
    report = json.loads(qwf("doctor", "--json").stdout)
    found: dict[str, Any] = next(one for one in report["checks"] if one["name"] == "declared")
    return found


def test_a_job_that_waits_for_a_lowered_cap_says_so(conn: psycopg.Connection, qwf: Qwf, qwf_dsn: str) -> None:
    """And from what it was lowered, as the list does."""
    declare(conn, "shop", slow=Adaptive(4, floor=1, down=0.5, doubles_s=LATER_S))
    jobs = [enqueue_ingest_job("fetch", queue="fetch", limit_key="slow", conn=conn).id for _ in range(4)]
    with hand(qwf_dsn, "h:fetch:1") as worker:
        worker.claim(2)
        AdaptedRepository(conn).lower(["slow"], age_s=0)
        worker.claim(2)
        told = qwf("explain", f"ingest:{jobs[-1]}").stdout
    assert "its cap is lowered from 4, as its server refuses more, and grows back by itself" in told
    assert lines(qwf("limits", "list"))[1][-3:] == ["adapts,", "from", "4"]


@pytest.mark.parametrize("role", ["worker", "scheduler"])
def test_a_role_puts_the_file_of_its_directory_into_force(
    conn: psycopg.Connection, qwf_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    """Before its first claim, in the name of its app."""
    (tmp_path / "qwf.toml").write_text('[limits]\n"host:*" = 2\nunpaywall = { rate = "10/s", burst = 20 }\n')
    monkeypatch.chdir(tmp_path)
    running = running_worker if role == "worker" else running_scheduler
    with running(qwf_dsn):
        sql = "SELECT key_pattern, owner, max_slots, per_s, burst FROM limit_declarations ORDER BY 1"
        found = until(lambda: conn.execute(sql).fetchall())
    app = "support.tasks.worker_tasks"
    assert found == [("host:*", app, 2, None, None), ("unpaywall", app, None, 10, 20)]
