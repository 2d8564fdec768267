"""Schedules and their ticks as rows.

`declarations` puts what code declares into force, `schedules` switches and reads them, and `ticks` inserts
the job of a tick and moves the schedule on, in one statement, so that a tick comes once. Begin with `ticks`.
"""
