"""A thread that finds no memory for its first step ends without a word; no job waits for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

# In processes of their own, forked from one: between a limit that refuses a thread's stack and one that has
# room for all it needs are a few pages in which the thread is made, and ends before its first step.
SCRIPT = """
import logging, os, resource, sys, time
from types import SimpleNamespace
from queue_workflows.roles.worker.concurrent.job_threads import JobThreads

PAGE, STACK, REFUSED = resource.getpagesize(), 8 << 20, 3
logging.basicConfig()

def held(number):
    job = SimpleNamespace(id=number)
    return SimpleNamespace(job=job, ended=float("inf"), started=0.0, is_ending=False, is_async=False)

def try_with(pages):
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    threads = JobThreads(2, perform=lambda one: None, ring=lambda: None)
    threads.put([held(1)])
    while not threads._ended:
        time.sleep(0.01)
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * PAGE
    job = held(2)
    resource.setrlimit(resource.RLIMIT_AS, (used + STACK + pages * PAGE, hard))
    try:
        threads.put([job])
        # It has begun, or is gone.
        while threads._starting and len(os.listdir("/proc/self/task")) > 2:
            time.sleep(0.01)
    except (RuntimeError, MemoryError):
        os._exit(REFUSED)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    ended_of(threads, 2)
    os._exit(0)

def ended_of(threads, number):
    ended = []
    while len(ended) < number or threads._starting:
        ended += threads.ended()
        time.sleep(0.01)
    return ended

resource.setrlimit(resource.RLIMIT_STACK, (STACK, resource.getrlimit(resource.RLIMIT_STACK)[1]))
for pages in range(12):
    sys.stdout.flush()
    if not (child := os.fork()):
        try_with(pages)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's")
def test_a_thread_that_had_no_memory_to_begin_in_is_started_anew():
    """The main thread does not wait for it, and all that was put is run."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=300
    )
    assert set(done.stdout.split()) <= {"0", "3"}, done.stderr
    assert "MemoryError" in done.stderr, "no thread was without memory"
    assert "did not begin: it is started anew" in done.stderr
