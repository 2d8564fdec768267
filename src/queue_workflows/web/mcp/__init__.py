"""The questions of the page as tools of the Model Context Protocol, for programs that ask on a user's behalf.

    program ── tools/call ── arguments fit? ── authorize as for the page ── the page's own look ──> its JSON,
                                                                            redacted, and cut to a size

`tools` lists what can be asked and which page answers; `tool_calls` answers, and `act_calls` does what was
allowed by name. `server` says it in the protocol, `stdio` and `endpoint` carry it. Begin with `tools`. It
needs the extra `queue-workflows[mcp]`.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from queue_workflows.errors import ConfigurationError

__all__ = ["check_installed"]

_NEEDED: Final = ("mcp", "starlette", "jinja2")


def check_installed() -> None:
    """Say what to install, if the extra is not."""
    if any(find_spec(name) is None for name in _NEEDED):
        raise ConfigurationError(
            "the Model Context Protocol's SDK is not installed",
            advice="install it with: pip install 'queue-workflows[mcp]'",
        )
