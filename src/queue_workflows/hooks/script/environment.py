"""The environment of a hook: what is on a list, and nothing else of the worker's own.

PATH, HOME, LANG …     what every program needs, from the worker
[env] of hooks.toml    what the directory of the plugin sets for all of its hooks
x-env                  further variables of the worker that the plugin's config.json names
the plugin's values    typed, as the config.json says
QWF_RUN_ID …           what the engine says of this run
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from queue_workflows.errors import PluginConfigError
from queue_workflows.hooks.plugin_config import PluginConfig, PluginValues
from queue_workflows.payload import check_payload

_FOR_EVERY_PROGRAM: Final = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|LC_[A-Z]+|TZ|TMPDIR|SSL_CERT_(?:FILE|DIR)"
    r"|XDG_(?:RUNTIME_DIR|(?:CACHE|CONFIG|DATA)_HOME)"
)
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


def hook_environment(
    config: PluginConfig,
    values: PluginValues,
    *,
    engine: Mapping[str, str],
    environ: Mapping[str, str] = os.environ,
    dsns: Iterable[str] = (),
    directory: Mapping[str, str] = _NOTHING,
) -> dict[str, str]:
    """The whole environment; `engine` is what the engine says, which nothing can overrule.

    What the plugin's `directory` sets counts as if the worker had it, and is handed on whether it is declared
    or not.

    `dsns` are the texts by which the process knows its database: a variable that holds one is handed to no
    hook, by whatever name, and a plugin that asks for it is refused.
    """
    secrets = [dsn for dsn in dsns if dsn]
    chosen = dict(_of_every_program(environ, secrets))
    for name, text in directory.items():
        chosen[name] = _without_dsn(config, name, text, secrets)
    for name in config.env:
        if name in environ and name not in directory:
            chosen[name] = _without_dsn(config, name, environ[name], secrets)
    for key, value in values.values.items():
        if value is not None:
            chosen[key] = _without_dsn(config, key, variable_text(value), secrets)
    return {**chosen, **engine}


def variable_text(value: Any) -> str:
    """A value as a variable: a text as it is, anything else as JSON, so `true` and `["a", "b"]`."""
    return str(value) if isinstance(value, str) else check_payload(value)


def _of_every_program(environ: Mapping[str, str], secrets: list[str]) -> Iterator[tuple[str, str]]:
    for name, value in environ.items():
        if _FOR_EVERY_PROGRAM.fullmatch(name) and not any(secret in value for secret in secrets):
            yield name, value


def _without_dsn(config: PluginConfig, name: str, value: str, secrets: list[str]) -> str:
    if any(secret in value for secret in secrets):
        raise PluginConfigError(
            config.plugin,
            "holds the engine's database URL, which no hook is given",
            key=name,
            advice="give the plugin a database user of its own, in a variable of its own",
        )
    if "\0" in value:
        raise PluginConfigError(config.plugin, "holds a NUL, which no variable can", key=name)
    return value
