"""What revisions do to tables that are in use: each step is short, and can be begun anew.

`indexes`, `checks`, `columns` and `refusing_triggers` are called by revisions alone. Begin with `indexes`."""
