"""The scheduler as a process: inserts the jobs of schedules when their time has come.

`scheduler` is its loop and `process` puts it together. Any number may run at once. What makes a tick due is
decided in `engine/schedules`. Begin with `scheduler`.
"""
