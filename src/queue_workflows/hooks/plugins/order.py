"""In which order the hooks of an event go, and what to tell their authors of it.

In the order `steps` the first digit of a hook's name is its step, and the hooks of a step run side by side,
or one after the other where the step is sequential. In the order `strict` there is one order by name, and
only what runs in the background overlaps with the rest: what stands between two hooks of the foreground
begins together when the first of them is over. The caller may say which it is; else it is that of
the first directory that says one in its `hooks.toml`, else `steps`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from queue_workflows.errors import HookError
from queue_workflows.hooks.plugin_config import PluginConfig, load_plugin_config
from queue_workflows.hooks.plugins.discovery import UNNUMBERED_STEP, Hook
from queue_workflows.hooks.plugins.hooks_file import ORDERS, Order, load_hooks_file

SEQUENTIAL_STEPS: Final = frozenset({5})


@dataclass(frozen=True, slots=True)
class HookOrder:
    """The order of an event's hooks: which of the two it is, and in which steps one waits for another."""

    name: Order = "steps"
    sequential_steps: Collection[int] = SEQUENTIAL_STEPS

    @property
    def is_strict(self) -> bool:
        """Whether there is one order by name, whatever the steps."""
        return self.name == "strict"

    def is_alone(self, hook: Hook) -> bool:
        """Whether no other hook of the foreground runs beside it."""
        return self.is_strict or hook.step in self.sequential_steps

    def sorted(self, hooks: Iterable[Hook]) -> list[Hook]:
        """Hooks as they go: by name alone, or by step, number, name and plugin."""
        if self.is_strict:
            return sorted(hooks, key=lambda hook: (hook.name, hook.plugin))
        return sorted(hooks, key=lambda hook: hook.place)

    def unnumbered(self, hook: Hook) -> str | None:
        """What to tell the author of a hook without a number; None of one that has it."""
        if hook.is_numbered:
            return None
        if self.is_strict:
            return f"{hook.label} has no number, so it comes where its name stands among the others"
        return f"{hook.label} has no number, so it runs in step {UNNUMBERED_STEP}"

    def ended_at_once(
        self, hooks: Iterable[Hook], config: Callable[[Path], PluginConfig] = load_plugin_config
    ) -> list[str]:
        """What to tell the authors of background hooks for which there is no time.

        They are ended when the last foreground hook is done, and begin after it. Where there is none at all,
        they end by themselves.
        """
        in_order = self.sorted(hooks)
        foreground = [place for place, hook in enumerate(in_order) if not hook.is_background]
        if not foreground:
            return []
        last, behind = in_order[foreground[-1]], in_order[foreground[-1] + 1 :]
        return [
            f"{hook.label} is ended as soon as it begins: {self._nothing_after(hook, last)}"
            for hook in behind
            if (hook.step > last.step or self.is_alone(hook))
            and config(hook.path.parent).bg_at_seal == "kill"
        ]

    def _nothing_after(self, hook: Hook, last: Hook) -> str:
        if self.is_strict or hook.step == last.step:
            return "no foreground hook comes after it"
        return f"no foreground hook is in step {hook.step} or after it"


def order_of(
    event: str,
    places: Iterable[Path | str],
    asked: Order | None = None,
    sequential_steps: Collection[int] = SEQUENTIAL_STEPS,
) -> HookOrder:
    """The order of an event's hooks: what is `asked` for, else what a directory says.

    `HookError` for what is no order.
    """
    if asked is not None and asked not in ORDERS:
        raise HookError(f"{asked!r:.60} is no order of hooks", advice=f"one of {', '.join(ORDERS)}")
    return HookOrder(asked or _said_of(event, places), sequential_steps)


def _said_of(event: str, places: Iterable[Path | str]) -> Order:
    said = (load_hooks_file(Path(place)).order_of(event) for place in places)
    return next((order for order in said if order is not None), "steps")
