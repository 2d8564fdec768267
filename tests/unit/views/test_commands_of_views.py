"""Each view names the command that shows the same, quoted so that it can be pasted into a shell."""

from __future__ import annotations

import shlex

import pytest

from queue_workflows.cli.main import ENTRIES
from queue_workflows.views import doctor, models, overview
from queue_workflows.views.hosts import hardware, host
from queue_workflows.views.limits import listing as limits
from queue_workflows.views.limits import rates
from queue_workflows.views.workers import listing, worker

COMMANDS = {
    doctor.command_of(): ["doctor"],
    models.command_of(): ["models"],
    overview.command_of(): ["overview"],
    hardware.command_of(): ["hw"],
    hardware.command_of(host="h1", everyone=True): ["hw", "--host", "h1", "--all"],
    host.command_of("h1"): ["workers", "host", "h1"],
    listing.command_of(): ["workers", "list"],
    listing.command_of(queue="fetch"): ["workers", "list", "--queue", "fetch"],
    worker.command_of("h1:fetch:a b"): ["workers", "show", "h1:fetch:a b"],
    limits.command_of(): ["limits", "list"],
    limits.command_of(["host:*"]): ["limits", "list", "host:*"],
    limits.command_of(limit=5, after="it's"): ["limits", "list", "--limit", "5", "--after", "it's"],
    limits.command_of_limit("host:*"): ["limits", "show", "host:*"],
    rates.command_of(["a"], limit=5): ["limits", "list", "--rates", "a", "--limit", "5"],
    rates.command_of(after="b"): ["limits", "list", "--rates", "--after", "b"],
}


@pytest.mark.parametrize(("command", "words"), COMMANDS.items())
def test_the_command_has_these_words(command: str, words: list[str]) -> None:
    """Whatever is in a name."""
    assert shlex.split(command) == ["qwf", *words]
    assert words[0] in ENTRIES
