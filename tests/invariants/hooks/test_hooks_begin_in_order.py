"""A foreground hook begins when every background hook before it has begun, and is ready where it says how."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.connections.kept import own_connection
from support.rows.jobs import CLEAR_WITH_WORKERS
from support.stages.hook_stage import UNTIL, Stage

LISTEN = "on_Page__10_listen.bg.sh"
LAST = "on_Page__20_last.sh"
FIRST = "on_Page__15_first.sh"


@pytest.fixture
def stage(qwf_dsn: str, tmp_path: Path) -> Iterator[Stage]:
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR_WITH_WORKERS)
        yield Stage(qwf_dsn, connection, tmp_path)


def test_nothing_begins_before_the_listener_does(stage: Stage) -> None:
    """While no worker has begun that, what follows it has no job; what stands before it has."""
    stage.put("first/on_Page__09_first.sh", "true")
    stage.put(f"listen/{LISTEN}", "sleep 600")
    stage.put(f"last/{LAST}", "true")
    run_id = stage.start()
    with stage.worker("--max-background", "0"):
        stage.until(lambda: stage.jobs()["on_Page__09_first.sh"] == ("completed", 1))
        stage.until(lambda: LISTEN in stage.jobs())
    assert stage.jobs() == {"on_Page__09_first.sh": ("completed", 1), LISTEN: ("queued", 0)}
    with stage.worker():
        stage.until(lambda: stage.status(run_id) == "completed")
    assert stage.jobs()[LAST] == ("completed", 1)


def held_back(stage: Stage, ready: dict[str, Any], becomes_ready: str, **config: Any) -> None:
    """A listener is ready when the gate opens; what follows it begins then, and not before."""
    stage.put(
        f"listen/{LISTEN}",
        "touch begun",
        UNTIL.format("../gate"),
        becomes_ready,
        "exec sleep 600",
        **{"x-ready": ready},
        **config,
    )
    stage.put(f"last/{LAST}", "true")
    run_id = stage.start()
    with stage.worker():
        stage.until(stage.file(run_id, "listen/begun").exists)
        assert stage.jobs() == {LISTEN: ("running", 1)}
        stage.file(run_id, "gate").touch()
        stage.until(lambda: stage.status(run_id) == "completed")
    assert stage.jobs() == {LISTEN: ("completed", 1), LAST: ("completed", 1)}


@pytest.mark.parametrize(
    ("ready", "becomes_ready"),
    [
        ({"file": "up/here"}, "mkdir up; touch up/here"),
        ({"line": "^here [0-9]+$"}, "echo not here; echo here 5"),
        ({"line": "^here"}, "echo here >&2"),
    ],
)
def test_a_listener_says_how_it_shows_that_it_is_ready(
    stage: Stage, ready: dict[str, Any], becomes_ready: str
) -> None:
    """By a file, or by a line on either stream."""
    held_back(stage, ready, becomes_ready)


def test_a_worker_that_stops_before_its_listener_is_ready_says_nothing_of_it(stage: Stage) -> None:
    """What follows waits for the listener's next attempt, whichever worker begins it."""
    ready = {"x-ready": {"file": "up"}}
    waits = UNTIL.format("../gate")
    stage.put(f"listen/{LISTEN}", "touch begun.$QWF_ATTEMPT", waits, "touch up; exec sleep 600", **ready)
    stage.put(f"last/{LAST}", "true")
    run_id = stage.start()
    with stage.worker() as first:
        stage.until(stage.file(run_id, "listen/begun.1").exists)
        first.terminate()
        assert first.wait(150) == 0
    with stage.worker():
        stage.until(stage.file(run_id, "listen/begun.2").exists)
        assert stage.jobs() == {LISTEN: ("running", 2)}
        stage.file(run_id, "gate").touch()
        stage.until(lambda: stage.status(run_id) == "completed")
    assert stage.jobs() == {LISTEN: ("completed", 2), LAST: ("completed", 1)}


OPENS = """exec python3 -c '
import socket, time
with socket.create_server(("127.0.0.1", int("%d"))): time.sleep(600)'"""


def test_a_directory_says_when_listeners_of_plugins_that_say_nothing_are_ready(stage: Stage) -> None:
    """By the plugin, or by the hook, which counts first; what works with one is waited for as well."""
    stage.plugins.mkdir()
    (stage.plugins / "hooks.toml").write_text(
        '[ready]\nlisten = {file = "state", line = "^ready", within_s = 600}\n'
        '"listen/on_Page__11_tab.bg.sh" = {file = "tab", within_s = 600}\n'
    )
    waits = UNTIL.format("../gate")
    stage.put(
        f"listen/{LISTEN}", "echo starting > state; touch begun", waits, "echo ready > state; exec sleep 600"
    )
    stage.put(
        "listen/on_Page__11_tab.bg.sh", "touch tab.begun", UNTIL.format("../tab"), "touch tab; exec sleep 600"
    )
    stage.put(f"last/{LAST}", "true")
    run_id = stage.start()
    with stage.worker():
        stage.until(stage.file(run_id, "listen/begun").exists)
        assert stage.jobs() == {LISTEN: ("running", 1)}
        stage.file(run_id, "gate").touch()
        stage.until(stage.file(run_id, "listen/tab.begun").exists)
        assert LAST not in stage.jobs()
        stage.file(run_id, "tab").touch()
        stage.until(lambda: stage.status(run_id) == "completed")
    assert stage.jobs()[LAST] == ("completed", 1)


