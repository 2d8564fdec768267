"""`python -m queue_workflows.claim_worker` is `qwf worker`; `main` is for a process wired by itself."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

from queue_workflows.cli.entry_points import claim_worker


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Be this role until it is told to stop, and end the process with its status."""
    if arguments is not None:
        sys.argv[1:] = arguments
    claim_worker()


if __name__ == "__main__":
    main()
