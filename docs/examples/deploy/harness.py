"""Outside the queue: `harness.py NAME` owns a server until it, or its shell, ends, or for ten minutes."""

import sys
import threading

import servers

from queue_workflows import HostLock, harden

if __name__ == "__main__":
    name = sys.argv[1]
    harden(deadline_s=600)
    with HostLock(name, deadline_s=600):
        try:
            servers.teardown(name)
            print(servers.deploy(name, f"<h1>{name}</h1>"), flush=True)
            threading.Event().wait()
        finally:
            servers.teardown(name)
