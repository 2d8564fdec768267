"""A network of its own for some processes, with one link to this machine that can be taken down."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import time
from typing import Self

from support.fleet.link import Link
from support.fleet.parents import dies_with_us
from support.suite.missing import missing

IP = shutil.which("ip", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
_numbers = itertools.count(os.getpid())


def may_make_networks() -> bool:
    """Whether this account may give processes a network of their own, as root mostly may."""
    if IP is None:
        missing("iproute2 is not installed")
    try_it = ["unshare", "--net", IP, "link", "add", "one", "type", "veth", "peer", "name", "two"]
    return subprocess.run(try_it, capture_output=True, check=False).returncode == 0


class Namespace:
    """The network, held by a process that sleeps; its link ends with it."""

    def __init__(self) -> None:
        number = next(_numbers)
        self._link = f"qwfrack{number % 10_000_000}"
        network = f"10.213.{number % 250}"
        self.address = f"{network}.1"
        # An hour is longer than any test, where nothing ends it with this process.
        self._holder = subprocess.Popen([*dies_with_us(), "unshare", "--net", "sleep", "3600"])
        # What a command is begun with to be in there.
        self.prefix = ("nsenter", "--target", str(self._holder.pid), "--net")
        try:
            self._until_apart()
            peer = ("peer", "name", "up0", "netns", str(self._holder.pid))
            self._ip("link", "add", self._link, "type", "veth", *peer)
            self._ip("addr", "add", f"{self.address}/30", "dev", self._link)
            self._ip("link", "set", self._link, "up")
            self._ip("addr", "add", f"{network}.2/30", "dev", "up0", prefix=self.prefix)
            for device in ("up0", "lo"):
                self._ip("link", "set", device, "up", prefix=self.prefix)
        except BaseException:
            self.close()
            raise

    def set_link(self, state: str) -> None:
        """`up` or `down`."""
        self._ip("link", "set", self._link, state)

    def close(self) -> None:
        self._holder.kill()
        self._holder.wait(60)
        subprocess.run([str(IP), "link", "del", self._link], capture_output=True, check=False)

    def _until_apart(self) -> None:
        deadline = time.monotonic() + 60
        while os.readlink(f"/proc/{self._holder.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
            assert self._holder.poll() is None, "unshare ended"
            assert time.monotonic() < deadline, "no network of its own came about"
            time.sleep(0.01)

    def _ip(self, *arguments: str, prefix: tuple[str, ...] = ()) -> None:
        command = [*prefix, str(IP), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


class Rack:
    """Hosts behind one switch: what is begun with `prefix` reaches a port of this machine by `address` alone.

    Where no network of its own may be made, a link that can become a black hole takes its place.
    """

    def __init__(self, port: int) -> None:
        self._namespace = Namespace() if may_make_networks() else None
        self._link = None if self._namespace else Link(port)
        self.address = self._namespace.address if self._namespace else "127.0.0.1"
        self.port = self._link.port if self._link else port
        self.prefix = self._namespace.prefix if self._namespace else ()

    def cut(self) -> None:
        """Nothing passes any more, either way, and nobody is told."""
        if self._namespace:
            self._namespace.set_link("down")
        if self._link:
            self._link.pause()

    def heal(self) -> None:
        """All passes again."""
        if self._namespace:
            self._namespace.set_link("up")
        if self._link:
            self._link.resume()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for one in (self._namespace, self._link):
            if one:
                one.close()
