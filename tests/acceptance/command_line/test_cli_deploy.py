"""`qwf deploy check`: what a deploy would break or change, named before it happens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.programs import environment
from support.rows.jobs import CLEAR_WITH_WORKERS

from queue_workflows import enqueue_ingest_job, start_run
from queue_workflows.errors import ExitCode

OLD = """
from queue_workflows import IngestSchedule, configure, ingest_task, set_ingest_schedule, set_node_resolver

configure(ingest_queues=["fetch", "mail"], limits={"host:*": 4, "api": "10/s"})
ingest_task("receipt", queue="fetch")(lambda reason, args: None)
ingest_task("resize", queue="fetch")(lambda reason, args: None)
set_node_resolver({"plan": lambda inputs: {}, "draw": lambda inputs: {}}.get)
NIGHTLY = IngestSchedule(name="nightly", cron="0 3 * * *", task_name="receipt", queue="fetch")
HOURLY = IngestSchedule(name="hourly", cron="0 * * * *", task_name="resize", queue="fetch", args={"width": 3})
set_ingest_schedule([NIGHTLY, HOURLY])
"""
DECLARES = """
import psycopg, shop, sys
from queue_workflows.config import current_config
from queue_workflows.engine.schedules.publish import Declaring
with psycopg.connect(sys.argv[1], autocommit=True) as conn:
    Declaring(current_config().ingest_schedule, "shop").keep(conn)
"""
NEW = """
from queue_workflows import IngestSchedule, configure, ingest_task, set_ingest_schedule, set_node_resolver

configure(ingest_queues=["fetch", "mail"], limits={"host:*": 2})

@ingest_task("resize", queue="fetch")
def resize(width: int) -> None:
    pass

def draw(inputs, size):
    return {}

set_node_resolver({"draw": draw}.get)
set_ingest_schedule([IngestSchedule(name="hourly", cron="30 * * * *", task_name="resize", queue="fetch",
    args={"height": 3})])
"""
ROWS = """
SELECT (SELECT jsonb_agg(to_jsonb(job)) FROM ingest_jobs AS job), (SELECT count(*) FROM app_declarations),
    (SELECT count(*) FROM schedules), (SELECT count(*) FROM audit_log)
