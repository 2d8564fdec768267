"""On the import path of a Python process this moves its wall clock, before anything else is imported."""

import os
import time

OFF_BY_S = int(os.environ["CLOCK_IS_OFF_BY_S"])
_true, _true_ns, _true_of = time.time, time.time_ns, time.clock_gettime

time.time = lambda: _true() + OFF_BY_S
time.time_ns = lambda: _true_ns() + OFF_BY_S * 1_000_000_000
time.clock_gettime = lambda clock: _true_of(clock) + (OFF_BY_S if clock == time.CLOCK_REALTIME else 0)
