"""What a hook's end and its words come to, in real workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.connections.kept import own_connection
from support.rows.jobs import CLEAR_WITH_WORKERS
from support.stages.hook_stage import Stage, result

from queue_workflows.repositories.hooks.records import HookRecordRepository


@pytest.fixture
def stage(qwf_dsn: str, tmp_path: Path) -> Iterator[Stage]:
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR_WITH_WORKERS)
        yield Stage(qwf_dsn, connection, tmp_path)


def test_ends_and_words_are_taken_as_they_were_meant(stage: Stage) -> None:
    """No results, a skip by exit status, words on standard output, half a result, and the run's config."""
    stage.put("a/on_Page__10_none.sh", result("noresults", "no media"))
    stage.put("b/on_Page__11_skip.sh", "exit 10")
    stage.put("c/on_Page__12_talk.sh", "echo looking", result("succeeded"), "echo done")
    stage.put(
        "d/on_Page__13_half.sh",
        "echo half > half.txt",
        result("succeeded", "half of it"),
        "exit 3",
        **{"x-max-attempts": 2, "x-retry-s": 0},
    )
    stage.put("e/on_Page__14_soft.sh", result("failed", "no title"))
    stage.put("f/on_Page__15_config.sh", 'echo "$*" > args')
    run = stage.start(config={"F_SIZE": [1]})
    with stage.worker(QWF_BACKOFF_JITTER="0"):
        stage.until(lambda: stage.status(run) == "failed")
    assert stage.jobs() == {
        "on_Page__10_none.sh": ("completed", 1),
        "on_Page__11_skip.sh": ("skipped", 1),
        "on_Page__12_talk.sh": ("completed", 1),
        "on_Page__13_half.sh": ("failed", 2),
        "on_Page__14_soft.sh": ("failed", 1),
        "on_Page__15_config.sh": ("completed", 1),
    }
    rows = stage.connection.execute("SELECT plugin, context_delta FROM workflow_node_jobs ORDER BY plugin")
    results = dict(rows.fetchall())
    assert results["a"]["status"] == "noresults"
    assert (results["c"]["warnings"], results["c"]["records"]) == (0, {"Result": 1})
    assert (results["d"]["output_str"], results["d"]["records"]) == ("half of it", {"Result": 1})
    assert [found["path"] for found in results["d"]["files"]] == ["half.txt"]
    assert (results["e"]["status"], results["e"]["output_str"]) == ("failed", "no title")
    assert stage.file(run, "f/args").read_text() == '--config={"F_SIZE":[1]}\n'
    talk = HookRecordRepository(stage.connection).list(run, plugin="c")
    assert [(line.type, line.payload.get("text"), line.warning) for line in talk] == [
        ("Files", None, None),
        ("Log", "looking", None),
        ("Result", None, None),
        ("Log", "done", None),
    ]
