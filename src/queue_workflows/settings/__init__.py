"""Everything that an environment variable or a file can say: the table, and how values are found."""

from queue_workflows.settings.fields import (
    DAY_S,
    Layer,
    Row,
    Settings,
    allowed,
    check_queue_name,
    check_setting_name,
    settings_table,
)
from queue_workflows.settings.load import UnknownVariable, check_overrides, load_settings, unknown_variables

__all__ = [
    "DAY_S",
    "Layer",
    "Row",
    "Settings",
    "UnknownVariable",
    "allowed",
    "check_overrides",
    "check_queue_name",
    "check_setting_name",
    "load_settings",
    "settings_table",
    "unknown_variables",
]
