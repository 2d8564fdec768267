"""When a job or a queue's waiting work will be done, as it is and with another fleet.

`loads` puts a queue as it was read into the form that is played, `changes` are what an operator would change,
`job` is one job's start and end, `drain` a queue's end now and then, and `lines` says all of it in words.
Begin with `drain`.
"""
