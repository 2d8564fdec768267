"""`qwf completion SHELL`: the script that teaches a shell to complete `qwf`."""

from __future__ import annotations

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from queue_workflows.cli.ending import PROGRAM
from queue_workflows.cli.main import COMPLETION_VARIABLE, cli

# The class itself rather than its `source()`, which would start bash only to look at its version.
SHELLS: dict[str, type[ShellComplete]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@click.command(
    epilog="See docs/completion.md for where each shell looks for such scripts.",
)
@click.argument("shell", type=click.Choice(list(SHELLS)))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash:  eval "$(qwf completion bash)"            in ~/.bashrc
    zsh:   eval "$(qwf completion zsh)"             in ~/.zshrc, below compinit
    fish:  qwf completion fish | source             in ~/.config/fish/config.fish
    """
    script = SHELLS[shell](cli, {}, PROGRAM, COMPLETION_VARIABLE)
    click.echo(ShellComplete.source(script))
