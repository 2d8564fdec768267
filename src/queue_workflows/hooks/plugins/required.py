"""The plugins that a plugin works with: `required_plugins` in its `config.json`, and theirs."""

from __future__ import annotations

from pathlib import Path

from queue_workflows.hooks.plugin_config import load_plugin_config
from queue_workflows.hooks.plugins.discovery import PLUGIN_NAME


def required_plugins(plugin: Path) -> list[str]:
    """The names of all plugins that this one requires, near ones first, whether or not they are there."""
    found: dict[str, None] = {}
    waiting = [plugin.name]
    while waiting:
        for name in load_plugin_config(plugin.parent / waiting.pop(0)).required_plugins:
            if name not in found and name != plugin.name and PLUGIN_NAME.fullmatch(name):
                found[name] = None
                waiting.append(name)
    return list(found)
