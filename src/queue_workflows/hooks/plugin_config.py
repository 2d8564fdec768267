"""A plugin's `config.json`: a JSON Schema of its values, and how its hooks are to be treated.

    {"properties": {"TITLE_TIMEOUT": {"type": "integer", "default": 60, "x-fallback": "TIMEOUT",
                                      "x-aliases": ["FETCH_TITLE_TIMEOUT"]}},
     "x-max-attempts": 3, "x-retry-s": 60, "x-bg-at-seal": "wait", "x-env": ["HTTPS_PROXY"]}

`required_plugins` names others beside it: what they declare, and what a plugin called `base` does, is
declared here too. `required_binaries` are programs; see `plugins/needs`.

A value is looked for in the run's config and then in the environment, each time by its name and then by its
aliases; then, by the same way, as its `x-fallback`; and what nobody set is the default. Texts from the
environment are read as the type that the schema says.

No name of the engine's own and nothing that a database driver reads can be declared: hooks never see the DSN.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias, cast

from queue_workflows.errors import PayloadError, PluginConfigError
from queue_workflows.hooks.files import small_file
from queue_workflows.hooks.readiness import Readiness, flaws_of_readiness, read_readiness
from queue_workflows.hooks.text_values import read_as, refused
from queue_workflows.workflow.document.nodes import lock_text
from queue_workflows.workflow.document.schemas import filled, flaws_of_schema

CONFIG_FILE: Final = "config.json"
# What it declares is declared for all plugins beside it.
BASE: Final = "base"
AtSeal = Literal["wait", "kill"]
AtTimeout = Literal["fail", "end"]
LoadOwn: TypeAlias = "Callable[[Path], PluginConfig]"

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
_PLUGIN: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
# The engine's settings, under both of their names, and what libpq reads: among them are the DSN's secrets.
_NOT_FOR_HOOKS: Final = re.compile(r"_?QWF_.*|AI_LEADS_.*|QUEUE_WORKFLOWS_.*|PG[A-Z_]+|NOTIFY_SOCKET")
_OWN_WORDS: Final = frozenset(
    {"x-max-attempts", "x-retry-s", "x-bg-at-seal", "x-env", "x-host-lock", "x-ready", "x-bg-at-timeout"}
)
_LONGEST_DELAY_S: Final = 30 * 86_400.0
_MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class PluginValues:
    """A plugin's values for one run; `disabled_by` says what switched it off, in words, or is None."""

    values: Mapping[str, Any]
    disabled_by: str | None
    timeout_s: float | None

    @property
    def enabled(self) -> bool:
        """Whether its hooks are to run."""
        return self.disabled_by is None


