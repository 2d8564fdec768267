"""The operator's page: what `qwf` knows, live, in a browser.

One request goes this way: `app` judges it by the rules in `access`, finds its page in `pages`, and has one of
three reader threads of `database` ask the views that the command line asks; `rendering` makes HTML of what
they say, or JSON, which is what the command prints. `live` sends a page again when it changed. What changes
something goes through the one door in `acts`. Begin to read in `app`. It needs the extra
`queue-workflows[web]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from queue_workflows.web.app import Web, create_app

__all__ = ["Web", "create_app"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from queue_workflows.web import app
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in ("starlette", "jinja2"):
            raise
        from queue_workflows.errors import ConfigurationError

        raise ConfigurationError(
            f"the page needs {missing.name}, which is not installed",
            advice="install it with: pip install 'queue-workflows[web]'",
        ) from missing
    return getattr(app, name)
