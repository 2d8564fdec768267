"""Where the values of settings are found, laid over each other, and refused in the user's own words.

The first layer that has a setting wins: argument, `configure()`, `QWF_*`, the older `AI_LEADS_*`, file,
default. A layer has a setting or has not: a value that happens to equal the default still beats those below.
"""

from __future__ import annotations

import difflib
import functools
import os
import re
import tomllib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from queue_workflows.errors import ConfigurationError
from queue_workflows.settings.fields import (
    PREFIX,
    SECRET,
    WHAT_CAN_BE_SET,
    Layer,
    Settings,
    Source,
    allowed,
    check_setting_name,
    field_types,
    suggest,
)

OLDER_PREFIX: Final = "AI_LEADS_"
TEST_PREFIX: Final = "QWF_TEST_"
# Set by our processes for those they start, or read by the scripts of a checkout and the pytest plugin.
READ_ELSEWHERE: Final = frozenset(
    {
        "QWF_LAUNCHER_PID",
        "QWF_PYTHON",
        "QWF_DISABLE_DB_URL",
        "QWF_DISABLE_EMBEDDED",
        "QWF_DISABLE_TESTCONTAINERS",
    }
)
CONFIGURE: Final = Source(Layer.CONFIGURE, "configure()")
ARGUMENT: Final = Source(Layer.ARGUMENT, "argument")


class UnknownVariable(UserWarning):
    """A QWF_* variable that nothing reads: most likely a typing error."""


@dataclass(frozen=True)
class Given:
    """A value as it stood in its layer, and how to point at it in an error."""

    value: Any
    source: Source
    label: str


def load_settings(
    *,
    arguments: Mapping[str, Any] | None = None,
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    start_dir: Path | None = None,
    db_url_env: str | None = None,
) -> Settings:
    """Lay the layers over each other; `arguments` beat `overrides` (what `configure()` was given).

    None in either means that it was not given. `db_url_env` names the variable that holds the DSN instead of
    QWF_DB_URL and AI_LEADS_DB_URL.
    """
    environ = os.environ if environ is None else environ
    here = _working_directory() if start_dir is None else Path(os.path.abspath(start_dir))
    _warn_of_unknown(environ, db_url_env)
    given = {
        **_from_file(here),
        **_from_environment(environ, db_url_env),
        **_from_mapping(overrides, CONFIGURE, "configure({name}={value})"),
        **_from_mapping(arguments, ARGUMENT, "argument {name}={value}"),
    }
    settings = _validated(given, here)
    _check_together(settings, given)
    return settings


def check_overrides(overrides: Mapping[str, Any]) -> None:
    """Refuse values for `configure()` that are wrong by themselves; reads no environment and no file."""
    _validated(_from_mapping(overrides, CONFIGURE, "configure({name}={value})"), Path("/"))


def unknown_variables(environ: Mapping[str, str], db_url_env: str | None = None) -> dict[str, str | None]:
    """The QWF_* variables that no setting reads, each with the nearest one that exists."""
    known = [PREFIX + field.upper() for field in Settings.model_fields]
    strangers = (
        name
        for name in sorted(environ)
        if name.startswith(PREFIX)
        and not name.startswith(TEST_PREFIX)
        and name not in known
        and name not in READ_ELSEWHERE
        and name != db_url_env
    )
    return {name: next(iter(difflib.get_close_matches(name, known, n=1)), None) for name in strangers}


def _working_directory() -> Path:
    try:
        return Path.cwd()
    except OSError as gone:
        raise ConfigurationError(
            "the working directory does not exist any more", advice="change into one"
        ) from gone


def _warn_of_unknown(environ: Mapping[str, str], db_url_env: str | None) -> None:
    # Told from here, not from the caller's line, so that a process says it once however often it looks.
    for name, nearest in unknown_variables(environ, db_url_env).items():
        hint = f"did you mean {nearest}?" if nearest else WHAT_CAN_BE_SET
        warnings.warn(f"{name} is set but nothing reads it: {hint}", UnknownVariable, stacklevel=1)
    if db_url_env and not environ.get(db_url_env, "").strip():
        for name in ("QWF_DB_URL", "AI_LEADS_DB_URL"):
            if name != db_url_env and environ.get(name, "").strip():
                warnings.warn(
                    f"{name} is set but not read: configure(db_url_env=…) names {db_url_env}, which is unset",
                    UnknownVariable,
                    stacklevel=1,
                )


def _from_mapping(values: Mapping[str, Any] | None, source: Source, label: str) -> dict[str, Given]:
    found = {}
    for name, value in (values or {}).items():
        check_setting_name(name)
        if value is not None:
            found[name] = Given(value, source, label.format(name=name, value=_shown(name, value)))
    return found


