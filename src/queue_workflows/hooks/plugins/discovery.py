"""Finds hooks: executable files `plugins/{plugin}/on_{Event}__{NN}_{name}[.bg].{ext}`, in a stable order.

The order is that of step, number within it, name and plugin, whatever order the file system lists them in. Of
two plugins of one name the one in the directory that is named first counts, as a whole: its files belong
together.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from queue_workflows.errors import HookError

UNNUMBERED_STEP: Final = 9
PLUGIN_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
EVENT_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9]{0,99}")
PROVIDER_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,49}")
_FILE_NAME: Final = re.compile(
    r"on_(?P<event>[A-Za-z][A-Za-z0-9]*)__(?:(?P<number>[0-9]{2})_)?"
    r"(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]*?)(?P<background>\.bg)?(?P<ext>\.[A-Za-z0-9]+)?"
)
_HINT: Final = re.compile(r"\.(finite|daemon)\.bg(?:\.[A-Za-z0-9]+)?$")
_LETTERS: Final = "letters, digits and any of `_ . -`, as in title/on_Page__54_title.py"
# What stands in for a first line `#!`; the worker looks the name up on its own machine.
_INTERPRETERS: Final[Mapping[str, str]] = {
    ".py": sys.executable,
    ".sh": "sh",
    ".bash": "bash",
    ".js": "node",
    ".mjs": "node",
    ".cjs": "node",
    ".rb": "ruby",
    ".pl": "perl",
    ".php": "php",
    ".lua": "lua",
}


@dataclass(frozen=True, slots=True)
class Hook:
    """One script of a plugin: `order` stands within its `step`, and `name` is its file's, as rows keep it.

    `interpreter` goes before the path on the command line; it is empty for what the kernel runs by itself.
    """

    plugin: str
    event: str
    step: int
    order: int
    name: str
    path: Path
    interpreter: tuple[str, ...]
    is_background: bool
    is_numbered: bool = True

    @property
    def label(self) -> str:
        """What commands and messages call it."""
        return f"{self.plugin}/{self.name}"

    @property
    def hint(self) -> str | None:
        """What a background hook's name says of how it ends, as in `.daemon.bg`; it changes nothing."""
        said = _HINT.search(self.name) if self.is_background else None
        return None if said is None else said[1]

    @property
    def place(self) -> tuple[int, int, str, str]:
        """Where it stands among others: by step, number, name and plugin."""
        return self.step, self.order, self.name, self.plugin


def extract_step(name: str) -> int:
    """The step of a hook's file name: the first of its two digits, or the last step for want of them."""
    return _numbers(_parts(name))[0]


def is_background_hook(name: str) -> bool:
    """Whether a hook's file name says that it runs beside its step."""
    return _parts(name)["background"] is not None


def discover_hooks(
    event: str, dirs: Iterable[Path | str], *, plugins: Collection[str] | None = None
) -> list[Hook]:
    """All hooks of an event, in order; `HookError` names every one that cannot be run, and why.

    Of these `plugins` only, if they are named: what is wrong with others is nobody's affair then.
    """
    if not EVENT_NAME.fullmatch(event):
        raise HookError(
            f"{event!r:.120} is no event", advice="its name has letters and digits, as in Snapshot"
        )
    hooks: list[Hook] = []
    wrong: list[str] = []
    for plugin in plugins_in(dirs).values():
        if plugins is not None and plugin.name not in plugins:
            continue
        for path in files_of(plugin):
            found = _FILE_NAME.fullmatch(path.name)
            if found is None or found["event"] != event:
                continue
            try:
                hooks.append(_hook(plugin.name, path, found))
            except HookError as unusable:
                wrong.append(unusable.message)
    if wrong:
        raise HookError(*wrong, advice="set its executable bit, with a first line such as #!/bin/sh")
    return sorted(hooks, key=lambda hook: hook.place)


