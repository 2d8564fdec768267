"""The programs that a plugin needs, as its `binaries.jsonl` (or `dependencies.jsonl`) says, one a line.

    {"name": "wget", "bin_providers": "env,apt,brew", "overrides": {"apt": {"packages": ["wget"]}}}
    {"name": "chromium", "bin_providers": ["env"], "if_missing": "skip"}

So do `required_binaries` of its `config.json`, a list of such objects, also those of plugins that it
requires. A name in braces is that of a property: its value is the program, and hooks find the path there.

    {"name": "{CHROME_BINARY}", "binproviders": "env,puppeteer", "min_version": "120.0",
     "overrides": {"puppeteer": {"install_args": ["chrome@stable"]}}}

Its hooks wait for a program that is missing; with `"if_missing": "skip"` they are skipped for as long.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from queue_workflows.errors import PluginConfigError
from queue_workflows.hooks.files import small_file
from queue_workflows.hooks.plugin_config import LoadOwn, PluginConfig, load_plugin_config
from queue_workflows.hooks.plugins.discovery import PROVIDER_NAME, plugins_in

FILES: Final = ("binaries.jsonl", "dependencies.jsonl")
USUAL_PROVIDERS: Final = ("env", "pip", "npm", "apt", "brew")
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}")
_BRACED: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_FIELDS: Final = frozenset(
    {
        *("type", "name", "bin_name", "bin_providers", "binproviders"),
        *("overrides", "if_missing", "min_version"),
    }
)
InFiles: TypeAlias = "Callable[[Path], tuple[Need, ...]]"


@dataclass(frozen=True, slots=True)
class Need:
    """A program, the providers that may install it, in order, and what each is told of it.

    With `is_exact` no other provider may install it. Where `env_name` is set, hooks find its path there. One
    that is older than `min_version` will not do.
    """

    name: str
    providers: tuple[str, ...]
    overrides: dict[str, Any]
    is_skipped_without: bool = False
    is_exact: bool = False
    env_name: str | None = None
    min_version: str | None = None

    def or_by(self, others: Iterable[Need]) -> Need:
        """This need, with the providers of `others` after its own."""
        providers, overrides = list(self.providers), dict(self.overrides)
        for other in others:
            providers += [provider for provider in other.providers if provider not in providers]
            overrides = {**other.overrides, **overrides}
        return replace(self, providers=tuple(providers), overrides=overrides)

    def and_of(self, other: Need) -> Need:
        """This need and another one of the same program: what is new enough is so for both."""
        newest = max(self.min_version, other.min_version, key=_numbers)
        return replace(self.or_by([other]), min_version=newest)

    def is_old(self, version: str | None) -> bool:
        """Whether a version is older than what is needed, or says nothing that could be compared."""
        if self.min_version is None:
            return False
        return _numbers(version) < (_numbers(self.min_version) or ())

    @property
    def variable(self) -> str:
        """The variable in which hooks find its path, as in `WGET_BINARY`."""
        return self.env_name or f"{re.sub('[^A-Za-z0-9]', '_', self.name).upper()}_BINARY"


def needs_of(
    plugin: Path, load_own: LoadOwn | None = None, in_files: InFiles | None = None
) -> tuple[Need, ...]:
    """What the plugin in a directory needs by its files and its config, and what those need that it requires.

    `PluginConfigError` names what is wrong.
    """
    known: dict[str, Need] = {}
    config = load_plugin_config(plugin, load_own)
    for name in (plugin.name, *config.requires):
        for need in (in_files or needs_in_files)(plugin.parent / name):
            _add(known, need)
    for need in _required_by(config):
        _add(known, need)
    return tuple(known.values())


def _add(known: dict[str, Need], need: Need) -> None:
    same = known.get(need.variable)
    known[need.variable] = need if same is None else same.and_of(need)


def _required_by(config: PluginConfig) -> Iterator[Need]:
    """The `required_binaries` of a config."""
    for number, given in enumerate(config.required_binaries, 1):
        try:
            need = _required(given, config.properties)
        except ValueError as wrong:
            raise PluginConfigError(
                config.plugin, f"program {number}: {wrong}", key="required_binaries"
            ) from None
        yield need


def needs_in_files(plugin: Path) -> tuple[Need, ...]:
    """What the lines of a plugin's file say."""
    for name in FILES:
        try:
            content = small_file(plugin / name)
        except FileNotFoundError:
            continue
        except OSError as wrong:
            raise PluginConfigError(plugin.name, f"{name} cannot be read: {wrong.strerror}") from None
        return tuple(_needs_in(plugin.name, name, content))
    return ()