def _from_environment(environ: Mapping[str, str], db_url_env: str | None) -> dict[str, Given]:
    """An empty variable counts as unset: that is how shells and compose files take one back."""
    found = {}
    for field in Settings.model_fields:
        names = [
            (PREFIX + field.upper(), Layer.ENVIRONMENT),
            (OLDER_PREFIX + field.upper(), Layer.OLDER_ENVIRONMENT),
        ]
        if field == "db_url" and db_url_env:
            names = [(db_url_env, Layer.ENVIRONMENT)]
        for name, layer in names:
            value = environ.get(name, "").strip()
            if value:
                found[field] = Given(value, Source(layer, name), f"{name}={_shown(field, value)}")
                break
    return found


def _from_file(here: Path) -> dict[str, Given]:
    """The nearest `qwf.toml`, or pyproject.toml with a `[tool.qwf]` table, from `here` upwards."""
    for directory in (here, *here.parents):
        for name in ("qwf.toml", "pyproject.toml"):
            path = directory / name
            if os.path.isfile(path):
                table = _read_table(path)
                if table is not None:
                    return table
    return {}


def _read_table(path: Path) -> dict[str, Given] | None:
    """The file's settings; None for a pyproject.toml that does not speak of us, whatever else ails it."""
    own = path.name == "qwf.toml"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as unreadable:
        if not own:
            return None
        raise ConfigurationError(f"{path}: cannot be read ({unreadable})") from unreadable
    if not own and "qwf" not in text:
        return None
    try:
        document = _parsed(text)
    except (tomllib.TOMLDecodeError, RecursionError) as broken:
        line = re.search(r"at line (\d+)", str(broken))
        at = int(line[1]) if line else len(text.splitlines())
        raise ConfigurationError(f"{path}:{at}: not valid TOML: {broken}") from broken
    tool = document.get("tool")
    table = document if own else tool.get("qwf") if isinstance(tool, dict) else None
    if table is None:
        return None
    if not isinstance(table, dict):
        raise ConfigurationError(f"{path}: `tool.qwf` must be a table", advice="write it as [tool.qwf]")
    found = {}
    for key, value in table.items():
        place = f"{path}:{_line_of(text, key, own)}"
        if key not in Settings.model_fields:
            raise ConfigurationError(
                f"{place}: unknown key {key!r}", advice=suggest(key, Settings.model_fields)
            )
        found[key] = Given(value, Source(Layer.FILE, str(path)), f"{place}: {key} = {_shown(key, value)}")
    return found


@functools.lru_cache(maxsize=4)
def _parsed(text: str) -> dict[str, Any]:
    """What a file says, which a process reads again whenever it asks for its settings."""
    return tomllib.loads(text)


def _line_of(text: str, key: str, own: bool) -> int:
    """The line of a key: tomllib does not tell it, so it is looked for as people write it."""
    start = 0 if own else max(text.find("[tool.qwf"), 0)
    found = re.compile(
        rf"""^\s*(?:["']?{re.escape(key)}["']?\s*[.=]|\[.*\b{re.escape(key)}["']?\s*\])""", re.M
    ).search(text, start)
    return text.count("\n", 0, found.end() if found else start) + 1


def _validated(given: Mapping[str, Given], here: Path) -> Settings:
    values = {name: _absolute(name, item, here) for name, item in given.items()}
    values.setdefault("data_dir", here / ".qwf")
    try:
        settings = Settings(**values)
    except ValidationError as refused:
        names = dict.fromkeys(str(error["loc"][0]) for error in refused.errors())
        raise ConfigurationError(
            "; ".join(f"{given[name].label} is not allowed, it must be {allowed(name)}" for name in names)
        ) from None
    except ConfigurationError as refused:
        # Of one key of a table, which its own words name.
        raise ConfigurationError(
            f"{given['limits'].source.name}: {refused.message}", advice=refused.advice
        ) from None
    settings._sources.update({name: item.source for name, item in given.items()})
    return settings


def _absolute(name: str, item: Given, here: Path) -> Any:
    """A path in a file is relative to it, any other to the working directory; a later chdir moves neither."""
    if (
        Path not in field_types(Settings.model_fields[name])
        or not isinstance(item.value, str | Path)
        or item.value == ""
    ):
        return item.value
    base = Path(item.source.name).parent if item.source.layer is Layer.FILE else here
    return Path(os.path.abspath(base / os.path.expanduser(item.value)))


def _check_together(settings: Settings, given: Mapping[str, Given]) -> None:
    """A renewal that fails once must still have a second try before the lease lapses."""
    shortest = min(settings.lease_s, *settings.lease_s_by_queue.values())
    if settings.renew_s is not None and settings.renew_s > shortest / 2:
        raise ConfigurationError(
            f"{given['renew_s'].label} is more than half of the shortest lease ({shortest:g} s)",
            advice="leave it unset, or lengthen the lease",
        )


def _shown(name: str, value: object) -> str:
    """A value for a message: shortened, and never one that may carry a password."""
    text = repr(value)
    if name in SECRET or re.search(r"://[^/]*@|passw", text, re.I):
        return "(not shown)"
    return text if len(text) <= 60 else text[:57] + "…"
