"""Hooks in a real worker: what a run of scripts comes to, step by step."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.connections.kept import own_connection
from support.processes.programs import WITHOUT_TRACING, linux_only
from support.processes.workers import running_worker, until
from support.rows.jobs import CLEAR_WITH_WORKERS
from support.stages.hook_stage import UNTIL, Stage, result

from queue_workflows import cancel_run
from queue_workflows.repositories.hooks.records import HookRecordRepository

# What is older than a script by this is not taken for its own.
_OLDER_S = 2.5
# In the background until it has ended by itself.
WAITS = {"x-bg-at-seal": "wait"}


@pytest.fixture
def stage(qwf_dsn: str, tmp_path: Path) -> Iterator[Stage]:
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR_WITH_WORKERS)
        yield Stage(qwf_dsn, connection, tmp_path)


def test_every_way_in_which_a_hook_may_end(stage: Stage) -> None:
    """Each in its own way, and none of them stops what comes later."""
    stage.put("a/on_Page__10_ok.sh", result("succeeded", "fine"), 'echo "$*" > args')
    stage.put("b/on_Page__11_soft.sh", result("failed", "no title"))
    stage.put("c/on_Page__12_skips.sh", result("skipped", "no need"))
    stage.put(
        "d/on_Page__13_hard.sh",
        "echo partial > partial",
        "echo why >&2",
        "echo broken >&2",
        "exit 3",
        **{"x-max-attempts": 2, "x-retry-s": 0},
    )
    stage.put(
        "e/on_Page__14_once.sh",
        "[ -e ../again ] && exit 0",
        "touch ../again",
        result("succeeded", "half of it"),
        "exit 1",
        **{"x-max-attempts": 3, "x-retry-s": 0},
    )
    stage.put(
        "f/on_Page__15_off.sh", "touch ran", properties={"F_ENABLED": {"type": "boolean", "default": False}}
    )
    stage.put("g/on_Page__16_silent.sh", "true")
    stage.put(
        "h/on_Page__17_slow.sh",
        "sleep 600",
        properties={"H_TIMEOUT": {"type": "number", "default": 0.3}},
        **{"x-max-attempts": 1},
    )
    stage.put(
        "i/on_Page__18_polite.sh",
        "trap 'exit 0' TERM",
        result("succeeded", "half of it"),
        "while :; do sleep 0.1; done",
        properties={"I_TIMEOUT": {"type": "number", "default": 0.3}},
        **{"x-max-attempts": 1},
    )
    stage.put("z/on_Page__20_later.sh", "ls ../a > seen")
    run_id = stage.start(url="https://example.org/ x", tags=["a", "b"], enable_js=True)
    with stage.worker(QWF_BACKOFF_JITTER="0"):
        stage.until(lambda: stage.status(run_id) == "failed")
    assert stage.jobs() == {
        "on_Page__10_ok.sh": ("completed", 1),
        "on_Page__11_soft.sh": ("failed", 1),
        "on_Page__12_skips.sh": ("skipped", 1),
        "on_Page__13_hard.sh": ("failed", 2),
        "on_Page__14_once.sh": ("completed", 2),
        "on_Page__15_off.sh": ("skipped", 1),
        "on_Page__16_silent.sh": ("completed", 1),
        "on_Page__17_slow.sh": ("failed", 1),
        "on_Page__18_polite.sh": ("failed", 1),
        "on_Page__20_later.sh": ("completed", 1),
    }
    once = HookRecordRepository(stage.connection).list(run_id, plugin="e")
    assert [(record.attempt, record.type) for record in once] == [(2, "Files")]
    (errors,) = stage.connection.execute(
        "SELECT errors FROM workflow_node_jobs WHERE node_module LIKE '%hard%'"
    ).fetchone()
    assert [(one["message"], one["traceback"]) for one in errors] == [
        ("d/on_Page__13_hard.sh: exit status 3: broken", "why\nbroken\n")
    ] * 2
    assert stage.file(run_id, "a/args").read_text() == "--url=https://example.org/ x --tags=a,b --enable-js\n"
    assert "args" in stage.file(run_id, "z/seen").read_text()
    assert not stage.file(run_id, "f/ran").exists()


def test_background_hooks_last_as_long_as_their_run(stage: Stage) -> None:
    """Beside one other hook at a time: one is ended at the seal, one ends by itself; then all is tidied."""
    stage.put(
        "listen/on_Page__00_listen.bg.sh",
        f"told() {{ {result('succeeded', 'heard')}; touch ended; exit 143; }}",
        "trap told TERM",
        "touch begun",
        "while :; do sleep 0.2; done",
    )
    waits = (UNTIL.format("../last/done"), UNTIL.format("../listen/ended"), "touch ended")
    stage.put("wait/on_Page__00_wait.bg.sh", *waits, **WAITS)
    stage.put("first/on_Page__10_first.sh", UNTIL.format("../listen/begun"))
    stage.put("last/on_Page__90_last.sh", "[ -e ../listen/ended ] && exit 1", "touch done")
    stage.put("tidy/on_PageEnd__10_tidy.sh", "[ -e ../listen/ended ] && [ -e ../wait/ended ]")
    run_id = stage.start()
    with stage.worker("--concurrency", "1"):
        stage.until(lambda: stage.status(run_id) != "running")
    assert stage.jobs() == {
        "on_Page__00_listen.bg.sh": ("completed", 1),
        "on_Page__00_wait.bg.sh": ("completed", 1),
        "on_Page__10_first.sh": ("completed", 1),
        "on_Page__90_last.sh": ("completed", 1),
        "on_PageEnd__10_tidy.sh": ("completed", 1),
    }
    assert stage.status(run_id) == "completed"
    said = stage.connection.execute(
        "SELECT context_delta ->> 'output_str' FROM workflow_node_jobs WHERE node_module LIKE '%listen%'"
    )
    assert said.fetchone() == ("heard",)


@pytest.mark.slow
@pytest.mark.parametrize("is_there", [True, False])
def test_a_host_without_the_script_leaves_it_to_another(stage: Stage, is_there: bool) -> None:
    """Its claim does not make the run its own; nor does that of one whose directory is not there."""
    stage.put("a/on_Page__10_a.sh", "true")
    run_id = stage.start()
    if is_there:
        (stage.directory / "none").mkdir()
    held = "SELECT hold_key FROM workflow_node_jobs WHERE hold_reason = 'unknown_module'"
    without = {"QWF_HOOK_DIRS": str(stage.directory / "none"), "QWF_DATA_DIR": str(stage.directory / "else")}
    with stage.worker(QWF_HOST_LABEL="far", **without):
        until(lambda: stage.connection.execute(held).fetchone() == ("a/on_Page__10_a.sh",))
    with stage.worker():
        stage.until(lambda: stage.status(run_id) == "completed")


@pytest.mark.slow
def test_a_worker_that_cannot_write_what_hooks_leave_does_not_begin(stage: Stage) -> None:
    """It would fail one after the other; 78, with what to do."""
    stage.data.touch()
    with stage.worker() as worker:
        assert worker.wait(150) == 78
        assert "name another directory with QWF_DATA_DIR" in worker.stderr.read()


@pytest.mark.slow
def test_a_cancelled_run_ends_its_hooks(stage: Stage) -> None:
    """Those of the foreground and of the background, and what they have started."""
    for name in ("a/on_Page__10_a.sh", "b/on_Page__10_b.bg.sh"):
        stage.put(name, "sleep 1000 &", "echo $! > child", "echo $$ > pid", "wait")
    run_id = stage.start()
    with stage.worker():
        files = [stage.file(run_id, f"{plugin}/{name}") for plugin in "ab" for name in ("child", "pid")]
        stage.until(lambda: all(file.exists() and file.read_text().strip() for file in files))
        pids = [int(file.read_text()) for file in files]
        assert cancel_run(run_id, conn=stage.connection)
        stage.until(lambda: stage.status(run_id) == "cancelled")
        assert not any(psutil.pid_exists(pid) for pid in pids)


@pytest.mark.slow
def test_sixty_background_hooks_run_on_one_worker_at_once(stage: Stage) -> None:
    """Beside one of the foreground, which all of them wait for and which waits for none of them."""
    for number in range(60):
        lines = ("touch begun", "cat ../gate", result("succeeded"))
        stage.put(f"p{number}/on_Page__00_listen.bg.sh", *lines, **WAITS)
    stage.put("z/on_Page__10_work.sh", "touch done")
    run_id = stage.start()
    gate = stage.gate(run_id)
    with stage.worker("--concurrency", "1", "--max-background", "60"):
        stage.until(lambda: all(stage.file(run_id, f"p{number}/begun").exists() for number in range(60)))
        stage.until(lambda: stage.jobs()["on_Page__10_work.sh"] == ("completed", 1))
        running = "SELECT count(*) FROM workflow_node_jobs WHERE status = 'running' AND background"
        assert stage.connection.execute(running).fetchone() == (60,)
        stage.until_through(gate, lambda: stage.status(run_id) == "completed")


@pytest.mark.slow
def test_a_killed_worker_takes_its_hooks_along_and_all_are_tried_again(stage: Stage) -> None:
    """kill -9 within a step, beside ten background hooks: nothing survives it, and nothing is doubled."""
    names = [f"b{number}/on_Page__00_listen.bg.sh" for number in range(10)] + ["f/on_Page__01_work.sh"]
    for name in names:
        tag, gate = json.dumps({"type": "Tag", "name": name}), "../gate.$QWF_ATTEMPT"
        stage.put(
            name,
            f"echo '{tag}'",
            "echo $$ > pid.$QWF_ATTEMPT",
            f"cat {gate}",
            result("succeeded"),
            **WAITS,
        )
    run_id = stage.start()
    for attempt in (1, 2):
        stage.gate(run_id, f"gate.{attempt}")

    def pids(attempt: int) -> list[int]:
        files = [stage.file(run_id, f"{name.partition('/')[0]}/pid.{attempt}") for name in names]
        return [int(file.read_text() or 0) for file in files if file.exists()]

    def all_begun(attempt: int) -> bool:
        return len(pids(attempt)) == len(names) and all(pids(attempt))

    with stage.worker(QWF_LEASE_S_BY_QUEUE="hooks=8", QWF_RENEW_S="0.5") as victim:
        stage.until(lambda: all_begun(1))
        victim.kill()
        victim.wait()
        until(lambda: not any(psutil.pid_exists(pid) for pid in pids(1)))
    with stage.worker(QWF_LEASE_S_BY_QUEUE="hooks=8", QWF_RENEW_S="0.5"):
        stage.until(lambda: all_begun(2))
        stage.until_through(stage.file(run_id, "gate.2"), lambda: stage.status(run_id) == "completed")
    # What the killed attempts printed may be kept beside; a run's records are those of the last attempts.
    records = HookRecordRepository(stage.connection).list(run_id)
    found = sorted((record.plugin, record.type) for record in records if record.type != "Files")
    plugins = sorted(name.partition("/")[0] for name in names)
    assert found == [(plugin, kind) for plugin in plugins for kind in ("Result", "Tag")]


@pytest.mark.slow
def test_a_worker_that_is_stopped_gives_its_hooks_back(stage: Stage) -> None:
    """Uncounted, with nothing left of them; the next worker of the host goes on."""
    stage.put("a/on_Page__10_a.sh", "[ -e again ] && exit 0", "echo $$ > pid", "sleep 1000")
    stage.put("b/on_Page__10_b.bg.sh", "[ -e ../a/again ] && exit 0", "echo $$ > pid", "sleep 1000")
    run_id = stage.start()
    files = [stage.file(run_id, f"{plugin}/pid") for plugin in "ab"]
    with stage.worker("--grace", "0.1") as worker:
        stage.until(lambda: all(file.exists() and file.read_text().strip() for file in files))
        pids = [int(file.read_text()) for file in files]
        worker.terminate()
        worker.wait(150)
        until(lambda: not any(psutil.pid_exists(pid) for pid in pids))
    rows = stage.connection.execute("SELECT status, attempt, failures, crash_count FROM workflow_node_jobs")
    assert rows.fetchall() == [("queued", 1, 0, 0)] * 2
    stage.file(run_id, "a/again").touch()
    with stage.worker():
        stage.until(lambda: stage.status(run_id) == "completed")


@pytest.mark.slow
def test_a_worker_that_is_stopped_asks_its_hooks_first(stage: Stage) -> None:
    """Those of the background at once, the others within its grace: what they say last is kept."""
    lines = [f"told() {{ {result('succeeded', 'last words')}; touch told; exit 0; }}", "trap told TERM"]
    lines += ["touch begun", "while :; do sleep 0.2; done"]
    stage.put("a/on_Page__10_a.sh", *lines)
    stage.put("b/on_Page__10_b.bg.sh", *lines)
    run_id = stage.start()
    with stage.worker("--grace", "20") as worker:
        stage.until(lambda: all(stage.file(run_id, f"{plugin}/begun").exists() for plugin in "ab"))
        worker.terminate()
        assert worker.wait(150) == 0
    assert stage.file(run_id, "a/told").exists()
    rows = stage.connection.execute("SELECT status, attempt, failures, crash_count FROM workflow_node_jobs")
    assert rows.fetchall() == [("queued", 1, 0, 0)] * 2
    said = HookRecordRepository(stage.connection).list(run_id, kind="Result")
    assert [(one.attempt, one.payload["output_str"]) for one in said] == [(1, "last words")] * 2


@pytest.mark.slow
def test_a_drained_worker_waits_for_its_background_hooks(stage: Stage) -> None:
    """It ends when there is nothing left to claim, and nothing in its hands of either kind."""
    stage.put("a/on_Page__10_a.sh", "touch done")
    stage.put("b/on_Page__10_b.bg.sh", UNTIL.format("../a/done"), "sleep 1", **WAITS)
    stage.start()
    with stage.worker("--drain") as worker:
        assert worker.wait(150) == 0
    assert stage.jobs() == {"on_Page__10_a.sh": ("completed", 1), "on_Page__10_b.bg.sh": ("completed", 1)}


@pytest.mark.slow
def test_a_worker_does_no_more_than_its_share_in_the_background_either(stage: Stage) -> None:
    """However many of both kinds it has places for."""
    for name in ("a/on_Page__11_a.bg.sh", "b/on_Page__11_b.bg.sh", "c/on_Page__10_c.sh"):
        stage.put(name, result("succeeded"))
    stage.start()
    with stage.worker("--max-jobs", "1", "--concurrency", "2", "--max-background", "2") as worker:
        assert worker.wait(150) == 0
    assert sorted(attempt for _, attempt in stage.jobs().values()) == [0, 0, 1]


@pytest.mark.slow
@linux_only
def test_what_a_hook_printed_is_kept_when_its_keeper_is_lost(stage: Stage) -> None:
    """How it ended nobody knows, and no attempt comes after the last one."""
    tag = json.dumps({"type": "Tag", "name": "said"})
    wait = "until [ -s ../.output/a/on_Page__10_a.sh.1.stdout.jsonl ]; do sleep 0.1; done"
    stage.put("a/on_Page__10_a.sh", f"echo '{tag}'", wait, "kill -9 $PPID", **{"x-max-attempts": 1})
    run_id = stage.start()
    with stage.worker():
        stage.until(lambda: stage.status(run_id) == "failed")
    (said,) = HookRecordRepository(stage.connection).list(run_id, kind="Tag")
    assert (said.attempt, said.payload["name"]) == (1, "said")


@linux_only
def test_a_hook_cannot_read_its_workers_environment(stage: Stage) -> None:
    """The database's URL stands there, and both are of one user."""
    stage.put(
        "spy/on_Page__10_spy.sh",
        "cat /proc/$$/environ > own",
        "cat /proc/${1#--worker=}/environ > seen; echo $? > status",
    )
    with running_worker(
        stage.dsn,
        *("--queue", "hooks"),
        prefix=WITHOUT_TRACING,
        QWF_HOOK_DIRS=str(stage.plugins),
        QWF_DATA_DIR=str(stage.data),
    ) as worker:
        run_id = stage.start(worker=worker.pid)
        stage.until(lambda: stage.status(run_id) == "completed")
        assert stage.file(run_id, "spy/own").read_bytes()
        assert stage.file(run_id, "spy/seen").read_bytes() == b""
        assert stage.file(run_id, "spy/status").read_text() == "1\n"