def needs_below(dirs: Iterable[Path | str], *, strict: bool = False) -> dict[str, Need]:
    """What all plugins of these directories need: each program with the providers that any of them allows.

    A plugin with a wrong file is passed over, unless `strict`: that is its own hooks' affair.
    """
    found: dict[str, Need] = {}
    for plugin in plugins_in(dirs).values():
        try:
            needs = needs_of(plugin)
        except PluginConfigError:
            if strict:
                raise
            continue
        for need in needs:
            found[need.name] = found[need.name].and_of(need) if need.name in found else need
    return found


def need_of(name: str, providers: object = None, overrides: object = None) -> Need:
    """A program by itself, from any provider unless some are named; `ValueError` if it is wrong."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r:.120} is no name of a program")
    given = overrides if overrides is not None else {}
    if not isinstance(given, dict):
        raise ValueError("`overrides` is an object, by the names of providers")
    return Need(name, _providers(providers), given)


def _needs_in(plugin: str, file: str, content: bytes) -> Iterator[Need]:
    seen: set[str] = set()
    for number, line in enumerate(content.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            need = _parsed(json.loads(line))
            if need.name in seen:
                raise ValueError(f"{need.name!r} is there twice")
        except (ValueError, RecursionError) as wrong:
            raise PluginConfigError(
                plugin,
                f"{file}, line {number}: {wrong}",
                advice='as in {"name": "wget", "bin_providers": "env,apt"}',
            ) from None
        seen.add(need.name)
        yield need


def _parsed(line: Any) -> Need:
    if not isinstance(line, dict):
        raise ValueError("it is no object")
    if unknown := sorted(set(line) - _FIELDS):
        raise ValueError(f"nobody knows {', '.join(unknown)}")
    name = line.get("name", line.get("bin_name"))
    if not isinstance(name, str):
        raise ValueError("it has no `name`")
    if_missing = line.get("if_missing", "wait")
    if if_missing not in ("wait", "skip"):
        raise ValueError('`if_missing` is "wait" or "skip"')
    need = need_of(name, line.get("bin_providers", line.get("binproviders")), line.get("overrides"))
    return replace(need, is_skipped_without=if_missing == "skip", min_version=_version(line))


def _required(given: Any, properties: Mapping[str, Any]) -> Need:
    """An entry of `required_binaries`; what else it may say is for its provider."""
    if not isinstance(given, dict) or not isinstance(given.get("name"), str):
        raise ValueError("it is no object with a `name`")
    parsed = {key: value for key, value in given.items() if key in _FIELDS and value is not None}
    braced = _BRACED.fullmatch(given["name"])
    if braced is None:
        return _parsed(parsed)
    schema = properties.get(braced[1])
    default = schema.get("default") if isinstance(schema, dict) else None
    if not isinstance(default, str) or not default:
        raise ValueError(f"{given['name']} is no property with a program's name as its default")
    return replace(_parsed({**parsed, "name": os.path.basename(default)}), env_name=braced[1])


def _version(line: Mapping[str, Any]) -> str | None:
    version = line.get("min_version")
    if version is not None and (not isinstance(version, str) or not _numbers(version)):
        raise ValueError(f"`min_version` is a version, as in 2.0, not {version!r:.60}")
    return version


def _numbers(version: str | None) -> tuple[int, ...]:
    """The first numbers with dots between them in what a program says of its version."""
    found = re.search(r"[0-9]{1,9}(?:\.[0-9]{1,9})*", version or "")
    return tuple(int(number) for number in found[0].split(".")) if found else ()


def _providers(given: object) -> tuple[str, ...]:
    if given is None or given == "*":
        return USUAL_PROVIDERS
    names = given.split(",") if isinstance(given, str) else given
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("`bin_providers` is a list, or names with commas between them")
    providers = tuple(name.strip() for name in names)
    for provider in providers:
        if not PROVIDER_NAME.fullmatch(provider):
            raise ValueError(f"{provider!r:.60} is no provider")
    return providers or USUAL_PROVIDERS
