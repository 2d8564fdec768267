"""A listener is for the time of its run's steps: what has not begun by the seal does not begin after it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.connections.kept import own_connection
from support.rows.jobs import CLEAR_WITH_WORKERS
from support.stages.hook_stage import UNTIL, Stage, result

from queue_workflows.engine.runs.retry import retry_run
from queue_workflows.host.locks.lock import HostLock

NOTHING_LEFT = "its run is sealed: there is nothing left that it could run beside"


@pytest.fixture
def stage(qwf_dsn: str, tmp_path: Path) -> Iterator[Stage]:
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR_WITH_WORKERS + "; TRUNCATE machines, binaries CASCADE")
        yield Stage(qwf_dsn, connection, tmp_path)


def said(stage: Stage) -> dict[str, str | None]:
    """What the last entry about each job says."""
    rows = stage.connection.execute(
        "SELECT node_module, errors -> -1 ->> 'message' FROM workflow_node_jobs"
    ).fetchall()
    return dict(rows)


def test_a_listener_that_has_not_begun_is_skipped_at_the_seal(stage: Stage) -> None:
    """One whose program is missing keeps no run open, and one that an operator runs again does not run."""
    kill = {"x-max-attempts": 1}
    stage.put("fails/on_Page__00_fails.bg.sh", "echo x >> began", "exit 1", **kill)
    stage.put("lacks/on_Page__91_lacks.bg.sh", "touch began", **kill)
    lacking = {"name": "no-such-tool", "bin_providers": "env"}
    (stage.plugins / "lacks" / "binaries.jsonl").write_text(json.dumps(lacking))
    stage.put("last/on_Page__90_last.sh", UNTIL.format("../go"), result("succeeded"))
    stage.put("tidy/on_PageEnd__10_tidy.sh", "touch done")
    run_id = stage.start()
    held = "SELECT count(*) FROM workflow_node_jobs WHERE hold_reason = 'binary_missing'"
    sealed = "SELECT seal_requested_at IS NOT NULL FROM workflow_runs"
    with stage.worker():
        stage.until(lambda: stage.connection.execute(held).fetchone() == (1,))
        stage.until(lambda: stage.jobs()["on_Page__00_fails.bg.sh"] == ("failed", 1))
        stage.file(run_id, "go").touch()
        stage.until(lambda: stage.connection.execute(sealed).fetchone() == (True,))
        stage.until(lambda: stage.status(run_id) == "failed")
        assert stage.jobs()["on_Page__91_lacks.bg.sh"][0] == "skipped"
        assert stage.jobs()["on_Page__00_fails.bg.sh"] == ("failed", 1)
        assert said(stage)["on_Page__91_lacks.bg.sh"] == NOTHING_LEFT
        with stage.connection.transaction():
            retry_run(run_id, conn=stage.connection)
        stage.until(lambda: stage.status(run_id) == "completed")
    assert stage.jobs()["on_Page__00_fails.bg.sh"] == ("skipped", 2)
    assert said(stage)["on_Page__00_fails.bg.sh"] == NOTHING_LEFT
    assert stage.file(run_id, "fails/began").read_text() == "x\n"
    assert not stage.file(run_id, "lacks/began").exists()


@pytest.mark.parametrize(
    "reason",
    [
        *("host_lock", "unknown_task"),
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("binary_missing", "step_taken")),
    ],
)
def test_a_listener_on_hold_is_skipped_at_the_seal(stage: Stage, reason: str) -> None:
    """Whatever it waits for, and though that is not there; its run ends."""
    stage.put("hears/on_Page__91_hears.bg.sh", "touch began", **{"x-host-lock": "ear"})
    stage.put("last/on_Page__90_last.sh", "touch begun", UNTIL.format("../go"))
    run_id = stage.start()
    hears, held = "on_Page__91_hears.bg.sh", "SELECT 1 FROM workflow_node_jobs WHERE hold_reason = %s"
    locks = stage.directory / "locks"
    locks.mkdir()
    with HostLock("ear", directory=locks), stage.worker(QWF_LOCK_DIR=str(locks)):
        stage.until(lambda: stage.connection.execute(held, ["host_lock"]).fetchone() == (1,))
        stage.until(stage.file(run_id, "last/begun").exists)
        if reason == "unknown_task":
            (stage.plugins / "hears" / hears).unlink()
        stage.connection.execute(
            "UPDATE workflow_node_jobs SET hold_reason = %s, run_at = now() + '1 day' WHERE node_module = %s",
            [reason, hears],
        )
        stage.file(run_id, "go").touch()
        stage.until(lambda: stage.status(run_id) == "completed")
    assert stage.jobs()[hears][0] == "skipped"
    assert said(stage)[hears] == NOTHING_LEFT
    assert not stage.file(run_id, "hears/began").exists()


def test_the_retry_of_a_listener_keeps_no_run_open(stage: Stage) -> None:
    """It has nothing left to run beside, however late it is due; that of another hook is waited for."""
    fails = ("test -e ../go", "exit $?")
    stage.put("hears/on_Page__00_hears.bg.sh", *fails, **{"x-retry-s": 3600})
    stage.put("waits/on_Page__00_waits.bg.sh", *fails, **{"x-bg-at-seal": "wait", "x-retry-s": 3600})
    stage.put("last/on_Page__90_last.sh", UNTIL.format("../go"))
    run_id = stage.start()
    hears, waits = "on_Page__00_hears.bg.sh", "on_Page__00_waits.bg.sh"
    due = "UPDATE workflow_node_jobs SET run_at = now() WHERE node_module = %s AND run_at > now() + '50 min'"
    with stage.worker():
        stage.until(lambda: [stage.jobs()[name] for name in (hears, waits)] == [("scheduled", 1)] * 2)
        stage.file(run_id, "go").touch()
        stage.until(lambda: stage.jobs()[hears] == ("skipped", 2))
        assert said(stage)[hears] == NOTHING_LEFT
        assert (stage.status(run_id), stage.jobs()[waits]) == ("running", ("scheduled", 1))
        assert stage.connection.execute(due, [waits]).rowcount == 1
        stage.until(lambda: stage.status(run_id) == "completed")
    assert stage.jobs()[waits] == ("completed", 2)


def test_a_listener_that_fails_after_the_seal_has_had_its_time(stage: Stage) -> None:
    """Before it could be told; what else would be tried again is as if it had been."""
    listen = ("trap '' TERM", UNTIL.format("../sealed"), "exit 3")
    stage.put("hears/on_Page__00_hears.bg.sh", *listen, **{"x-retry-s": 3600})
    stage.put("last/on_Page__90_last.sh", "true")
    run_id = stage.start()
    sealed = "SELECT seal_requested_at IS NOT NULL FROM workflow_runs"
    with stage.worker():
        stage.until(lambda: stage.connection.execute(sealed).fetchone() == (True,))
        stage.file(run_id, "sealed").touch()
        stage.until(lambda: stage.status(run_id) == "completed")
    assert stage.jobs()["on_Page__00_hears.bg.sh"] == ("completed", 1)


def test_a_listener_that_ends_at_its_timeout_after_the_seal_has_had_its_time(stage: Stage) -> None:
    """Also with status 0, which before the seal would be a failure like any other end at a timeout."""
    stage.put(
        "hears/on_Page__00_hears.bg.sh",
        f"told() {{ touch told; {UNTIL.format('../sealed')}; exit 0; }}",
        "trap told TERM",
        "while :; do sleep 0.1; done",
        properties={"HEARS_TIMEOUT": {"type": "number", "default": 0.3}},
        **{"x-retry-s": 3600},
    )
    stage.put("last/on_Page__90_last.sh", UNTIL.format("../hears/told"))
    run_id = stage.start()
    sealed = "SELECT seal_requested_at IS NOT NULL FROM workflow_runs"
    with stage.worker(QWF_CANCEL_GRACE_S="600"):
        stage.until(lambda: stage.connection.execute(sealed).fetchone() == (True,))
        stage.file(run_id, "sealed").touch()
        stage.until(lambda: stage.status(run_id) == "completed")
    assert stage.jobs()["on_Page__00_hears.bg.sh"] == ("completed", 1)


def test_at_the_seal_a_hook_has_its_own_timeout_as_grace(stage: Stage) -> None:
    """One without any has the worker's grace, and is killed; what the other says after that is kept."""
    stage.put("deaf/on_Page__00_deaf.bg.sh", "trap '' TERM", "touch begun", "while :; do sleep 0.1; done")
    stage.put(
        "slow/on_Page__00_slow.bg.sh",
        f"told() {{ touch told; {UNTIL.format('../go')}; {result('succeeded', 'heard')}; exit 0; }}",
        "trap told TERM",
        "touch begun",
        "while :; do sleep 0.1; done",
        properties={"SLOW_TIMEOUT": {"type": "integer", "default": 600}},
    )
    both = "../deaf/begun ] || [ ! -e ../slow/begun"
    stage.put("last/on_Page__90_last.sh", UNTIL.format(both))
    run_id = stage.start()
    with stage.worker(QWF_CANCEL_GRACE_S="1"):
        stage.until(lambda: stage.jobs()["on_Page__00_deaf.bg.sh"] == ("completed", 1))
        assert stage.file(run_id, "slow/told").exists()
        assert stage.jobs()["on_Page__00_slow.bg.sh"] == ("running", 1)
        stage.file(run_id, "go").touch()
        stage.until(lambda: stage.status(run_id) == "completed")
    said = "SELECT context_delta ->> 'output_str' FROM workflow_node_jobs WHERE node_module LIKE '%slow%'"
    assert stage.connection.execute(said).fetchone() == ("heard",)


