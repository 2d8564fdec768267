"""The programs that plugins need: found on this machine, or installed by the hooks of a provider.

`ensure` holds a program's row while one worker looks for it, `install` runs the providers in their order,
and `providers` are those that ship with the package. Begin with `ensure`."""