@dataclass(frozen=True, slots=True)
class PluginConfig:
    """What a plugin's `config.json` says; without such a file, everything is as by default."""

    plugin: str
    properties: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: MappingProxyType({}))
    required: frozenset[str] = frozenset()
    max_attempts: int | None = None
    retry_s: float | None = None
    bg_at_seal: AtSeal = "kill"
    bg_at_timeout: AtTimeout = "fail"
    env: tuple[str, ...] = ()
    host_lock: str | None = None
    ready: Readiness | None = None
    required_plugins: tuple[str, ...] = ()
    required_binaries: tuple[Any, ...] = ()
    # All that it requires, through all of them; and whether there is a file at all.
    requires: tuple[str, ...] = ()
    is_written: bool = False

    @property
    def prefix(self) -> str:
        """The plugin's name as variables begin with it: `my-title` is MY_TITLE."""
        return re.sub(r"[^A-Z0-9]", "_", self.plugin.upper())

    def resolve(self, run_config: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> PluginValues:
        """The values in force for a run; `PluginConfigError` names the key that is wrong.

        What is switched off has none: nobody is to set what no hook will read.
        """
        given = _Given(self, run_config, environ)
        if (disabled_by := _switched_off(self, given)) is not None:
            return PluginValues({}, disabled_by, None)
        values = {}
        for key, schema in self.properties.items():
            value = given.value_of(key, schema)
            if value is not _MISSING:
                values[key] = value
            elif key in self.required:
                raise _wrong(self.plugin, key, "is missing", f"set {key}, in the environment or for the run")
        return PluginValues(values, None, _timeout_of(self, given))

    def said_by_user(self, key: str, run_config: Mapping[str, Any], environ: Mapping[str, str]) -> Any:
        """What the run's config or the environment says for a key, declared or not; None if they do not."""
        schema = self.properties.get(key, {"type": "string"})
        names = [key, *schema.get("x-aliases", [])]
        value = _Given(self, run_config, environ).first_of(names, key, schema)
        return None if value is _MISSING else value


def load_plugin_config(directory: Path, load_own: LoadOwn | None = None) -> PluginConfig:
    """What the plugin in this directory says of itself, with what the plugins declare that it requires.

    Of these one that is not beside it adds nothing. `PluginConfigError` names what makes no sense.
    """
    load = load_own or load_own_config
    own = load(directory)
    chain = tuple(_required_by(own, directory, load))
    if not chain:
        return own
    properties = {key: schema for one in (*chain, own) for key, schema in one.properties.items()}
    binaries = [binary for one in (own, *chain) for binary in one.required_binaries]
    return replace(
        own,
        properties=MappingProxyType(properties),
        required=frozenset().union(*(one.required for one in (*chain, own))),
        requires=tuple(one.plugin for one in chain),
        required_binaries=tuple(binaries),
    )


def _required_by(own: PluginConfig, directory: Path, load: LoadOwn) -> Iterator[PluginConfig]:
    """Each plugin that a plugin requires, and those that these do, before whatever needs it; `base` first."""
    seen = {own.plugin}

    def those(config: PluginConfig) -> Iterator[PluginConfig]:
        for name in config.required_plugins:
            if name not in seen:
                seen.add(name)
                required = load(directory.parent / name)
                yield from those(required)
                yield required

    # A config that nobody wrote asks for nothing.
    if own.is_written:
        yield from those(PluginConfig(own.plugin, required_plugins=(BASE,)))
        yield from those(own)


def load_own_config(directory: Path) -> PluginConfig:
    """What the plugin's own file says, and no other."""
    plugin, path = directory.name, directory / CONFIG_FILE
    try:
        text = small_file(path)
    except FileNotFoundError:
        return PluginConfig(plugin)
    except OSError as wrong:
        raise PluginConfigError(plugin, f"{path}: {wrong.strerror}") from None
    try:
        document = json.loads(text, parse_constant=refused)
    except (ValueError, RecursionError) as wrong:
        raise PluginConfigError(plugin, f"{path} is no JSON: {wrong}") from None
    return read_plugin_config(plugin, document)


def read_plugin_config(plugin: str, document: Any) -> PluginConfig:
    """The config of a document as it stands in the file."""
    if not isinstance(document, dict):
        raise PluginConfigError(plugin, f"{CONFIG_FILE} must be a JSON Schema, an object")
    flaws = list(_flaws(document))
    if flaws:
        key, said = flaws[0]
        raise _wrong(plugin, key, said)
    return PluginConfig(
        plugin,
        properties=MappingProxyType(document.get("properties", {})),
        required=frozenset(document.get("required", ())),
        max_attempts=document.get("x-max-attempts"),
        retry_s=document.get("x-retry-s"),
        bg_at_seal=cast(AtSeal, document.get("x-bg-at-seal", "kill")),
        bg_at_timeout=cast(AtTimeout, document.get("x-bg-at-timeout", "fail")),
        env=tuple(document.get("x-env", ())),
        host_lock=document.get("x-host-lock"),
        required_plugins=tuple(document.get("required_plugins", ())),
        required_binaries=tuple(document.get("required_binaries", ())),
        ready=read_readiness(document["x-ready"]) if "x-ready" in document else None,
        is_written=True,
    )


def may_be_seen(name: str) -> bool:
    """Whether a variable of this name may be handed to a hook at all."""
    return _NAME.fullmatch(name) is not None and _NOT_FOR_HOOKS.fullmatch(name) is None


def _flaws(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key in document:
        # A word of another runner's is none of our business, unless it is one of ours with a slip in it.
        if key.startswith("x-") and key not in _OWN_WORDS and get_close_matches(key, _OWN_WORDS, cutoff=0.75):
            yield key, f"is none of {', '.join(sorted(_OWN_WORDS))}"
    yield from _flaws_of_policies(document)
    properties = document.get("properties", {})
    if not isinstance(properties, dict):
        yield "properties", "must be an object of JSON Schemas"
        return
    required = document.get("required", [])
    if not _are_texts(required) or not set(required) <= properties.keys():
        yield "required", "must be a list of properties"
    for key, schema in properties.items():
        names = [key]
        if isinstance(schema, dict):
            if not _are_texts(schema.get("x-aliases", [])):
                yield key, "must have a list of names as x-aliases"
                continue
            if not isinstance(schema.get("x-fallback", ""), str):
                yield key, "must have a name as x-fallback"
                continue
            names += [*schema.get("x-aliases", []), *filter(None, [schema.get("x-fallback")])]
        yield from ((key, _why_not(name)) for name in names if not may_be_seen(name))
    yield from (
        (str(place[0]), f"{'/'.join(map(str, place[1:]))} {said}".strip())
        for place, said in flaws_of_schema(properties)
    )


def _flaws_of_policies(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    attempts, delay = document.get("x-max-attempts", 1), document.get("x-retry-s", 0)
    if isinstance(attempts, bool) or not isinstance(attempts, int) or not 1 <= attempts <= 1000:
        yield "x-max-attempts", "must be a whole number from 1 to 1000"
    if isinstance(delay, bool) or not isinstance(delay, int | float) or not 0 <= delay <= _LONGEST_DELAY_S:
        yield "x-retry-s", f"must be seconds, from 0 to {_LONGEST_DELAY_S:,.0f}"
    if document.get("x-bg-at-seal", "kill") not in ("wait", "kill"):
        yield "x-bg-at-seal", 'must be "wait" or "kill"'
    if document.get("x-bg-at-timeout", "fail") not in ("fail", "end"):
        yield "x-bg-at-timeout", 'must be "fail" or "end"'
    try:
        if (lock := document.get("x-host-lock")) is not None:
            lock_text(lock)
    except (ValueError, TypeError, AttributeError):
        yield "x-host-lock", "must be the name of a lock, without blanks around it"
    yield from _flaws_of_needs(document)
    if "x-ready" in document:
        yield from (("x-ready", said) for said in flaws_of_readiness(document["x-ready"]))
    passed = document.get("x-env", [])
    if not _are_texts(passed):
        yield "x-env", "must be a list of names of variables"
        return
    yield from (("x-env", _why_not(name)) for name in passed if not may_be_seen(name))


def _flaws_of_needs(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    required = document.get("required_plugins", [])
    if not _are_texts(required) or not all(_PLUGIN.fullmatch(name) for name in required):
        yield "required_plugins", "must be a list of plugins' names"
    if not isinstance(document.get("required_binaries", []), list):
        yield "required_binaries", "must be a list of programs"


def _why_not(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        return f"{name[:60]!r} is no name of a variable: a letter or `_`, then letters, digits and `_`"
    return f"{name[:60]} is the engine's own or a database driver's, and not for hooks"


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


class _Given:
    """What a run and the environment say, asked by name; the run comes first."""

    def __init__(
        self, config: PluginConfig, run_config: Mapping[str, Any], environ: Mapping[str, str]
    ) -> None:
        self._config, self._run, self._environ = config, run_config, environ
        self.named = ""  # what said the last value that was found

    def value_of(self, key: str, schema: Mapping[str, Any] | bool) -> Any:
        """The value that a property has, checked; `_MISSING` where nobody gave one."""
        inherited: Any = _MISSING
        seen: set[str] = set()
        name: str | None = key
        said: Mapping[str, Any] = schema if isinstance(schema, dict) else {}
        while name and name not in seen:
            seen.add(name)
            # The names that a fallback has in turn are as good as its own.
            value = self.first_of([name, *said.get("x-aliases", [])], key, schema)
            if value is not _MISSING:
                return value
            inherited = said.get("default", _MISSING) if inherited is _MISSING else inherited
            name = said.get("x-fallback")
            said = self._words_of(name)
        return inherited

    def _words_of(self, name: str | None) -> Mapping[str, Any]:
        schema: Any = self._config.properties.get(name or "")
        return schema if isinstance(schema, dict) else {}

    def first_of(self, names: Sequence[str], key: str, schema: Any) -> Any:
        for name in names:
            if self._run.get(name) is not None:
                self.named = name
                return self._checked(self._run[name], name, "the run's config", key, schema)
        for name in names:
            if name in self._environ:
                self.named = name
                return self._checked(self._environ[name], name, "the environment", key, schema)
        return _MISSING

    def _checked(self, value: Any, name: str, where: str, key: str, schema: Any) -> Any:
        try:
            read = read_as(value, schema) if isinstance(value, str) else value
            return filled({name: schema}, {name: read}, what="")[name]
        except (PayloadError, ValueError) as wrong:
            said = wrong.message.removeprefix(f".{name} ") if isinstance(wrong, PayloadError) else str(wrong)
            shown = name if name == key else f"{name}, which stands for {key},"
            raise _wrong(
                self._config.plugin, key, f"{said} ({shown} is set in {where})", f"correct {name} there"
            ) from None


def _switched_off(config: PluginConfig, given: _Given) -> str | None:
    """What says that it is off; `{X}_ENABLED` and `SAVE_{X}` are one switch and need not be declared."""
    keys = (f"{config.prefix}_ENABLED", f"SAVE_{config.prefix}")
    declared = [config.properties[key] for key in keys if key in config.properties]
    aliases = [alias for schema in declared for alias in schema.get("x-aliases", [])]
    value = given.first_of(list(dict.fromkeys([*keys, *aliases])), keys[0], {"type": "boolean"})
    if value is _MISSING:
        off = [key for key in keys if config.properties.get(key, {}).get("default") is False]
        return f"{off[0]} is false by default" if off else None
    return None if value else f"{given.named} is false"


def _timeout_of(config: PluginConfig, given: _Given) -> float | None:
    """`{PLUGIN}_TIMEOUT`, else `TIMEOUT`, in seconds; they need not be declared. None: nobody set one."""
    plain = {"type": "number", "exclusiveMinimum": 0}
    for key in (f"{config.prefix}_TIMEOUT", "TIMEOUT"):
        schema = config.properties.get(key, plain)
        value = given.value_of(key, schema)
        if value is _MISSING or value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise _wrong(config.plugin, key, "must be seconds, more than 0", f"correct {key}")
        return float(value)
    return None


def _wrong(plugin: str, key: str, said: str, advice: str | None = None) -> PluginConfigError:
    return PluginConfigError(plugin, said, key=key, advice=advice)
