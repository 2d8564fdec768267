"""`qwf completion SHELL`: the script that teaches a shell to complete `qwf` and the other console scripts."""

from __future__ import annotations

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from queue_workflows.cli.main import ALIASES, COMPLETION_VARIABLE, cli
from queue_workflows.cli.shared.error_exit import PROGRAM

# The class itself rather than its `source()`, which would start bash only to look at its version.
SHELLS: dict[str, type[ShellComplete]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@click.command(
    epilog="See docs/reference/shell-completion.md for where each shell looks for such scripts.",
)
@click.argument("shell", type=click.Choice(list(SHELLS)))
def completion(shell: str) -> None:
    """Print the completion script of a shell, for `qwf` and the scripts that stand for one command.

    \b
    bash:  eval "$(qwf completion bash)"            in ~/.bashrc
    zsh:   eval "$(qwf completion zsh)"             in ~/.zshrc, below compinit
    fish:  qwf completion fish | source             in ~/.config/fish/config.fish
    """
    for program in (PROGRAM, *ALIASES):
        # The script names only the program, which knows by itself what its words are.
        script = SHELLS[shell](cli, {}, program, COMPLETION_VARIABLE)
        click.echo(ShellComplete.source(script))
