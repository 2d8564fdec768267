"""A real HAProxy before the members of a Patroni, by the file of docs/deploy/patroni."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Self

from support.fleet.parents import dies_with_us
from support.fleet.patroni import EXAMPLE, Member
from support.processes.workers import until
from support.servers.cluster import free_port
from support.suite.missing import missing

PROGRAM = shutil.which("haproxy", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
_SERVER = re.compile(r"^    server (\w+) \w+:5432 check port 8008$", re.MULTILINE)


class HAProxy:
    """One address for whichever member is the primary."""

    def __init__(self, members: list[Member]) -> None:
        if PROGRAM is None:
            missing("haproxy is not installed")
        self.port = free_port()
        self._home = Path(tempfile.mkdtemp(prefix="qwf-haproxy-", dir="/tmp"))
        by_name = {member.name: member for member in members}
        text = EXAMPLE.with_name("haproxy.cfg").read_text(encoding="utf-8")
        assert set(_SERVER.findall(text)) == by_name.keys()

        def at_home(found: re.Match[str]) -> str:
            member = by_name[found[1]]
            return f"    server {member.name} 127.0.0.1:{member.port} check port {member.api}"

        config = self._home / "haproxy.cfg"
        config.write_text(
            _SERVER.sub(at_home, text).replace("bind *:5432", f"bind 127.0.0.1:{self.port}"), encoding="utf-8"
        )
        with (self._home / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [*dies_with_us(), str(PROGRAM), "-db", "-f", str(config)],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        try:
            until(self._answers)
        except BaseException:
            self.close()
            raise

    @property
    def dsn(self) -> str:
        """Of the primary, whichever that is."""
        return f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres connect_timeout=5"

    def _answers(self) -> bool:
        assert self._process.poll() is None, (self._home / "log").read_text(errors="replace")
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True

    def close(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(60)
        shutil.rmtree(self._home, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
