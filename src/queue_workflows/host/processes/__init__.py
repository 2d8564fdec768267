"""How processes of ours begin, belong together and end.

`launcher` starts them, as PID 1 through `pid1` too; `harden` brings a program that owns something to its end,
whatever ends it; `tree_below` and `tree_by_mark` end all that a process started; `last_word` proves that an
exit status was chosen by our own code. Begin with `launcher`.
"""
