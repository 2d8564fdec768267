"""A retry repeats what failed and what worked with a lost session, in order, beside no hook that is alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.connections.kept import own_connection
from support.rows.jobs import CLEAR_WITH_WORKERS
from support.stages.hook_stage import UNTIL, Stage, result

from queue_workflows import HookRecordRepository
from queue_workflows.engine.runs.retry import retry_run

ONCE = {"x-max-attempts": 1}
AT_ONCE = {"x-retry-s": 0}


@pytest.fixture
def stage(qwf_dsn: str, tmp_path: Path) -> Iterator[Stage]:
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR_WITH_WORKERS)
        yield Stage(qwf_dsn, connection, tmp_path)


def stood_aside(stage: Stage, hook: str) -> bool:
    """Whether this hook is or was on hold because of another one."""
    row = stage.connection.execute(
        "SELECT COALESCE(hold_reason, past_holds -> -1 ->> 'reason', '') FROM workflow_node_jobs"
        " WHERE node_module = %s",
        [hook],
    ).fetchone()
    return row == ("step_taken",)


def retried(stage: Stage, run_id: Any) -> None:
    with stage.connection.transaction():
        retry_run(run_id, conn=stage.connection)


def test_a_retry_waits_for_a_hook_that_runs_alone(stage: Stage) -> None:
    """In the strict order each does; the retry is on hold, and runs when there is nobody beside it."""
    stage.plugins.mkdir()
    (stage.plugins / "hooks.toml").write_text('order = "strict"')
    again = ('[ "$QWF_ATTEMPT" = 1 ] && exit 1', "[ -e ../b/inside ] && touch beside", "exit 0")
    stage.put("a/on_Page__10_a.sh", *again, **AT_ONCE)
    stage.put("b/on_Page__20_b.sh", "touch inside", UNTIL.format("../go"), "rm inside")
    run_id = stage.start()
    with stage.worker("--concurrency", "4", QWF_BACKOFF_JITTER="0"):
        # Or the other one for the retry, where that comes first.
        hooks = "on_Page__10_a.sh", "on_Page__20_b.sh"
        stage.until(lambda: len(stage.jobs()) == 2 and any(stood_aside(stage, hook) for hook in hooks))
        stage.file(run_id, "go").touch()
        stage.until(lambda: stage.status(run_id) == "completed")
    assert not stage.file(run_id, "a/beside").exists()


def test_a_hook_that_runs_alone_waits_for_a_retry(stage: Stage) -> None:
    """That has begun by the time when it is its turn."""
    again = ('[ "$QWF_ATTEMPT" = 1 ] && exit 1', "touch inside", UNTIL.format("../go"), "rm inside")
    stage.put("a/on_Page__10_a.sh", *again, **AT_ONCE)
    stage.put("c/on_Page__30_c.sh", UNTIL.format("../a/inside"))
    stage.put("b/on_Page__50_b.sh", "[ -e ../a/inside ] && touch beside", "exit 0")
    run_id = stage.start()
    with stage.worker("--concurrency", "4", QWF_BACKOFF_JITTER="0"):
        stage.until(lambda: stood_aside(stage, "on_Page__50_b.sh") if len(stage.jobs()) == 3 else False)
        stage.file(run_id, "go").touch()
        stage.until(lambda: stage.status(run_id) == "completed")
    assert not stage.file(run_id, "b/beside").exists()


def test_a_session_that_is_over_is_begun_anew_for_what_failed(stage: Stage) -> None:
    """With all that works with it, and what comes after its end; what succeeded without it is kept."""
    counted = 'echo "$QWF_HOOK" >> ../ran'
    stage.put(
        "browser/on_Page__10_open.bg.sh",
        counted,
        "trap 'rm up; exit 0' TERM",
        "touch up",
        "while :; do sleep 0.1; done",
        **{"x-ready": {"file": "up"}},
    )
    stage.put("plain/on_Page__20_plain.sh", counted)
    stage.put("browser/on_Page__30_go.sh", counted, "[ -e up ]")
    shot = (counted, "[ -e ../browser/up ] && [ -e ../go ]")
    stage.put("shot/on_Page__40_shot.sh", *shot, **ONCE, required_plugins=["browser"])
    stage.put("tidy/on_PageEnd__10_tidy.sh", counted)
    run_id = stage.start()
    with stage.worker():
        stage.until(lambda: stage.status(run_id) == "failed")
        stage.file(run_id, "ran").unlink()
        stage.file(run_id, "go").touch()
        retried(stage, run_id)
        stage.until(lambda: stage.status(run_id) == "completed")
    ran = stage.file(run_id, "ran").read_text().split()
    assert ran == [
        "on_Page__10_open.bg.sh",
        "on_Page__30_go.sh",
        "on_Page__40_shot.sh",
        "on_PageEnd__10_tidy.sh",
    ]
    assert not stage.file(run_id, "browser/up").exists()


@pytest.mark.parametrize("order", ["steps", "strict"])
def test_what_failed_runs_again_in_its_order(stage: Stage, order: str) -> None:
    """A later one waits for an earlier one, though what stood between them is kept."""
    stage.plugins.mkdir()
    (stage.plugins / "hooks.toml").write_text(f'order = "{order}"')
    between, last = ("20", "30") if order == "steps" else ("12", "19")
    stage.put("a/on_Page__10_a.sh", "[ -e ../go ] || exit 1", UNTIL.format("../gate"), "touch made", **ONCE)
    stage.put(f"b/on_Page__{between}_b.sh", "echo x >> ran")
    stage.put(f"c/on_Page__{last}_c.sh", "[ -e ../a/made ]", **ONCE)
    run_id = stage.start()
    with stage.worker("--concurrency", "4"):
        stage.until(lambda: stage.status(run_id) == "failed")
        stage.file(run_id, "go").touch()
        retried(stage, run_id)
        stage.until(lambda: stood_aside(stage, f"on_Page__{last}_c.sh"))
        stage.file(run_id, "gate").touch()
        stage.until(lambda: stage.status(run_id) == "completed")
    assert stage.file(run_id, "b/ran").read_text() == "x\n"


def test_a_later_attempt_never_writes_over_what_an_earlier_one_stored(stage: Stage) -> None:
    """It works in the same directory, with what another hook has put there; what that had is kept."""
    stage.put("a/on_Page__10_a.sh", "echo of-a > other")
    stage.put(
        "a/on_Page__20_b.sh", 'echo "$QWF_ATTEMPT" > page', "cat other", '[ "$QWF_ATTEMPT" = 2 ]', **AT_ONCE
    )
    run_id = stage.start()
    with stage.worker(QWF_BACKOFF_JITTER="0"):
        stage.until(lambda: stage.status(run_id) == "completed")
    assert stage.file(run_id, "a/page").read_text() == "2\n"
    kept = stage.file(run_id, ".attempts/a")
    assert [path.name for path in kept.iterdir()] == ["on_Page__20_b.sh.1"]
    assert (kept / "on_Page__20_b.sh.1" / "page").read_text() == "1\n"
    assert (kept / "on_Page__20_b.sh.1" / "other").read_text() == "of-a\n"
    (_, listing) = HookRecordRepository(stage.connection).list(run_id, kind="Files", plugin="a")[-2:]
    assert [found["path"] for found in listing.payload["files"]] == ["other", "page"]


def came_to(stage: Stage, hook: str) -> dict[str, Any]:
    """The result of a hook's job."""
    row = stage.connection.execute(
        "SELECT context_delta FROM workflow_node_jobs WHERE node_module = %s", [hook]
    ).fetchone()
    assert row is not None
    return dict(row[0])


