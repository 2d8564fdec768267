"""A network of its own for some processes, with one link to this machine that can be taken down."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import time
from typing import Self

from support.suite.missing import missing

IP = shutil.which("ip", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
_numbers = itertools.count(os.getpid() % 200)


class Rack:
    """Hosts behind one switch: what is begun with `prefix` reaches this machine by `address` alone."""

    def __init__(self) -> None:
        if IP is None or shutil.which("unshare") is None or os.geteuid() != 0:
            missing("network namespaces need root and iproute2")
        number = next(_numbers) % 250
        self._link = f"qwfrack{os.getpid() % 10_000}"
        self.address, inside = f"10.213.{number}.1", f"10.213.{number}.2"
        # It holds the namespace, and the link goes with it.
        self._holder = subprocess.Popen(
            ["unshare", "--net", "--kill-child", "sleep", "infinity"], stdout=subprocess.DEVNULL
        )
        try:
            self._until_apart()
            self._ip("link", "add", self._link, "type", "veth", "peer", "name", "up0", "netns", self._pid)
            self._ip("addr", "add", f"{self.address}/30", "dev", self._link)
            self._ip("link", "set", self._link, "up")
            for command in (
                ("addr", "add", f"{inside}/30", "dev", "up0"),
                ("link", "set", "up0", "up"),
                ("link", "set", "lo", "up"),
            ):
                subprocess.run([*self.prefix, str(IP), *command], check=True, capture_output=True)
        except BaseException:
            self.close()
            raise

    @property
    def _pid(self) -> str:
        return str(self._holder.pid)

    @property
    def prefix(self) -> tuple[str, ...]:
        """What a command is begun with to be in the rack."""
        return ("nsenter", "--target", self._pid, "--net")

    def cut(self) -> None:
        """Nothing passes any more, either way, and nobody is told."""
        self._ip("link", "set", self._link, "down")

    def heal(self) -> None:
        """All passes again."""
        self._ip("link", "set", self._link, "up")

    def close(self) -> None:
        """End the network; what lives in it is the test's to end."""
        self._holder.kill()
        self._holder.wait(60)
        subprocess.run([str(IP), "link", "del", self._link], capture_output=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _until_apart(self) -> None:
        deadline = time.monotonic() + 30
        while os.readlink(f"/proc/{self._pid}/ns/net") == os.readlink("/proc/self/ns/net"):
            assert self._holder.poll() is None, "unshare ended"
            assert time.monotonic() < deadline, "no network of its own came about"
            time.sleep(0.01)

    def _ip(self, *arguments: str) -> None:
        done = subprocess.run([str(IP), *arguments], capture_output=True, text=True, check=False)
        if done.returncode and "Operation not" in done.stderr:
            missing(f"network namespaces are not allowed here: {done.stderr.strip()}")
        assert done.returncode == 0, done.stderr
