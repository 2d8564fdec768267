"""What a role says of itself on stderr, unless the host app has set up logging of its own."""

from __future__ import annotations

import logging
import time


def log_to_stderr(*, debug: bool = False, handler: logging.Handler | None = None) -> None:
    """One line an event, with UTC time and pid; a host app that set up the root logger keeps that.

    With a handler it goes there instead.
    """
    ours = logging.getLogger("queue_workflows")
    if ours.level == logging.NOTSET:
        ours.setLevel(logging.DEBUG if debug else logging.INFO)
    if logging.getLogger().handlers or ours.handlers:
        return
    formatter = logging.Formatter(
        "%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%SZ"
    )
    formatter.converter = time.gmtime
    handler = handler or logging.StreamHandler()
    handler.setFormatter(formatter)
    ours.addHandler(handler)
