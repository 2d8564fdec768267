"""A worker reads its plugins again where something has changed, and only there."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from queue_workflows.hooks.plugins import cache as module
from queue_workflows.hooks.plugins.cache import PluginCache

HOOK = "on_Page__10_a.sh"


def a_minute_later() -> int:
    """As if that had gone by since the files were written."""
    return time.time_ns() + 60_000_000_000


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    """A plugin with a hook, a config and a program that it needs."""
    directory = tmp_path / "plugins" / "a"
    directory.mkdir(parents=True)
    hook = directory / HOOK
    hook.write_text("#!/bin/sh\n")
    hook.chmod(0o755)
    (directory / "config.json").write_text('{"x-max-attempts": 2}')
    (directory / "binaries.jsonl").write_text('{"name": "sh"}\n')
    return directory


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each thing was read."""
    counts: Counter[str] = Counter()

    def counted(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            counts[name] += 1
            return original(*given)

        return call

    for name in ("plugins_in", "files_of", "hook_at", "load_own_config", "needs_in_files"):
        monkeypatch.setattr(module, name, counted(name, getattr(module, name)))
    return counts


def look(shelf: PluginCache, plugin: Path) -> tuple[Any, ...]:
    hook = shelf.find("a", HOOK)
    assert hook is not None
    return hook.interpreter, shelf.config(plugin).max_attempts, [need.name for need in shelf.needs(plugin)]


def test_what_has_not_changed_is_read_once(plugin: Path, read: Counter[str]) -> None:
    """However many hooks there are to run."""
    shelf = PluginCache([plugin.parent], now_ns=a_minute_later)
    for _ in range(3):
        assert look(shelf, plugin) == ((), 2, ["sh"])
    # Beside its own files those of a plugin `base` are looked for.
    assert read == {**dict.fromkeys(read, 1), "load_own_config": 2, "needs_in_files": 2}
    assert len(read) == 5


def test_what_has_changed_is_read_again(plugin: Path) -> None:
    """The script, its rights, the config, what the plugin needs, and what its directory holds."""
    shelf = PluginCache([plugin.parent], now_ns=a_minute_later)
    look(shelf, plugin)
    (plugin / HOOK).chmod(0o644)
    (plugin / "config.json").write_text('{"x-max-attempts": 5}')
    (plugin / "binaries.jsonl").unlink()
    (plugin / "dependencies.jsonl").write_text('{"name": "wget"}\n')
    assert look(shelf, plugin) == (("sh",), 5, ["wget"])
    (plugin / HOOK).rename(plugin / "on_Page__11_a.sh")
    assert shelf.find("a", HOOK) is None
    assert shelf.find("a", "on_Page__11_a.sh") is not None
    (plugin.parent / "b").mkdir()
    (plugin / "on_Page__11_a.sh").rename(plugin.parent / "b" / HOOK)
    assert shelf.find("b", HOOK) is not None


def test_what_has_just_been_written_is_not_kept(plugin: Path, read: Counter[str]) -> None:
    """It may be written again within the same tick of the file system's clock."""
    shelf = PluginCache([plugin.parent], now_ns=lambda: (plugin / HOOK).stat().st_mtime_ns)
    for _ in range(2):
        look(shelf, plugin)
    # Once for the config and once for the programs that it requires; that there is no `base` is kept.
    assert read == {**dict.fromkeys(read, 2), "load_own_config": 5, "needs_in_files": 3}


def test_a_directory_that_cannot_be_read_has_no_hook_yet(plugin: Path) -> None:
    """Nor have those behind it, whose plugins it may replace."""
    missing = plugin.parent.with_name("mounted-later")
    shelf = PluginCache([missing, plugin.parent], now_ns=a_minute_later)
    assert shelf.find("a", HOOK) is None
    missing.mkdir()
    assert shelf.find("a", HOOK) is not None


@pytest.mark.parametrize("name", ["../a/on_Page__10_a.sh", "on_Page__12_b.sh", ""])
def test_no_word_of_a_row_becomes_a_path(plugin: Path, name: str) -> None:
    """What is not listed is not there."""
    shelf = PluginCache([plugin.parent], now_ns=a_minute_later)
    assert shelf.find("a", name) is None
    assert shelf.find("../plugins/a", HOOK) is None


def test_a_plugin_that_comes_behind_a_link_is_found(plugin: Path) -> None:
    """Though nothing has changed in the directory where the link stands, which is not read again."""
    place = plugin.parent
    away = place.parent / "away"
    plugin.rename(away)
    plugin.symlink_to(place.parent / "later")
    shelf = PluginCache([place], now_ns=a_minute_later)
    assert shelf.find("a", HOOK) is None
    away.rename(place.parent / "later")
    found = shelf.find("a", HOOK)
    assert found is not None
    assert found.path == plugin / HOOK
