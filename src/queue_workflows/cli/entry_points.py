"""The console scripts: from the first moment on, an interrupted command says nothing of how it is made."""

from __future__ import annotations

import signal
import sys
from typing import NoReturn


def main() -> NoReturn:
    """The console script `qwf`."""
    _end_silently()
    if sys.argv[1:] == ["--version"]:
        from queue_workflows.cli.version import print_and_exit

        print_and_exit()
    from queue_workflows.cli.main import main as qwf

    qwf()


def orchestrator() -> NoReturn:
    """The console script `queue-orchestrator`: `qwf orchestrator`."""
    _end_silently()
    from queue_workflows.cli.main import orchestrator as named

    named()


def claim_worker() -> NoReturn:
    """The console script `queue-claim-worker`: `qwf worker`."""
    _end_silently()
    from queue_workflows.cli.main import claim_worker as named

    named()


def scheduler() -> NoReturn:
    """The console script `queue-scheduler`: `qwf scheduler`."""
    _end_silently()
    from queue_workflows.cli.main import scheduler as named

    named()


def _end_silently() -> None:
    """Until a command handles Ctrl-C itself it ends at once: there is nothing yet to tell or to undo."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
