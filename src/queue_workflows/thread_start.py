"""Starting a thread without waiting for its first step.

`threading.Thread.start` waits until the thread runs, and for ever if it ends before that: without memory for
its first frame, or by an exception that somebody sends to the thread that starts it, for until its first step
a new thread bears the number of that one. Nobody is told. Here nothing waits. Where it matters that the work
has begun, the work says so.
"""

from __future__ import annotations

import _thread
import sys
import threading
from collections.abc import Callable


def start_thread(work: Callable[[], None], name: str) -> None:
    """Have a thread do this work; what it raises `threading.excepthook` is told, as of any thread.

    No end of the process waits for it.
    """
    # As `Thread` does for debuggers and profilers.
    trace, profile = threading.gettrace(), threading.getprofile()

    def run() -> None:
        thread = threading.current_thread()
        thread.name = name
        try:
            if trace is not None:
                sys.settrace(trace)
            if profile is not None:
                sys.setprofile(profile)
            work()
        except BaseException as raised:
            said = (type(raised), raised, raised.__traceback__, thread)
            threading.excepthook(threading.ExceptHookArgs(said))

    _thread.start_new_thread(run, ())
