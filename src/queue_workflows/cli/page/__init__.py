"""The operator's page as commands: `qwf web` serves it, `qwf mcp` answers a program's questions the same way.

Begin with `web`.
"""