"""
DOCUMENT = {
    "name": "film",
    "nodes": [
        {"id": "first", "module": "draw", "model": "sdxl", "queue": "gpu"},
        {"id": "second", "module": "plan", "depends_on": ["first"]},
    ],
}


class Shop:
    """A directory with two versions of a host app, and the command run on one of them."""

    def __init__(self, dsn: str, place: Path) -> None:
        self.dsn, self.place = dsn, place
        for name, text in (("shop", OLD), ("shop_new", NEW)):
            (place / f"{name}.py").write_text(text)

    def qwf(self, *arguments: str, app: str | None = "shop_new", status: int = 0) -> tuple[str, str]:
        wiring = ["--app", app] if app else []
        ended = self._python("-m", "queue_workflows", "--db", self.dsn, *wiring, *arguments)
        assert ended.returncode == status, ended.stderr
        return ended.stdout, ended.stderr

    def declare_schedules(self) -> None:
        """As the scheduler of the version that runs does when it starts."""
        ended = self._python("-c", DECLARES, self.dsn)
        assert ended.returncode == 0, ended.stderr

    def _python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        paths = os.pathsep.join([environment()["PYTHONPATH"], str(self.place)])
        return subprocess.run(
            [sys.executable, *arguments],
            env=environment({"PYTHONPATH": paths}),
            cwd=self.place,
            capture_output=True,
            text=True,
            timeout=120,
        )

    def check(self, *arguments: str, app: str = "shop_new", status: int = 1) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(
            self.qwf("deploy", "check", "--json", *arguments, app=app, status=status)[0]
        )
        return told


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR_WITH_WORKERS + "; TRUNCATE schedules, app_declarations, limit_declarations")
        yield connection


@pytest.fixture
def shop(qwf_dsn: str, tmp_path: Path) -> Shop:
    return Shop(qwf_dsn, tmp_path)


def found(told: dict[str, Any]) -> set[tuple[str, str, str, int]]:
    return {(one["level"], one["kind"], one["name"], one["rows"]) for one in told["findings"]}


def test_everything_that_a_deploy_would_meet_is_named_and_counted(
    shop: Shop, conn: psycopg.Connection
) -> None:
    """Tasks, arguments, modules, models, documents, schedules and limits, each with its rows."""
    shop.qwf("worker", "--queue", "fetch", "--drain", app="shop")
    shop.declare_schedules()
    receipts = [enqueue_ingest_job("receipt", queue="fetch", conn=conn).id for _ in range(3)]
    enqueue_ingest_job("resize", queue="fetch", args={"width": 3}, limit_key="host:a", conn=conn)
    wrong = enqueue_ingest_job("resize", queue="fetch", args={"width": "wide"}, conn=conn).id
    enqueue_ingest_job("elsewhere", queue="load", conn=conn)
    run = start_run(DOCUMENT, conn=conn).id
    told = shop.check("--instead-of", "shop")
    assert found(told) == {
        ("breaks", "task", "receipt", 3),
        ("breaks", "arguments", "resize", 1),
        ("breaks", "document", "draw", 1),
        ("breaks", "document", "plan", 1),
        ("breaks", "schedule", "hourly", 1),
        ("changes", "schedule", "hourly", 1),
        ("changes", "schedule", "nightly", 1),
        ("changes", "limit", "host:*", 1),
        ("changes", "limit", "api", 0),
        ("unseen", "queue", "load", 1),
        ("unseen", "models", "sdxl", 0),
    }
    examples = {(one["kind"], one["name"]): one["example"] for one in told["findings"]}
    assert examples["task", "receipt"] == f"ingest:{receipts[0]}"
    assert examples["arguments", "resize"] == f"ingest:{wrong}"
    assert examples["document", "plan"] == str(run)


def test_the_code_that_runs_fits(shop: Shop, conn: psycopg.Connection) -> None:
    """Nothing breaks and nothing changes, and that is said; nothing is written."""
    shop.qwf("worker", "--queue", "fetch", "--drain", app="shop")
    shop.declare_schedules()
    enqueue_ingest_job("receipt", queue="fetch", conn=conn)
    (before,) = conn.execute(ROWS).fetchall()
    assert shop.check(app="shop", status=0)["findings"] == []
    assert shop.qwf("deploy", "check", app="shop")[0] == (
        "nothing breaks and nothing changes; looked at 1 open jobs of 1 tasks and 0 modules, "
        "2 schedules, 2 limits\n"
    )
    (after,) = conn.execute(ROWS).fetchall()
    assert after == before


def test_a_finding_in_words(shop: Shop, conn: psycopg.Connection) -> None:
    """One line each, then how many there are."""
    job = enqueue_ingest_job("receipt", queue="fetch", conn=conn).id
    assert shop.qwf("deploy", "check", status=1)[0].splitlines()[0] == (
        "breaks   task receipt: the code does not have it: its jobs on fetch would be put on hold "
        f"(1 job, as ingest:{job})"
    )


def test_what_changes_counts_where_that_is_asked(shop: Shop, conn: psycopg.Connection) -> None:
    """With --strict a limit that is another is a failure, too."""
    shop.qwf("worker", "--queue", "fetch", "--drain", app="shop")
    shop.declare_schedules()
    (shop.place / "shop.py").write_text(OLD.replace('"host:*": 4', '"host:*": 3'))
    assert found(shop.check(app="shop", status=0)) == {("changes", "limit", "host:*", 0)}
    shop.check("--strict", app="shop", status=1)


def test_what_is_another_apps_is_not_ours(shop: Shop, conn: psycopg.Connection) -> None:
    """Names that are said to be another's break nothing; a hook is a file of a machine, and no module."""
    shop.declare_schedules()
    start_run({"name": "film", "nodes": [{"id": "a", "module": "theirs.plan"}]}, conn=conn)
    hook = {"id": "b", "module": "on_Page__10_a.sh", "plugin": "a", "queue": "hooks"}
    start_run({"name": "Page", "nodes": [hook]}, conn=conn)
    assert ("breaks", "document", "theirs.plan", 1) in found(shop.check(app="shop"))
    told = shop.check("--not-ours", "theirs.*", app="shop", status=0)
    assert ("unseen", "document", "theirs.plan", 1) in found(told)
    assert not any("on_Page" in one["name"] for one in told["findings"])


def test_a_schedule_for_a_queue_that_is_not_named(shop: Shop, conn: psycopg.Connection) -> None:
    """No scheduler of such a wiring would start."""
    (shop.place / "shop.py").write_text(
        OLD.replace('["fetch", "mail"]', '["mail"]').replace('queue="fetch")(', 'queue="mail")(')
    )
    assert ("breaks", "schedule", "nightly", 1) in found(shop.check(app="shop"))


@pytest.mark.parametrize(
    ("arguments", "app", "status", "said"),
    [
        ((), None, ExitCode.CONFIGURATION, "there is no code to look at"),
        ((), "no_such_module", ExitCode.CONFIGURATION, "no_such_module"),
        (("--queue", "not a queue"), "shop", ExitCode.CONFIGURATION, "not a queue"),
        (("--no-such-option",), "shop", ExitCode.USAGE, "--no-such-option"),
    ],
)
def test_bad_input_is_one_line(
    shop: Shop, arguments: tuple[str, ...], app: str | None, status: int, said: str
) -> None:
    """It says what is wrong, and ends with the status of that."""
    told = shop.qwf("deploy", "check", *arguments, app=app, status=status)[1]
    assert said in told
    assert "Traceback" not in told


def test_a_database_that_is_away(shop: Shop) -> None:
    """Nothing was compared, which is no pass."""
    shop.dsn = "postgresql://nobody@127.0.0.1:1/none"
    shop.qwf("deploy", "check", app="shop", status=ExitCode.UNREACHABLE)
