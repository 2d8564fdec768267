"""The hooks that install programs, by the names of their files, and which of them plugins ask for in vain."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from queue_workflows.errors import PluginConfigError
from queue_workflows.hooks.plugins.discovery import Hook, discover_hooks, plugins_in
from queue_workflows.hooks.plugins.hooks_file import load_hooks_file
from queue_workflows.hooks.plugins.needs import needs_of

EVENT: Final = "Binary"
BUILT_IN: Final = Path(__file__).parents[1] / "programs" / "providers"
NAME: Final = "install_using_{}_provider"
_LONG_NAME: Final = re.compile(NAME.format("(.+)"))


def provider_of(hook: Hook) -> str:
    """Which provider a hook is, by the name of its file: `on_Install__11_pip.py` is that of pip."""
    name = hook.name.partition("__")[2].split(".")[0]
    name = re.sub(r"^[0-9]{2}_", "", name)
    long = _LONG_NAME.fullmatch(name)
    return long[1] if long else name


def provider_hooks(place: Path) -> list[Hook]:
    """The hooks of a directory that install programs."""
    return discover_hooks(load_hooks_file(place).provider_event or EVENT, [place])


def unknown_providers(dirs: Iterable[Path | str]) -> Iterator[str]:
    """What to tell the author of each plugin that names a provider for which there is no hook."""
    places = [Path(place) for place in dirs]
    said: set[tuple[str, str]] = set()
    known = sorted({provider_of(hook) for place in (*places, BUILT_IN) for hook in provider_hooks(place)})
    for name, plugin in plugins_in(places).items():
        try:
            needs = needs_of(plugin)
        except PluginConfigError:  # that is said to its own hooks
            continue
        for need in needs:
            for provider in need.providers:
                if provider in known or (need.name, provider) in said:
                    continue
                said.add((need.name, provider))
                yield (
                    f"plugin {name}: {need.name} may come from {provider!r}, and there is no such provider; "
                    f"known are {', '.join(known)}"
                )
