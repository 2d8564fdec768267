"""Which files are hooks, and in which order."""

from __future__ import annotations

import os
import random
import shutil
import sys
from pathlib import Path

import pytest

from queue_workflows.errors import ExitCode, HookError
from queue_workflows.hooks.plugins.discovery import (
    discover_hooks,
    extract_step,
    find_hook,
    is_background_hook,
    overlooked,
)


def put(directory: Path, *files: str, text: str = "#!/bin/sh\n", mode: int = 0o755) -> None:
    for file in files:
        path = directory / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(mode)


def labels(event: str, *dirs: Path) -> list[str]:
    return [hook.label for hook in discover_hooks(event, dirs)]


def test_hooks_come_by_step_number_name_and_plugin(tmp_path: Path) -> None:
    """All hundred numbers come in their order, however the files were made."""
    files = [f"p{number % 7}/on_Page__{number:02}_work.sh" for number in range(100)]
    shuffled = list(files)
    random.Random(7).shuffle(shuffled)
    put(tmp_path, *shuffled)
    hooks = discover_hooks("Page", [tmp_path])
    assert [f"{hook.plugin}/{hook.name}" for hook in hooks] == files
    assert [(hook.step, hook.order) for hook in hooks] == [divmod(number, 10) for number in range(100)]


def test_equal_numbers_come_by_name_then_plugin(tmp_path: Path) -> None:
    """The name of the file decides before that of the plugin."""
    put(tmp_path, "b/on_Page__10_one.sh", "a/on_Page__10_two.sh", "a/on_Page__10_one.sh")
    assert labels("Page", tmp_path) == [
        "a/on_Page__10_one.sh",
        "b/on_Page__10_one.sh",
        "a/on_Page__10_two.sh",
    ]


def test_a_hook_without_a_number_comes_last(tmp_path: Path) -> None:
    """It runs in step 9, behind all that has a number; three digits are none."""
    put(tmp_path, "a/on_Page__late.sh", "a/on_Page__99_z.sh", "a/on_Page__123_x.sh")
    hooks = discover_hooks("Page", [tmp_path])
    assert [hook.name for hook in hooks] == ["on_Page__99_z.sh", "on_Page__123_x.sh", "on_Page__late.sh"]
    assert [hook.step for hook in hooks] == [9, 9, 9]
    assert [hook.is_numbered for hook in hooks] == [True, False, False]


@pytest.mark.parametrize(
    ("name", "step", "background"),
    [
        ("on_Page__54_title.py", 5, False),
        ("on_Page__04_listen.bg.js", 0, True),
        ("on_Page__21_listen.bg", 2, True),
        ("on_Page__listen.bg.py", 9, True),
        ("on_Page__10_not.bgs.py", 1, False),
        ("on_Binary__install_using_env_provider.py", 9, False),
    ],
)
def test_a_name_says_its_step_and_whether_it_stays(name: str, step: int, background: bool) -> None:
    """`extract_step` and `is_background_hook` need nothing but the file's name."""
    assert (extract_step(name), is_background_hook(name)) == (step, background)


def test_what_is_no_hook_is_passed_over(tmp_path: Path) -> None:
    """Other files, other events, directories, hidden plugins and what an editor left behind."""
    put(tmp_path, "a/on_Page__10_a.sh", "a/config.json", "a/on_PageEnd__10_a.sh", "a/on_Page__10_a.sh~")
    put(tmp_path, ".git/on_Page__10_a.sh", "on_Page__10_a.sh", "a/xon_Page__10_a.sh")
    (tmp_path / "a" / "on_Page__20_dir.sh").mkdir()
    assert labels("Page", tmp_path) == ["a/on_Page__10_a.sh"]