def test_a_second_try_that_found_nothing_keeps_what_a_killed_one_left(stage: Stage) -> None:
    """It succeeds without a response; what the first had, when its worker was killed, is the job's result."""
    stage.put(
        "a/on_Page__10_a.sh",
        'if [ "$QWF_ATTEMPT" = 1 ]; then echo all > index; touch begun; ' + UNTIL.format("../never") + "; fi",
        ": > index",
        result("succeeded", "0 responses"),
        **AT_ONCE,
    )
    run_id = stage.start()
    with stage.worker() as first:
        stage.until(stage.file(run_id, "a/begun").exists)
        first.kill()
        first.wait(150)
    stage.connection.execute(
        "UPDATE workflow_node_jobs SET lease_expires_at = statement_timestamp() - interval '1 second'"
        " WHERE status = 'running'"
    )
    with stage.worker():
        stage.until(lambda: stage.status(run_id) == "completed")
    got = came_to(stage, "on_Page__10_a.sh")
    assert (got["status"], got["output_str"], got["attempt"]) == ("succeeded", "0 responses", 1)
    assert [(found["path"], found["size"]) for found in got["files"]] == [("begun", 0), ("index", 4)]
    assert got["earlier"] == [{"attempt": 1, "status": None, "output_str": "", "files": 2}]
    assert stage.file(run_id, "a/index").read_text() == ""
    assert stage.file(run_id, ".attempts/a/on_Page__10_a.sh.1/index").read_text() == "all\n"


def test_a_session_begun_anew_that_finds_nothing_keeps_its_first_results(stage: Stage) -> None:
    """Also where the first attempt succeeded in a generation before; one that finds something has its own."""
    anew = '[ "$QWF_ATTEMPT" = 1 ]'
    stage.put("browser/on_Page__10_open.bg.sh", "while :; do sleep 0.1; done")
    first, nothing = result("succeeded", "2 responses"), result("succeeded", "0 responses")
    stage.put(
        "browser/on_Page__20_heard.sh",
        f"if {anew}; then echo both > heard; {first}; else : > heard; {nothing}; fi",
    )
    stage.put("browser/on_Page__30_title.sh", 'echo "$QWF_ATTEMPT" > title', first)
    # In a step of its own: what a hook beside it writes into their directory counts as its own.
    stage.put("browser/on_Page__50_feed.sh", f"{anew} || exit 10", "echo x > feed")
    stage.put("browser/on_Page__40_shot.sh", "[ -e ../go ]")
    (stage.plugins / "browser" / "config.json").write_text('{"x-max-attempts": 1}')
    run_id = stage.start()
    with stage.worker():
        stage.until(lambda: stage.status(run_id) == "failed")
        stage.file(run_id, "go").touch()
        retried(stage, run_id)
        stage.until(lambda: stage.status(run_id) == "completed")
    heard, title = came_to(stage, "on_Page__20_heard.sh"), came_to(stage, "on_Page__30_title.sh")
    assert (heard["output_str"], heard["attempt"]) == ("2 responses", 1)
    assert {"path": "heard", "size": 5}.items() <= heard["files"][0].items()
    assert (title["attempt"], title["earlier"][0]["attempt"]) == (2, 1)
    # It finds what it has made before, and says so.
    feed = came_to(stage, "on_Page__50_feed.sh")
    assert stage.jobs()["on_Page__50_feed.sh"] == ("skipped", 2)
    assert (feed["attempt"], feed["files"][0]["path"]) == (1, "feed")
