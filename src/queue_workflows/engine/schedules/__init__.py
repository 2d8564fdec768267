"""Jobs by the clock: schedules that a host app declares, and the ticks that they make due.

`declared` and `publish` bring schedules from code into the database, `cron` knows the instants of an
expression in its time zone, and `due_ticks` decides for one schedule which ticks become jobs. It is told the
time. Begin with `due_ticks`.
"""
