"""The line of the test run's header: which Postgres the tests use, or would use if one wanted it.

Every pytest run of a host app prints it, so nothing is started and no named server is connected to; the
driver is imported only where one is named, to keep its password off the screen.
"""

from __future__ import annotations

from pathlib import Path

from queue_workflows.db.embedded.binaries import find_binaries
from queue_workflows.db.embedded.home import FALLBACK
from queue_workflows.errors import QwfError
from queue_workflows.testing.choice import HOW_TO_GET_ONE, Choice


def describe(choice: Choice) -> str:
    """One line, without starting or asking anything."""
    why = f" ({'; '.join(choice.passed_over)})" if choice.passed_over else ""
    try:
        if choice.kind == "url":
            from queue_workflows.testing.servers import describe_named

            return describe_named(choice)
        if choice.kind == "embedded":
            found = find_binaries(Path(choice.detail) if choice.detail else None, None, FALLBACK)
            return f"PostgreSQL {found.version} embedded, from {choice.detail or choice.source}{why}"
    except QwfError as error:
        return f"no usable PostgreSQL from {choice.source}: {error}"
    if choice.kind == "container":
        return f"PostgreSQL in a container, {choice.detail}{why}"
    return f"no PostgreSQL{why}; {HOW_TO_GET_ONE}"
