"""Groups of commands: one that imports a command's module only when it runs, so that help is quick, and one
that has its commands beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem

from queue_workflows.cli.shared.root_options import with_root_options


class Entry(NamedTuple):
    """Where a command lives, `module:attribute`, and its line in the group's help."""

    target: str
    summary: str


class CommandGroup(click.Group):
    """A group of commands that take the options of `qwf` itself after their names too."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = super().get_command(ctx, cmd_name)
        return command and with_root_options(command)


class LazyGroup(click.Group):
    """Knows its commands by name and summary alone; suggests the nearest name when one is unknown."""

    def __init__(self, *args: Any, entries: Mapping[str, Entry], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.entries = entries

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self.entries.get(cmd_name)
        if entry is None:
            return None
        module, _, attribute = entry.target.partition(":")
        return with_root_options(getattr(import_module(module), attribute))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in self.entries.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self.entries and not ctx.resilient_parsing:
            from difflib import get_close_matches

            near = get_close_matches(name, self.entries, n=1, cutoff=0.5)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            raise click.UsageError(f"No such command '{name}'.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        commands = [
            CompletionItem(name, help=entry.summary)
            for name, entry in self.entries.items()
            if name.startswith(incomplete)
        ]
        # Past the group's own version, which would import every command to ask for its summary.
        return commands + click.Command.shell_complete(self, ctx, incomplete)
