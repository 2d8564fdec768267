"""Connections to the one database: found, checked, pinned and pooled, each use in one place.

`dsn` reads what was given, `route` finds the way and the proxies on it (`proxies`), `pins` is what every
session is set to, and `engine` has the pools. `failures` says what a driver's complaint means, `exhaustion`
and `descriptors` whether this process itself is the cause. A connection that never blocks is
`bounded_wire`, one thread's own is `kept_line`, one that may be given up is `asking_connection`. Begin with
`engine`."""