def test_what_is_deaf_is_killed_when_its_own_grace_is_over_and_read(stage: Stage) -> None:
    """Long before the worker's own grace would be; what it has printed until then is its output."""
    stage.put(
        "deaf/on_Page__00_deaf.bg.sh",
        "trap '' TERM",
        result("succeeded", "heard"),
        "touch begun",
        "while :; do sleep 0.1; done",
        properties={"DEAF_TIMEOUT": {"type": "integer", "default": 1}},
    )
    (stage.plugins / "hooks.toml").write_text('background_timeouts = "grace"\n')
    stage.put("last/on_Page__90_last.sh", UNTIL.format("../deaf/begun"))
    run_id = stage.start()
    with stage.worker(QWF_CANCEL_GRACE_S="3600"):
        stage.until(lambda: stage.status(run_id) == "completed")
    assert stage.jobs()["on_Page__00_deaf.bg.sh"] == ("completed", 1), said(stage)
    heard = "SELECT context_delta ->> 'output_str' FROM workflow_node_jobs WHERE node_module LIKE '%deaf%'"
    assert stage.connection.execute(heard).fetchone() == ("heard",)


def test_hooks_that_are_all_in_the_background_end_by_themselves(stage: Stage) -> None:
    """There is no foreground with whose end they could end; what tidies up comes after them."""
    stage.put("one/on_Page__00_one.bg.sh", "touch begun", UNTIL.format("../go"), "touch done")
    stage.put("tidy/on_PageEnd__10_tidy.sh", "[ -e ../one/done ]", "exit $?", **{"x-max-attempts": 1})
    run_id = stage.start()
    with stage.worker():
        stage.until(stage.file(run_id, "one/begun").exists)
        assert stage.jobs() == {"on_Page__00_one.bg.sh": ("running", 1)}
        stage.file(run_id, "go").touch()
        stage.until(lambda: stage.status(run_id) == "completed")


