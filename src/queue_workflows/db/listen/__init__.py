"""LISTEN: how a loop is woken by a NOTIFY, and what it does where that cannot be.

`listener` is the loop's side, `join_thread` connects for it, so that no loop waits for a server. Begin with
`listener`."""