def test_who_misspells_a_hook_is_told(tmp_path: Path) -> None:
    """A plugin or a file that looks like a hook of the event and is none by its name; others are not."""
    put(tmp_path, "my plugin/on_Page__10_a.sh", "näme/on_Page__10_a.sh", "a/on_Page_10_a.sh")
    put(tmp_path, "b/on_Page__10_a b\n.sh", "b/on_Page__20_b.sh")
    assert [said.partition(" is no ")[0] for said in overlooked("Page", [tmp_path])] == [
        "'on_Page_10_a.sh' of a",
        "'on_Page__10_a b\\n.sh' of b",
        "'my plugin'",
        "'näme'",
    ]
    for path in list(tmp_path.iterdir()):
        shutil.rmtree(path)
    put(tmp_path, "a/on_Page__10_a.sh", "a/on_Page__10_a.sh~", "a/on_Other_1", ".git/on_Page_1", "c d/README")
    assert overlooked("Page", [tmp_path]) == []


def test_an_interpreter_is_known_by_the_first_line_or_the_ending(tmp_path: Path) -> None:
    """What the kernel runs by itself is run so; else the ending says by what."""
    put(tmp_path, "a/on_Page__10_a.py", "a/on_Page__11_b")
    put(tmp_path, "a/on_Page__12_c.py", text="print()", mode=0o644)
    put(tmp_path, "a/on_Page__13_d.sh", text="echo", mode=0o755)
    found = {hook.name: hook.interpreter for hook in discover_hooks("Page", [tmp_path])}
    assert found == {
        "on_Page__10_a.py": (),
        "on_Page__11_b": (),
        "on_Page__12_c.py": (sys.executable,),
        "on_Page__13_d.sh": ("sh",),
    }


def test_what_cannot_be_run_is_named_file_by_file(tmp_path: Path) -> None:
    """Neither executable nor of a known kind: all of them are in one error, with what to do."""
    put(tmp_path, "a/on_Page__10_a.xyz", "b/on_Page__10_b", mode=0o644)
    (tmp_path / "b" / "on_Page__20_gone.sh").symlink_to("nowhere")
    os.mkfifo(tmp_path / "b" / "on_Page__30_pipe.sh")
    with pytest.raises(HookError) as refused:
        discover_hooks("Page", [tmp_path])
    assert refused.value.problems == (
        f"{tmp_path}/a/on_Page__10_a.xyz is not executable, and .xyz names no interpreter",
        f"{tmp_path}/b/on_Page__10_b is not executable, and a name without an ending names no interpreter",
        f"{tmp_path}/b/on_Page__20_gone.sh: No such file or directory",
        f"{tmp_path}/b/on_Page__30_pipe.sh is no regular file",
    )
    assert refused.value.exit_code is ExitCode.CONFIGURATION
    assert "executable bit" in str(refused.value)


def test_of_two_plugins_of_one_name_the_first_counts_as_a_whole(tmp_path: Path) -> None:
    """A plugin of one's own replaces the one that came with something."""
    put(tmp_path, "mine/a/on_Page__10_a.sh", "theirs/a/on_Page__20_b.sh", "theirs/b/on_Page__30_c.sh")
    assert labels("Page", tmp_path / "mine", tmp_path / "theirs") == [
        "a/on_Page__10_a.sh",
        "b/on_Page__30_c.sh",
    ]


def test_a_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """A misspelt directory is no empty one."""
    with pytest.raises(HookError, match="nowhere: No such file or directory"):
        discover_hooks("Page", [tmp_path / "nowhere"])


@pytest.mark.parametrize("event", ["", "../Page", "Page*", "on Page"])
def test_a_strange_event_is_refused(tmp_path: Path, event: str) -> None:
    """An event is a word."""
    with pytest.raises(HookError, match="is no event"):
        discover_hooks(event, [tmp_path])


@pytest.mark.parametrize(
    ("plugin", "name"),
    [
        ("..", "on_Page__10_a.sh"),
        ("a/../a", "on_Page__10_a.sh"),
        ("a", "../a/on_Page__10_a.sh"),
        ("a", "secret.sh"),
        ("b", "on_Page__10_a.sh"),
    ],
)
def test_a_row_names_no_path(tmp_path: Path, plugin: str, name: str) -> None:
    """What a row says is compared with what is there, and found or not."""
    put(tmp_path, "a/on_Page__10_a.sh", "a/secret.sh")
    assert find_hook(plugin, name, [tmp_path]) is None
    (only,) = discover_hooks("Page", [tmp_path])
    assert find_hook("a", "on_Page__10_a.sh", [tmp_path]) == only
