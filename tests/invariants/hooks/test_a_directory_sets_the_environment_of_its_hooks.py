"""Variables that `hooks.toml` makes by template, as the hooks of real workers see them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.connections.kept import own_connection
from support.rows.jobs import CLEAR_WITH_WORKERS
from support.stages.hook_stage import Stage

_ENV = """
[env]
PAGE_DIR = "{run_dir}"
SITE_DIR = "{root_run_dir}"
LIB_DIR = "{data_dir}/lib"
MODULES = "{hooks_dir}/modules:{plugin_dir}"
PATH = "{hooks_dir}/bin:{PATH}"
CONTEXT = {run = "{run}", first = "{root_run}", far = "{depth}", hook = "{plugin}/{hook}", event = "{event}"}
AGAIN = "{step}.{attempt}"
"""


@pytest.fixture
def stage(qwf_dsn: str, tmp_path: Path) -> Iterator[Stage]:
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR_WITH_WORKERS)
        yield Stage(qwf_dsn, connection, tmp_path)


def _seen(path: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in path.read_text().splitlines() if "=" in line)


def test_templates_name_the_run_its_tree_and_its_hook(stage: Stage) -> None:
    """In the run that a crawl begins with and in one that it found; hooks stand in `{run_dir}/{plugin}`."""
    found = json.dumps({"type": "Run", "url": "http://example.org/found"})
    stage.put(
        "look/on_Page__37_look.sh",
        f"env > env; pwd > cwd; echo '{found}'",
        'ls -d "$SITE_DIR" > there',
    )
    (stage.plugins / "hooks.toml").write_text(_ENV)
    first = stage.start(url="http://example.org/", max_depth=1)
    with stage.worker():
        # The third is the first run's wait for those below it.
        stage.until(lambda: stage.jobs_of("completed") == 3)
    (second,) = stage.connection.execute(
        "SELECT id FROM workflow_runs WHERE parent_run_id IS NOT NULL"
    ).fetchone()
    for run, far in ((first, 0), (second, 1)):
        seen = _seen(stage.file(run, "look/env"))
        assert seen["PAGE_DIR"] == str(stage.data / "runs" / str(run))
        assert seen["SITE_DIR"] == str(stage.data / "runs" / str(first))
        assert stage.file(run, "look/there").read_text().strip() == seen["SITE_DIR"]
        assert stage.file(run, "look/cwd").read_text().strip() == f"{seen['PAGE_DIR']}/look"
        assert seen["LIB_DIR"] == f"{stage.data}/lib"
        assert seen["MODULES"] == f"{stage.plugins}/modules:{stage.plugins}/look"
        assert seen["PATH"].startswith(f"{stage.plugins}/bin:/")
        assert seen["AGAIN"] == "3.1"
        assert json.loads(seen["CONTEXT"]) == {
            "run": str(run),
            "first": str(first),
            "far": far,
            "hook": "look/on_Page__37_look.sh",
            "event": "Page",
        }


def test_a_declared_value_is_taken_from_the_run_then_the_directory_then_the_worker(stage: Stage) -> None:
    """A template stands for the variable of its name in the worker: also behind an alias, and checked."""
    declared = {
        "SIZE": {"type": "integer", "default": 1, "x-aliases": ["OLD_SIZE"]},
        "AGENT": {"type": "string", "default": "none"},
        "LANGUAGE_OF": {"type": "string", "default": "none"},
    }
    stage.put("look/on_Page__10_look.sh", "env > env", properties=declared)
    (stage.plugins / "hooks.toml").write_text(
        '[env]\nOLD_SIZE = 7\nAGENT = "directory"\nLANGUAGE_OF = "{plugin}"\n'
    )
    run = stage.start(config={"LANGUAGE_OF": "run"})
    with stage.worker(AGENT="worker", SIZE_OF="9"):
        stage.until(lambda: stage.status(run) == "completed")
    seen = _seen(stage.file(run, "look/env"))
    assert (seen["SIZE"], seen["AGENT"], seen["LANGUAGE_OF"]) == ("7", "directory", "run")


def test_a_hook_of_a_directory_whose_file_is_wrong_fails_and_says_so(stage: Stage) -> None:
    """With the file's name, in its job; hooks of other directories are not concerned."""
    stage.put("look/on_Page__10_look.sh", "true", **{"x-max-attempts": 1})
    run = stage.start()
    (stage.plugins / "hooks.toml").write_text('[env]\nA = "{nowhere}"\n')
    with stage.worker():
        stage.until(lambda: stage.status(run) == "failed")
    (errors,) = stage.connection.execute("SELECT errors FROM workflow_node_jobs").fetchone()
    assert errors[0]["message"].startswith(f"{stage.plugins}/hooks.toml: env.A: nobody knows {{nowhere}}")


def test_no_template_hands_over_the_database(stage: Stage) -> None:
    """Not even where somebody wrote its URL into the file."""
    stage.put("look/on_Page__10_look.sh", "env > env", **{"x-max-attempts": 1})
    run = stage.start()
    (stage.plugins / "hooks.toml").write_text(f"[env]\nA = {json.dumps(stage.dsn)}\n")
    with stage.worker():
        stage.until(lambda: stage.status(run) == "failed")
    (errors,) = stage.connection.execute("SELECT errors FROM workflow_node_jobs").fetchone()
    assert "A: holds the engine's database URL, which no hook is given" in errors[0]["message"]
    assert stage.dsn not in json.dumps(errors)
