"""What lies in the directories of hooks, before anything of it runs.

`discovery` finds the plugins and their hook scripts by name, `hooks_file` reads what a directory says of all
its plugins, `needs` says which programs a plugin asks for, and `compile` checks a whole directory for
`qwf hooks`. `cache` keeps what was read until a file has changed. A plugin's settings are read by
`hooks/plugin_config`. Begin with `discovery`."""
