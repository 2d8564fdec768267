"""`qwf hooks` and `qwf binaries`: hook scripts and the programs that they need, on the command line.

`hooks` lists the scripts of an event and starts runs of them, `records` prints what a run's scripts have
said, and `binaries` has the programs of plugins installed on this machine. Begin with `hooks`.
"""