def overlooked(event: str, dirs: Iterable[Path | str]) -> list[str]:
    """What to tell the authors of files that look like hooks of an event, and are none by their names."""
    said = []
    for place in sorted(Path(entry) for given in dirs for entry in os.scandir(given) if entry.is_dir()):
        meant: list[str] = []
        with suppress(HookError):  # what cannot be looked into is told of where it is a plugin
            meant = [path.name for path in files_of(place) if _is_meant(path.name, event)]
        if place.name.startswith("."):
            continue
        if meant and PLUGIN_NAME.fullmatch(place.name) is None:
            said.append(f"{place.name!r} is no plugin's name, so its hooks are passed over: {_LETTERS}")
        elif wrong := [name for name in meant if _FILE_NAME.fullmatch(name) is None]:
            said.append(f"{wrong[0]!r} of {place.name} is no hook's name, so it is passed over: {_LETTERS}")
    return said


def _is_meant(name: str, event: str) -> bool:
    """Whether a file's name begins as those of an event's hooks do; what editors keep ends with a tilde."""
    return name.startswith(f"on_{event}_") and not name.endswith("~")


def find_hook(plugin: str, name: str, dirs: Iterable[Path | str]) -> Hook | None:
    """The hook that a row names, as it stands below the directories; a row's words never become a path."""
    directory = plugins_in(dirs).get(plugin)
    if directory is None:
        return None
    return next((hook_at(plugin, path) for path in files_of(directory) if path.name == name), None)


def hook_at(plugin: str, path: Path) -> Hook | None:
    """The hook that a plugin's file is; None if it is none by its name."""
    found = _FILE_NAME.fullmatch(path.name)
    return None if found is None else _hook(plugin, path, found)


def plugins_in(dirs: Iterable[Path | str]) -> dict[str, Path]:
    """The directory of each plugin, by its name; `HookError` if one of `dirs` cannot be read."""
    plugins: dict[str, Path] = {}
    for given in dirs:
        try:
            entries = sorted(os.scandir(given), key=lambda entry: entry.name)
        except OSError as wrong:
            raise HookError(
                f"{given}: {wrong.strerror}",
                advice="name a directory that holds one directory for each plugin",
            ) from None
        for entry in entries:
            if PLUGIN_NAME.fullmatch(entry.name) and entry.is_dir():
                plugins.setdefault(entry.name, Path(os.path.abspath(entry.path)))
    return plugins


def _parts(name: str) -> re.Match[str]:
    found = _FILE_NAME.fullmatch(name)
    if found is None:
        raise HookError(f"{name!r:.200} is no hook's name", advice="as in on_Snapshot__54_title.py")
    return found


def _numbers(found: re.Match[str]) -> tuple[int, int]:
    """Step and order; what has no number comes last in its step."""
    number = found["number"]
    return (UNNUMBERED_STEP, 10) if number is None else (int(number[0]), int(number[1]))


def files_of(plugin: Path) -> Iterator[Path]:
    """What stands in a plugin's directory beside directories, by name."""
    try:
        entries = sorted(os.scandir(plugin), key=lambda entry: entry.name)
    except OSError as wrong:
        raise HookError(f"{plugin}: {wrong.strerror}") from None
    return (plugin / entry.name for entry in entries if not entry.is_dir())


def _hook(plugin: str, path: Path, found: re.Match[str]) -> Hook:
    step, order = _numbers(found)
    return Hook(
        plugin=plugin,
        event=found["event"],
        step=step,
        order=order,
        name=path.name,
        path=path,
        interpreter=_interpreter_of(path, found["ext"] or ""),
        is_background=found["background"] is not None,
        is_numbered=found["number"] is not None,
    )


def _interpreter_of(path: Path, ext: str) -> tuple[str, ...]:
    """What has to be named before a hook's path; nothing where the kernel knows by itself."""
    try:
        mode = path.stat().st_mode
    except OSError as wrong:
        raise HookError(f"{path}: {wrong.strerror}") from None
    if not stat.S_ISREG(mode):
        raise HookError(f"{path} is no regular file")
    known = _INTERPRETERS.get(ext.lower())
    executable = os.access(path, os.X_OK)
    if executable and (known is None or _says_how(path)):
        return ()
    if known is None:
        raise HookError(
            f"{path} is not executable, and {ext or 'a name without an ending'} names no interpreter"
        )
    return (known,)


def _says_how(path: Path) -> bool:
    """Whether its first line names an interpreter, or it is no script at all."""
    try:
        with path.open("rb") as file:
            return file.read(4).startswith((b"#!", b"\x7fELF"))
    except OSError as wrong:
        raise HookError(f"{path}: {wrong.strerror}") from None