@pytest.mark.parametrize("at_timeout", ["fail", pytest.param("end", marks=pytest.mark.slow)])
def test_its_own_timeout_is_a_failure_unless_its_plugin_says_otherwise(stage: Stage, at_timeout: str) -> None:
    """It is tried again as after any other; a plugin may say that its hooks end so."""
    stage.put(
        "page/on_Page__00_slow.bg.sh",
        '[ "$QWF_ATTEMPT" = 2 ] && exit 0',
        "exec sleep 600",
        properties={"PAGE_TIMEOUT": {"type": "number", "default": 0.3}},
        **{"x-retry-s": 0, "x-bg-at-timeout": at_timeout, "x-bg-at-seal": "wait"},
    )
    stage.put("last/on_Page__90_last.sh", "true")
    run_id = stage.start()
    with stage.worker(QWF_BACKOFF_JITTER="0"):
        stage.until(lambda: stage.status(run_id) == "completed")
    assert stage.jobs()["on_Page__00_slow.bg.sh"] == ("completed", 2 if at_timeout == "fail" else 1)


def test_a_directory_may_mean_the_timeout_as_grace_alone(stage: Stage) -> None:
    """Its listeners live on beyond it, and have it to come to an end; other hooks are ended at theirs."""
    short = {"x-max-attempts": 1, "x-retry-s": 0}
    stage.put(
        "hears/on_Page__00_hears.bg.sh",
        f"told() {{ {UNTIL.format('../go')}; {result('succeeded', 'heard')}; exit 0; }}",
        "trap told TERM",
        "while :; do sleep 0.1; done",
        properties={"HEARS_TIMEOUT": {"type": "number", "default": 120}},
        **short,
    )
    for name in ("front/on_Page__10_front.sh", "waits/on_Page__01_waits.bg.sh", "ear/on_Page__02_ear.bg.sh"):
        plugin = name.partition("/")[0]
        timeout = {f"{plugin.upper()}_TIMEOUT": {"type": "number", "default": 0.3}}
        policies = short | ({"x-bg-at-seal": "wait"} if plugin == "waits" else {})
        stage.put(name, "touch begun", "exec sleep 600", properties=timeout, **policies)
    (stage.plugins / "hooks.toml").write_text('background_timeouts = "grace"')
    stage.put("last/on_Page__90_last.sh", UNTIL.format("../seal"))
    run_id = stage.start()
    ended = {"on_Page__10_front.sh": ("failed", 1), "on_Page__01_waits.bg.sh": ("failed", 1)}
    with stage.worker():
        stage.until(lambda: ended.items() <= stage.jobs().items())
        assert stage.jobs()["on_Page__02_ear.bg.sh"] == ("running", 1)
        stage.file(run_id, "seal").touch()
        stage.until(lambda: stage.jobs()["on_Page__02_ear.bg.sh"] == ("completed", 1))
        assert stage.jobs()["on_Page__00_hears.bg.sh"] == ("running", 1)
        stage.file(run_id, "go").touch()
        stage.until(lambda: stage.status(run_id) == "failed")
    assert stage.jobs()["on_Page__00_hears.bg.sh"] == ("completed", 1)


