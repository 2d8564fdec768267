"""The document of a run that sets up a tree with the hooks of one event, for runs of another."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from queue_workflows.errors import HookError
from queue_workflows.hooks.plugins.compile import compile_hooks
from queue_workflows.workflow.document.load import load_document

OPEN, WAIT, PAGE = (
    "browser/on_SiteSetup__10_open.bg.sh",
    "browser/on_SiteSetup__20_wait.sh",
    "page/on_Page__10_page.sh",
)


def put(directory: Path, *files: str, **config: Any) -> Path:
    for file in files:
        path = directory / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\n", encoding="utf-8")
        path.chmod(0o755)
        if config:
            (path.parent / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return directory


def said(directory: Path, text: str) -> Path:
    (directory / "hooks.toml").write_text(text, encoding="utf-8")
    return directory


def by_id(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    load_document(document)
    return {node["id"]: node for node in document["nodes"]}


def test_the_first_run_stands_between_the_setup_and_its_end(tmp_path: Path) -> None:
    """It depends on all hooks of the setup, and what is in the background ends behind all runs below."""
    put(tmp_path, OPEN, WAIT, PAGE, "log/on_SiteSetup__30_log.bg.sh", "browser/on_SiteSetupEnd__10_tidy.sh")
    document = compile_hooks("Page", [tmp_path], setup="SiteSetup", max_open_runs=3)
    assert {name: value for name, value in document.items() if name != "nodes"} == {
        "name": "Page",
        "on_failure": "continue",
        "labels": {"setup": "SiteSetup"},
        "max_open_runs": 3,
    }
    nodes = by_id(document)
    opened, waited, logged = "browser__10_open_bg_sh", "browser__20_wait_sh", "log__30_log_bg_sh"
    assert list(nodes) == [
        opened,
        waited,
        logged,
        "first_run",
        "descendants",
        "seal",
        "browser__end_10_tidy_sh",
    ]
    assert nodes["first_run"] == {
        "id": "first_run",
        "type": "workflow",
        "workflow": "Page",
        "tree": compile_hooks("Page", [tmp_path]),
        "depends_on": [waited, opened, logged],
        "sessions": [opened, logged],
    }
    assert [nodes[one]["inputs"].get("for_tree") for one in (opened, waited, logged)] == [True, None, True]
    behind = {one: nodes[one]["depends_on"] for one in ("descendants", "seal", "browser__end_10_tidy_sh")}
    assert behind == {
        "descendants": ["first_run", waited],
        "seal": ["descendants"],
        "browser__end_10_tidy_sh": ["seal", opened, logged],
    }
    assert {nodes[one].get("when") for one in behind} == {"all_done"}


def test_a_setup_may_be_in_the_background_alone_or_in_the_foreground_alone(tmp_path: Path) -> None:
    """There is always a first run to be there for; without a background there is nothing to seal."""
    put(tmp_path / "back", OPEN, PAGE)
    nodes = by_id(compile_hooks("Page", [tmp_path / "back"], setup="SiteSetup"))
    assert nodes["browser__10_open_bg_sh"]["inputs"]["at_seal"] == "kill"
    put(tmp_path / "fore", WAIT, PAGE)
    assert list(by_id(compile_hooks("Page", [tmp_path / "fore"], setup="SiteSetup"))) == [
        "browser__20_wait_sh",
        "first_run",
        "descendants",
    ]


def test_what_has_an_end_of_its_own_is_no_session(tmp_path: Path) -> None:
    """A download of the setup is not begun again for a first run that is retried."""
    put(tmp_path, PAGE)
    put(tmp_path, OPEN, **{"x-bg-at-seal": "wait"})
    first = by_id(compile_hooks("Page", [tmp_path], setup="SiteSetup"))["first_run"]
    assert (first["depends_on"], first.get("sessions")) == (["browser__10_open_bg_sh"], None)


@pytest.mark.parametrize(
    ("text", "event", "setup", "is_set_up"),
    [
        ("", "Page", None, False),
        ('setup = "SiteSetup"', "Page", None, True),
        ('setup = "SiteSetup"', "Page", False, False),
        ('setup = "SiteSetup"', "SiteSetup", None, False),
        ('setup = {Page = "SiteSetup"}', "Page", None, True),
        ("setup = {Page = false}", "Page", None, False),
        ("setup = {Page = false}", "Page", "SiteSetup", True),
        ('setup = {Other = "SiteSetup"}', "Page", None, False),
        ("setup = false", "Page", None, False),
    ],
)
def test_hooks_toml_says_what_the_caller_leaves_open(
    tmp_path: Path, text: str, event: str, setup: Any, is_set_up: bool
) -> None:
    """For all events or by event; a setup does not set up itself."""
    said(put(tmp_path, OPEN, PAGE), text)
    assert ("first_run" in by_id(compile_hooks(event, [tmp_path], setup=setup))) is is_set_up


def test_the_first_directory_that_says_anything_counts(tmp_path: Path) -> None:
    """A later one may have been written for others."""
    first, second = put(tmp_path / "a", PAGE), put(tmp_path / "b", OPEN)
    said(first, "setup = false")
    said(second, 'setup = "SiteSetup"')
    assert "first_run" not in by_id(compile_hooks("Page", [first, second]))
    said(first, "")
    assert "first_run" in by_id(compile_hooks("Page", [first, second]))


def test_a_setup_without_hooks_is_none_unless_it_was_asked_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """So with `plugins` that have none of its hooks."""
    caplog.set_level(logging.INFO)
    said(put(tmp_path, OPEN, PAGE), 'setup = "SiteSetup"')
    assert list(by_id(compile_hooks("Page", [tmp_path], plugins=["page"]))) == [
        "page__10_page_sh",
        "descendants",
    ]
    assert f"there are no hooks of SiteSetup below {tmp_path}: Page begins without" in caplog.messages
    for asked, why in (
        ("SiteSetup", "there are no hooks of SiteSetup"),
        ("Nope", "there are no hooks of Nope"),
        ("no event", "'no event' is no event"),
        ("Page", "Page cannot set up itself"),
    ):
        with pytest.raises(HookError, match=why):
            compile_hooks("Page", [tmp_path], plugins=["page"], setup=asked)


def test_runs_below_a_listener_of_the_setup_belong_to_its_host(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Although they share a directory; without one any host may run them."""

    def shared(plugins: list[str]) -> set[bool]:
        nodes = by_id(
            compile_hooks("Page", [tmp_path], setup="SiteSetup", shared_directory=True, plugins=plugins)
        )
        hooks = [*nodes.values(), *nodes["first_run"]["tree"]["nodes"]]
        return {
            node["inputs"].get("shared_directory", False) for node in hooks if node.get("queue") == "hooks"
        }

    put(tmp_path, PAGE, OPEN, "fore/on_SiteSetup__20_make.sh")
    assert shared(["page", "fore"]) == {True}
    assert not caplog.messages
    assert shared(["page", "browser"]) == {False}
    assert "browser__10_open_bg_sh runs in the background" in caplog.text


def test_what_a_setup_holds_for_the_whole_tree_is_shared_by_all_runs_of_it(tmp_path: Path) -> None:
    """They would wait for its lock for ever."""
    put(tmp_path, OPEN, "browser/on_Page__20_shot.sh", **{"x-host-lock": "screen"})
    put(tmp_path, "browser/on_PageEnd__10_tidy.sh", PAGE)
    nodes = by_id(compile_hooks("Page", [tmp_path], setup="SiteSetup"))
    below = {node["id"]: node for node in nodes["first_run"]["tree"]["nodes"]}
    opened, *others = [
        (node.get("host_lock"), node["inputs"].get("shared_lock"))
        for node in (
            nodes["browser__10_open_bg_sh"],
            below["browser__20_shot_sh"],
            below["browser__end_10_tidy_sh"],
            below["page__10_page_sh"],
        )
    ]
    assert opened == (None, "screen")
    assert others == [("beside screen", "screen"), ("beside screen", "screen"), (None, None)]
