"""A worker of the tests' own: an incarnation that a supervisor started, which does the one thing it is told.

It beats and claims through the real repositories; what it says on stdout is what the tests wait for.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

import psycopg

from queue_workflows.host.processes import last_word
from queue_workflows.host.processes.harden import ASKED
from queue_workflows.host.processes.tree_by_mark import die_with_parent, take_launcher_pid
from queue_workflows.repositories import HeartbeatRepository, IngestJobRepository
from queue_workflows.roles.identity import Identity

BEAT_EVERY_S = 0.1


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


class StandIn:
    """One incarnation."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.identity = Identity.take(options.host_label, options.queue)
        self.stop = threading.Event()

    def connect(self) -> psycopg.Connection:
        """Through whatever the test put in between, patiently."""
        while True:
            with suppress(psycopg.OperationalError):
                return psycopg.connect(os.environ["QWF_DB_URL"], autocommit=True, connect_timeout=1)
            time.sleep(0.1)

    def beat(self, connection: psycopg.Connection) -> None:
        me = self.identity
        HeartbeatRepository(connection).beat(
            me.worker_id, host_label=me.host_label, queue=me.queue, pid=me.pid, state="busy"
        )

    def keep_beating(self) -> None:
        connection = self.connect()
        while not self.stop.wait(BEAT_EVERY_S):
            try:
                self.beat(connection)
            except psycopg.OperationalError:
                connection = self.connect()

    def run(self) -> int:
        act = self.options.act
        if act.startswith("exit:"):
            say("ending", self.identity.worker_id)
            return int(act.removeprefix("exit:"))
        if act == "mute":
            say("mute", self.identity.worker_id, os.getpid())
            return self.until_stopped()
        with self.connect() as connection:
            self.beat(connection)
            if act != "frozen":
                threading.Thread(target=self.keep_beating, daemon=True).start()
            if act == "daemon":
                self.start_daemon()
            if self.options.hold:
                self.hold(connection)
        say("ready", self.identity.worker_id, os.getpid())
        return self.until_stopped()

    def hold(self, connection: psycopg.Connection) -> None:
        jobs = IngestJobRepository(connection).claim(
            self.options.queue, worker_id=self.identity.worker_id, lease_s=3600, alone=True
        )
        say("holds", *(job.id for job in jobs), "as", self.identity.worker_id)

    def start_daemon(self) -> None:
        """A process of the job's that let go of its parent, its group and its session."""
        text = (
            "import os, time\nreader, writer = os.pipe()\nif os.fork(): os.read(reader, 1), os._exit(0)\n"
            "os.setsid()\nos.write(1, b'daemon %d\\n' % os.getpid())\nos.write(writer, b'.')\ntime.sleep(600)"
        )
        subprocess.run([sys.executable, "-c", text], check=True)

    def until_stopped(self) -> int:
        if self.options.act == "deaf":
            while True:
                signal.pause()
        while not self.stop.wait(1):
            pass
        say("stopping", self.identity.worker_id)
        return 0


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--queue", required=True)
    parser.add_argument("--host-label", required=True)
    parser.add_argument("--act", default="beat")
    parser.add_argument("--hold", action="store_true")
    parser.add_argument("--once", action="store_true")
    worker = StandIn(parser.parse_args())
    for number in (signal.SIGTERM, ASKED):
        if worker.options.act == "deaf":
            signal.signal(number, lambda *_: say("heard", worker.identity.worker_id))
        else:
            signal.signal(number, lambda *_: worker.stop.set())
    if seen := os.environ.get("CUDA_VISIBLE_DEVICES"):
        say(worker.identity.worker_id, "sees", seen)
    if "NOTIFY_SOCKET" in os.environ:
        say("has the socket")
    die_with_parent(take_launcher_pid())
    status = worker.run()
    last_word.own.announce(status)
    return status


if __name__ == "__main__":
    sys.exit(main())