@pytest.mark.parametrize("is_named", [True, False])
def test_a_port_shows_that_a_listener_is_ready(stage: Stage, is_named: bool) -> None:
    """By its number, or by the name of the plugin's value."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    declared = {"LISTEN_PORT": {"type": "integer", "default": port}}
    held_back(stage, {"port": "LISTEN_PORT" if is_named else port}, OPENS % port, properties=declared)


def test_a_listener_that_is_not_ready_in_its_time_has_failed(stage: Stage) -> None:
    """It is ended, and where that was its last attempt, what follows it goes on."""
    never = {"x-ready": {"file": "never", "within_s": 0.2}, "x-max-attempts": 1}
    stage.put(f"listen/{LISTEN}", "exec sleep 600", **never)
    stage.put(f"last/{LAST}", "true")
    run_id = stage.start()
    with stage.worker():
        stage.until(lambda: stage.status(run_id) == "failed")
    assert stage.jobs() == {LISTEN: ("failed", 1), LAST: ("completed", 1)}
    said = "SELECT errors -> -1 ->> 'message' FROM workflow_node_jobs WHERE status = 'failed'"
    (message,) = stage.connection.execute(said).fetchone() or ("",)
    assert "it was not ready within 0.2 s" in message


def test_nothing_begins_beside_a_listener_whose_first_attempt_failed(stage: Stage) -> None:
    """What follows it, in its plugin or in another, waits for the attempt that is ready."""
    fails = '[ "$QWF_ATTEMPT" = 1 ] && exit 1'
    ready = {"x-ready": {"file": "up"}, "x-retry-s": 0}
    stage.put(f"listen/{LISTEN}", fails, "touch up", "exec sleep 600", **ready)
    stage.put(f"listen/{FIRST}", "test -e up")
    stage.put(f"last/{LAST}", "test -e ../listen/up")
    run_id = stage.start()
    with stage.worker(QWF_BACKOFF_JITTER="0"):
        stage.until(lambda: stage.status(run_id) == "completed")
    assert stage.jobs() == {LISTEN: ("completed", 2), FIRST: ("completed", 1), LAST: ("completed", 1)}


def test_listeners_beyond_a_workers_places_begin_all_the_same(stage: Stage) -> None:
    """Else those that are held would wait for the foreground, and the foreground for those that are not."""
    for number in (10, 20, 30):
        stage.put(f"l{number}/on_Page__{number}_l.bg.sh", "exec sleep 600")
        stage.put(f"f{number}/on_Page__{number + 1}_f.sh", "true")
    runs = [stage.start(), stage.start()]
    with stage.worker("--max-background", "1"):
        stage.until(lambda: [stage.status(run_id) for run_id in runs] == ["completed"] * 2)


def test_the_strict_order_overlaps_in_the_background_alone(stage: Stage) -> None:
    """Each finds all that stand before it begun, and those of the foreground ended, in one step as in two."""
    stage.plugins.mkdir()
    (stage.plugins / "hooks.toml").write_text('order = "strict"')
    stage.put("a/on_Page__10_a.sh", "touch a", "sync", "touch a.ended")
    stage.put("a/on_Page__11_l.bg.sh", "[ -e a.ended ] || exit 1", "touch l", "exec sleep 600")
    stage.put("b/on_Page__12_b.sh", "[ -e ../a/a.ended ] || exit 1", "touch b.ended", **{"x-max-attempts": 1})
    stage.put("b/on_Page__13_c.sh", "[ -e b.ended ] || exit 1", **{"x-max-attempts": 1})
    run_id = stage.start()
    with stage.worker("--concurrency", "4"):
        stage.until(lambda: stage.status(run_id) == "completed")


def test_in_the_strict_order_listeners_wait_for_none_of_their_neighbours(stage: Stage) -> None:
    """Between two hooks of the foreground all begin at once; the second of the two waits for all of them."""
    stage.plugins.mkdir()
    (stage.plugins / "hooks.toml").write_text('order = "strict"')
    ready = {"x-ready": {"file": "up", "within_s": 600}}
    up = (UNTIL.format("../gate"), "touch up", "exec sleep 600")
    stage.put("first/on_Page__09_first.sh", "true")
    stage.put(f"listen/{LISTEN}", *up, **ready)
    stage.put("more/on_Page__11_more.bg.sh", "touch begun", *up, **ready)
    stage.put(f"last/{LAST}", "true")
    run_id = stage.start()
    with stage.worker():
        stage.until(stage.file(run_id, "more/begun").exists)
        assert LAST not in stage.jobs()
        stage.file(run_id, "gate").touch()
        stage.until(lambda: stage.status(run_id) == "completed")
    assert stage.jobs()[LAST] == ("completed", 1)