@pytest.mark.slow
def test_the_program_that_the_user_names_is_the_one(stage: Stage) -> None:
    """For a run or in the environment; nothing is looked for, and a wrong one is said."""
    stage.put("own/on_Page__10_own.sh", 'echo "$NO_SUCH_TOOL_BINARY" > path', **{"x-max-attempts": 1})
    lacking = {"name": "no-such-tool", "bin_providers": "env"}
    (stage.plugins / "own" / "binaries.jsonl").write_text(json.dumps(lacking))
    with stage.worker(NO_SUCH_TOOL_BINARY="sh"):
        named = stage.start(config={"NO_SUCH_TOOL_BINARY": "/bin/cat"})
        usual = stage.start()
        wrong = stage.start(config={"NO_SUCH_TOOL_BINARY": "/nowhere"})
        stage.until(
            lambda: [stage.status(one) for one in (named, usual, wrong)] == ["completed"] * 2 + ["failed"]
        )
    assert stage.file(named, "own/path").read_text() == "/bin/cat\n"
    assert stage.file(usual, "own/path").read_text().endswith("/sh\n")
    (message,) = [words for words in said_of(stage, wrong) if words]
    assert "plugin own, NO_SUCH_TOOL_BINARY: is set to '/nowhere', which is no program" in message
    assert stage.connection.execute("SELECT count(*) FROM binaries").fetchone() == (0,)


def said_of(stage: Stage, run_id: object) -> list[str | None]:
    """The same of one run."""
    rows = stage.connection.execute(
        "SELECT errors -> -1 ->> 'message' FROM workflow_node_jobs WHERE run_id = %s", [run_id]
    )
    return [words for (words,) in rows.fetchall()]
