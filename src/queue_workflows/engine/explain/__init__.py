"""Why a job or a run does not go on, in sentences: pure, from what `repositories/reports` has read.

Each file knows one kind of reason: `job` and `run` put them together, `locks`, `models` and `hosts` know what
is particular to those, and `history` says what has happened until now. Begin with `job`. What is over is told
by `wait_bar`, which parts a job's life by what it was at; `time_spent` and `queue_waits` sum that up, and
read what other jobs of the queue were at.
"""