def test_a_worker_is_told_its_plugins_on_the_command_line(stage: Stage) -> None:
    """`--dir` stands in the place of QWF_HOOK_DIRS, which may say something else."""
    stage.put("a/on_Page__10_a.sh", "echo here > found")
    options = ("--queue", "hooks", "--dir", str(stage.plugins))
    with running_worker(stage.dsn, *options, QWF_HOOK_DIRS="/nowhere", QWF_DATA_DIR=str(stage.data)):
        run_id = stage.start()
        stage.until(lambda: stage.status(run_id) == "completed")
    assert stage.file(run_id, "a/found").read_text() == "here\n"


@pytest.mark.slow
def test_a_plugins_own_timeout_counts_beyond_the_queues_budget(stage: Stage) -> None:
    """What it allows is not cut off and begun anew; where it allows nothing, the budget stands."""
    stage.put("long/on_Page__10_long.sh", "sleep 9")
    (stage.plugins / "long" / "config.json").write_text(
        '{"properties": {"LONG_TIMEOUT": {"type": "integer", "default": 600}}}'
    )
    with stage.worker(QWF_BUDGET_S_BY_QUEUE="hooks=5"):
        run_id = stage.start()
        stage.until(lambda: stage.status(run_id) == "completed")
    assert stage.jobs() == {"on_Page__10_long.sh": ("completed", 1)}


