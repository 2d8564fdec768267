"""`manage.py qwf …`: the command line `qwf` in this project, with all of its options and exit codes."""

from __future__ import annotations

import os
import sys
from argparse import REMAINDER
from collections.abc import Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from queue_workflows.django import wiring


class Command(BaseCommand):  # type: ignore[misc] # Django has no types
    """What stands behind `qwf` is for that alone; `manage.py`'s own options go before it, or not at all."""

    help = "Run the engine: workers, migrations, the queue. `manage.py qwf --help` lists what there is."
    requires_system_checks: Sequence[str] = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """From a shell: this process is `qwf`, and ends as it does."""
        from queue_workflows.cli.main import main

        name_the_project()
        sys.argv = ["qwf", *argv[2:]]
        main()

    def add_arguments(self, parser: CommandParser) -> None:
        """All that `call_command` was given; the name `args` is Django's."""
        parser.add_argument("args", nargs=REMAINDER)

    def handle(self, *args: str, **_options: Any) -> None:
        """From `call_command("qwf", "db", "check")`; what does not end with 0 is a CommandError."""
        from queue_workflows.cli.main import run

        name_the_project()
        if status := run(args):
            raise CommandError(f"qwf {' '.join(args)} ended with {status}", returncode=status)


def name_the_project() -> None:
    """Have the processes that are started from here, and this one, know the project."""
    os.environ.setdefault("QWF_APP", wiring.__name__)
