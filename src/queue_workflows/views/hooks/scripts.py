"""The hook scripts of an event below some directories, in the order in which they run."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from queue_workflows.errors import PluginConfigError
from queue_workflows.hooks.plugin_config import load_plugin_config
from queue_workflows.hooks.plugins.compile import setup_event
from queue_workflows.hooks.plugins.discovery import Hook, discover_hooks, files_of, overlooked, plugins_in
from queue_workflows.hooks.plugins.hooks_file import Order, Setup
from queue_workflows.hooks.plugins.order import HookOrder, order_of
from queue_workflows.hooks.plugins.providers import unknown_providers

_EVENT: Final = re.compile(r"on_([A-Za-z0-9]+?)(?:End)?__")


@dataclass(frozen=True, slots=True)
class EventScripts:
    """The scripts, those that set the tree up around them, and what their authors should know."""

    event: str
    set_up_by: str | None
    scripts: Sequence[tuple[HookOrder, Hook]]
    warnings: Sequence[str]
    # Whether there is any script of the event that sets up.
    is_set_up: bool


def scripts_of(
    event: str, places: Sequence[Path], *, order: Order | None = None, setup: Setup | None = None
) -> EventScripts:
    """The hooks of an event with those of its end, and with those that set up its tree around them."""
    set_up_by = setup_event(event, places, setup)
    own = _in_order(event, places, order)
    around = [] if set_up_by is None else _in_order(set_up_by, places, order)
    # The setup's own end comes when all runs of the tree are over.
    found = [
        *(one for one in around if one[1].event == set_up_by),
        *own,
        *(one for one in around if one[1].event != set_up_by),
    ]
    unnumbered = (goes.unnumbered(hook) for goes, hook in found)
    ended_at_once = order_of(event, places, order).ended_at_once(
        [hook for _, hook in own if hook.event == event]
    )
    said = (*unnumbered, *ended_at_once, *overlooked(event, places), *unknown_providers(places))
    return EventScripts(event, set_up_by, found, [one for one in said if one is not None], bool(around))


def events_in(places: Sequence[Path]) -> list[str]:
    """The events that files below these directories are named after, without those of their ends."""
    return sorted(
        {
            named[1]
            for plugin in plugins_in(places).values()
            for path in files_of(plugin)
            if (named := _EVENT.match(path.name)) is not None
        }
    )


def state_of(hook: Hook) -> str:
    """Whether its plugin is on, as far as this machine's environment says."""
    try:
        values = load_plugin_config(hook.path.parent).resolve({}, os.environ)
    except PluginConfigError as wrong:
        return f"wrong: {wrong}"
    return "on" if values.disabled_by is None else f"off: {values.disabled_by}"


def json_of(found: EventScripts) -> list[dict[str, Any]]:
    """What `qwf hooks list --json` prints."""
    return [_script_json(hook, goes) for goes, hook in found.scripts]


def _script_json(hook: Hook, goes: HookOrder) -> dict[str, Any]:
    return {
        "event": hook.event,
        "step": hook.step,
        "order": hook.order,
        "plugin": hook.plugin,
        "name": hook.name,
        "path": str(hook.path),
        "interpreter": list(hook.interpreter),
        "background": hook.is_background,
        "hint": hook.hint,
        "state": state_of(hook),
        "warning": goes.unnumbered(hook),
    }


def command_of(event: str) -> str:
    """The command that lists them."""
    return shlex.join(["qwf", "hooks", "list", event])


def _in_order(event: str, places: Sequence[Path], order: Order | None) -> list[tuple[HookOrder, Hook]]:
    """The hooks of an event, then those of its end, as they go."""
    goes = order_of(event, places, order)
    hooks = (goes.sorted(discover_hooks(name, places)) for name in (event, f"{event}End"))
    return [(goes, hook) for of_event in hooks for hook in of_event]
