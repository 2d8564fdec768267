"""The hooks in a worker's directories, read again only where a file has changed since.

A worker runs the same scripts over and over; to list their directory and check their config for each run of
one would cost more than all else that the worker does for it. What a file's `stat` cannot tell is read again:
a change within a moment of the reading, which may bear the same time as what was there before.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

from queue_workflows.errors import HookError
from queue_workflows.hooks.plugin_config import CONFIG_FILE, PluginConfig, load_own_config, load_plugin_config
from queue_workflows.hooks.plugins.discovery import Hook, files_of, find_hook, hook_at, plugins_in
from queue_workflows.hooks.plugins.hooks_file import HOOKS_FILE, HooksFile, load_hooks_file
from queue_workflows.hooks.plugins.needs import FILES, Need, needs_in_files, needs_of

T = TypeVar("T")
_Stamp: TypeAlias = tuple[int, int, int, int, int, int] | None

# File systems tell times by ticks, those of a network by the clock of another machine.
_MOMENT_NS: Final = 2_000_000_000


class PluginCache:
    """Hooks, configs and needs of the plugins below `dirs`; from any thread."""

    def __init__(self, dirs: Sequence[Path], *, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._dirs = tuple(dirs)
        self._now_ns = now_ns
        self._kept: dict[tuple[str, ...], tuple[list[_Stamp], Any]] = {}

    def find(self, plugin: str, name: str) -> Hook | None:
        """The hook that a row names; its words are looked up, they never become a path.

        There is none while a directory cannot be read, as before it is mounted: it may have the plugin that
        counts.
        """
        try:
            plugins = self._of(("plugins",), self._dirs, lambda: plugins_in(self._dirs))
        except HookError:
            return None
        if (directory := plugins.get(plugin)) is not None:
            files = self._of(("files", plugin), [directory], lambda: _names_in(directory))
            if (path := files.get(name)) is not None:
                return self._of(("hook", plugin, name), [path], lambda: hook_at(plugin, path))
        # What is missing may have come where no directory tells, as behind a link.
        return find_hook(plugin, name, self._dirs)

    def config(self, plugin: Path) -> PluginConfig:
        """What `load_plugin_config` says of a plugin's directory."""
        return load_plugin_config(plugin, self._own_config)

    def hooks_file(self, plugin: Path) -> HooksFile:
        """What `load_hooks_file` says of the directory in which a plugin's lies."""
        place = plugin.parent
        return self._of(("hooks", str(place)), [place / HOOKS_FILE], lambda: load_hooks_file(place))

    def needs(self, plugin: Path) -> tuple[Need, ...]:
        """What `needs_of` says of a plugin's directory."""
        return needs_of(plugin, self._own_config, self._needs_in_files)

    def _needs_in_files(self, plugin: Path) -> tuple[Need, ...]:
        files = [plugin / name for name in FILES]
        return self._of(("needs", str(plugin)), files, lambda: needs_in_files(plugin))

    def _own_config(self, plugin: Path) -> PluginConfig:
        return self._of(("config", str(plugin)), [plugin / CONFIG_FILE], lambda: load_own_config(plugin))

    def _of(self, key: tuple[str, ...], paths: Sequence[Path], read: Callable[[], T]) -> T:
        stamps = [_stamp(path) for path in paths]
        kept = self._kept.get(key)
        if kept is not None and kept[0] == stamps:
            value: T = kept[1]
            return value
        settled = self._now_ns() - _MOMENT_NS
        value = read()
        if all(stamp is None or max(stamp[4:]) < settled for stamp in stamps):
            self._kept[key] = (stamps, value)
        return value


def _names_in(plugin: Path) -> dict[str, Path]:
    return {path.name: path for path in files_of(plugin)}


def _stamp(path: Path) -> _Stamp:
    """What changes when a file or directory does; None where there is none."""
    try:
        seen = os.stat(path)
    except OSError:
        return None
    return seen.st_dev, seen.st_ino, seen.st_mode, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns
