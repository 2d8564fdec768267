"""The roles that this version does not have: their names are taken, and say so honestly."""

from __future__ import annotations

import click

from queue_workflows.errors import ConfigurationError


def _not_yet(role: str) -> click.Command:
    def refuse(**_arguments: object) -> None:
        raise ConfigurationError(
            f"`qwf {role}` is not part of this version yet",
            advice="this version enqueues jobs and works on them with `qwf worker`",
        )

    return click.Command(
        role,
        callback=refuse,
        # Whatever options the role will take, the answer is the same, not a complaint about an option.
        params=[click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED)],
        context_settings={"ignore_unknown_options": True},
        help=f"Run the {role}: not part of this version yet, ends with exit status 78.",
    )


scheduler = _not_yet("scheduler")
