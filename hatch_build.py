"""Build hook: a wheel carries the migration chains, an editable install reads them from the checkout."""

from __future__ import annotations

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ChainsInWheel(BuildHookInterface):  # type: ignore[type-arg]
    """A static force-include would copy the chains on an editable install too, and go stale there."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "standard":
            build_data["force_include"]["alembic"] = "queue_workflows/_alembic"
