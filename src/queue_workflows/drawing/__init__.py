"""Runs, hardware and spans of time as lines of text, for a terminal and for a page.

`run` draws a run's nodes with the `rails` between them and `fold` puts equal ones together; `timeline`
draws when each ran, `changes` what has changed since the last look, `hardware` a machine's bars. `terminal`
knows what a terminal can show, and `durations` says and reads spans of time. Begin with `run`."""