def test_hooks_that_name_one_host_lock_never_run_at_once(stage: Stage) -> None:
    """The other one is put aside, uncounted, though the worker has room for both."""
    alone = ("echo one >> ../started", "mkdir ../inside || exit 9", UNTIL.format("../go"), "rmdir ../inside")
    for plugin in "ab":
        stage.put(f"{plugin}/on_Page__10_scan.sh", *alone, **{"x-host-lock": "scanner", "x-max-attempts": 1})
    run_id = stage.start()
    held = "SELECT hold_key FROM workflow_node_jobs WHERE hold_reason = 'host_lock'"
    started = stage.file(run_id, "started")
    with stage.worker("--concurrency", "2", QWF_LOCK_DIR=str(stage.directory / "locks")):
        stage.until(
            lambda: (
                (started.exists() and stage.connection.execute(held).fetchone())
                or stage.status(run_id) == "failed"
            )
        )
        assert stage.connection.execute(held).fetchall() == [("scanner",)]
        assert started.read_text() == "one\n"
        stage.file(run_id, "go").touch()
        stage.until(lambda: stage.status(run_id) in ("completed", "failed"))
    assert {status for status, _ in stage.jobs().values()} == {"completed"}
    assert started.read_text() == "one\none\n"


@pytest.mark.slow
@linux_only
def test_a_daemon_that_only_a_pid_file_names_does_not_outlive_its_worker_for_long(
    stage: Stage, tmp_path: Path
) -> None:
    """After a kill -9 of the worker the next attempt ends it, and no process that was there before."""
    stage.put(
        "a/on_Page__10_serve.sh",
        '[ "$QWF_ATTEMPT" = 1 ] || exit 0',
        "touch up",
        UNTIL.format("served.pid"),
        "touch told",
        "sleep 600",
    )
    command = [sys.executable, "-S", "-c", "import time; time.sleep(1000)"]
    # A session manager's, as it were: no child of the hook, and without its mark.
    with subprocess.Popen(command, env={}) as older:
        run_id = stage.start()
        time.sleep(_OLDER_S)
        with stage.worker(QWF_LEASE_S_BY_QUEUE="hooks=8", QWF_RENEW_S="0.5") as victim:
            stage.until(lambda: stage.file(run_id, "a/up").exists())
            with subprocess.Popen(command, env={}) as served:
                stage.file(run_id, "a/older.pid").write_text(f"{older.pid}\n")
                new = stage.file(run_id, "a/served.new")
                new.write_text(f"{served.pid}\n")
                new.rename(stage.file(run_id, "a/served.pid"))
                stage.until(lambda: stage.file(run_id, "a/told").exists())
                victim.kill()
                victim.wait()
                assert served.poll() is None
                # As by workers that gave it back before they had begun it, each with an attempt.
                stage.connection.execute("UPDATE workflow_node_jobs SET attempt = attempt + 6")
                with stage.worker(QWF_LEASE_S_BY_QUEUE="hooks=8", QWF_RENEW_S="0.5"):
                    stage.until(lambda: stage.status(run_id) == "completed")
                ended = served.poll()
                served.kill()
        was_spared = older.poll() is None
        older.kill()
    assert (ended is not None, was_spared) == (True, True)
    assert not list(stage.file(run_id, ".output/a").glob("*.began"))
