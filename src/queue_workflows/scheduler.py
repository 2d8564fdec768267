"""`python -m queue_workflows.scheduler` is `qwf scheduler`; `main` is for a process wired by itself."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

from queue_workflows.cli.entry_points import scheduler


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Be this role until it is told to stop, and end the process with its status."""
    if arguments is not None:
        sys.argv[1:] = arguments
    scheduler()


if __name__ == "__main__":
    main()
