"""A proxy between roles and the server that delays, swallows, cuts, refuses, doubles and reorders.

It has one port for each role, so that a fault may befall one role or all, and understands as much of the
protocol as it takes to say when a statement is whole and when its answer is: a cut can come before the server
has it, after it has it, and after it has committed and before anybody was told.
"""

from __future__ import annotations

import random
import selectors
import socket
import struct
import threading
import time
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

_TICK_S: Final = 0.02
_LINGER_S: Final = 0.4


@dataclass
class Faults:
    """What befalls the connections of a role at this moment."""

    swallow: bool = False
    refuse: bool = False
    delay_s: float = 0.0
    # New connections wait for a random part of so long, so that they overtake one another.
    reorder_s: float = 0.0
    # Each connection is opened at the server twice; the second one is nobody's.
    double: bool = False
    # Only so many bytes of each chunk are passed on at a time.
    trickle: int = 0
    # After so many statements more, at this moment: unsent, unanswered, unread; 0 for never.
    cut_after: int = 0
    cut_at: str = "unread"
    # How often that happens before it is over.
    cuts: int = 0


class Scanner:
    """Counts the messages of some kinds in one direction of a connection."""

    def __init__(self, kinds: bytes, *, has_startup: bool) -> None:
        self._kinds = kinds
        self._buffer = bytearray()
        self._skip = 0
        self._startup = has_startup

    def feed(self, data: bytes) -> int:
        """How many messages of those kinds ended or began in this chunk."""
        self._buffer += data
        found = 0
        while True:
            if self._skip:
                taken = min(self._skip, len(self._buffer))
                del self._buffer[:taken]
                self._skip -= taken
                if self._skip:
                    return found
            if self._startup:
                if len(self._buffer) < 4:
                    return found
                self._skip, self._startup = struct.unpack("!i", self._buffer[:4])[0], False
                continue
            if len(self._buffer) < 5:
                return found
            found += self._buffer[0] in self._kinds
            self._skip = struct.unpack("!i", self._buffer[1:5])[0] + 1


@dataclass(eq=False)
class _Link:
    """One connection through the proxy."""

    role: str
    client: socket.socket
    server: socket.socket
    asked: Scanner = field(default_factory=lambda: Scanner(b"SQ", has_startup=True))
    answered: Scanner = field(default_factory=lambda: Scanner(b"Z", has_startup=False))
    # Bytes on their way: when they may go on, and where to.
    late: deque[tuple[float, socket.socket, bytes]] = field(default_factory=deque)
    # Its next answer is for nobody: the connection is cut when that has come.
    is_doomed: bool = False
    ghost: socket.socket | None = None


class Proxy:
    """Listens on loopback in front of the server's socket; `port` names the port of a role."""

    def __init__(self, upstream: str, *, seed: int) -> None:
        self.upstream = upstream
        self._random = random.Random(seed)
        self._selector = selectors.DefaultSelector()
        self._listeners: dict[str, socket.socket] = {}
        self._links: set[_Link] = set()
        self._of: dict[socket.socket, _Link] = {}
        self._waiting: list[tuple[float, str, socket.socket]] = []
        self._lingering: list[tuple[float, socket.socket]] = []
        self._lock = threading.RLock()
        self._ended = False
        self.faults: dict[str, Faults] = {}
        self.did: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def port(self, role: str) -> int:
        """The port that this role connects to."""
        with self._lock:
            if role not in self._listeners:
                listener = socket.create_server(("127.0.0.1", 0), backlog=64)
                listener.setblocking(False)
                self._listeners[role] = listener
                self.faults[role] = Faults()
                self._selector.register(listener, selectors.EVENT_READ, role)
            return int(self._listeners[role].getsockname()[1])

    def fault(self, role: str, **what: Any) -> None:
        """From now on this befalls the role, or every role where that is `*`."""
        with self._lock:
            for name, faults in self.faults.items():
                if role in ("*", name):
                    was_swallowing = faults.swallow
                    for key, value in what.items():
                        setattr(faults, key, value)
                    if was_swallowing and not faults.swallow:
                        self.cut(name)

    def cut(self, role: str) -> None:
        """Close its connections, as a restarted proxy does."""
        with self._lock:
            for link in list(self._links):
                if role in ("*", link.role):
                    self._drop(link, "cut")

    def heal(self) -> None:
        """Pass everything on again; connections that lost bytes are cut, for nothing can mend them."""
        with self._lock:
            for name, faults in self.faults.items():
                lost = faults.swallow
                self.faults[name] = Faults()
                if lost:
                    self.cut(name)

    def forget(self) -> None:
        """Close everything of a history that is over."""
        with self._lock:
            self.cut("*")
            for _, _, client in self._waiting:
                client.close()
            self._waiting.clear()
            for listener in self._listeners.values():
                self._selector.unregister(listener)
                listener.close()
            self._listeners.clear()
            self.faults.clear()
            self.did.clear()

    def close(self) -> None:
        """End it."""
        self._ended = True
        self._thread.join(10)
        self.forget()
        self._selector.close()

    def _run(self) -> None:
        while not self._ended:
            with self._lock:
                wait = (
                    _TICK_S
                    if self._waiting or self._lingering or any(one.late for one in self._links)
                    else 0.1
                )
            events = self._selector.select(wait)
            with self._lock:
                for key, _ in events:
                    if isinstance(key.data, str):
                        self._accept(key.fileobj, key.data)  # type: ignore[arg-type]
                    else:
                        self._forward(key.fileobj)  # type: ignore[arg-type]
                self._tend(time.monotonic())

    def _tend(self, now: float) -> None:
        for one in [each for each in self._waiting if each[0] <= now]:
            self._waiting.remove(one)
            self._open(one[1], one[2])
        for one in [each for each in self._lingering if each[0] <= now]:
            self._lingering.remove(one)
            one[1].close()
        for link in [each for each in self._links if each.late]:
            while link.late and link.late[0][0] <= now:
                _, target, data = link.late.popleft()
                if not self._send(link, target, data):
                    break

    def _accept(self, listener: socket.socket, role: str) -> None:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        faults = self.faults[role]
        if faults.refuse:
            self.did["connections refused"] += 1
            client.close()
        elif faults.reorder_s:
            self.did["connections reordered"] += 1
            until = time.monotonic() + self._random.uniform(0, faults.reorder_s)
            self._waiting.append((until, role, client))
        else:
            self._open(role, client)

    def _open(self, role: str, client: socket.socket) -> None:
        try:
            server = self._connect()
        except OSError:
            client.close()
            return
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = _Link(role, client, server)
        if self.faults[role].double:
            with suppress(OSError):
                link.ghost = self._connect()
                self.did["connections doubled"] += 1
        self._links.add(link)
        for end in (client, server):
            self._of[end] = link
            self._selector.register(end, selectors.EVENT_READ)

    def _connect(self) -> socket.socket:
        server = socket.socket(socket.AF_UNIX)
        server.connect(self.upstream)
        return server

    def _forward(self, source: socket.socket) -> None:
        link = self._of.get(source)
        if link is None:
            return
        try:
            data = source.recv(65536)
        except OSError:
            data = b""
        if not data:
            self._drop(link, "")
            return
        faults = self.faults[link.role]
        if faults.swallow:
            self.did["chunks swallowed"] += 1
        elif source is link.client:
            self._ask(link, faults, data)
        else:
            self._answer(link, faults, data)

    def _ask(self, link: _Link, faults: Faults, data: bytes) -> None:
        statements = link.asked.feed(data)
        if link.ghost is not None:
            # It learns of the startup alone: a session that begins and never asks for anything.
            with suppress(OSError):
                link.ghost.sendall(data)
            self._lingering.append((time.monotonic() + _LINGER_S, link.ghost))
            link.ghost = None
        if faults.cut_after and statements:
            faults.cut_after = max(0, faults.cut_after - statements)
            if faults.cut_after == 0:
                self._cut_at(link, faults, data)
                return
        self._pass(link, faults, link.server, data)

    def _cut_at(self, link: _Link, faults: Faults, data: bytes) -> None:
        faults.cuts -= 1
        if faults.cuts > 0:
            faults.cut_after = self._random.randint(1, 6)
        self.did[f"statements cut {faults.cut_at}"] += 1
        if faults.cut_at == "unsent":
            self._drop(link, "")
        elif faults.cut_at == "unanswered":
            with suppress(OSError):
                link.server.sendall(data)
            # The server goes on for a while with a client that is gone: as when a router dies.
            self._drop(link, "", lingers=True)
        else:
            link.is_doomed = True
            with suppress(OSError):
                link.server.sendall(data)

    def _answer(self, link: _Link, faults: Faults, data: bytes) -> None:
        answers = link.answered.feed(data)
        if not link.is_doomed:
            self._pass(link, faults, link.client, data)
        elif answers:
            self._drop(link, "")

    def _pass(self, link: _Link, faults: Faults, target: socket.socket, data: bytes) -> None:
        if not (faults.delay_s or faults.trickle or link.late):
            self._send(link, target, data)
            return
        now = time.monotonic()
        step = faults.trickle or len(data)
        for number, begin in enumerate(range(0, len(data), step)):
            wait = faults.delay_s + (min(number * 0.002, 0.5) if faults.trickle else 0)
            link.late.append((now + wait, target, data[begin : begin + step]))
        self.did["chunks delayed"] += 1

    def _send(self, link: _Link, target: socket.socket, data: bytes) -> bool:
        try:
            target.sendall(data)
        except OSError:
            self._drop(link, "")
            return False
        return True

    def _drop(self, link: _Link, why: str, *, lingers: bool = False) -> None:
        if link not in self._links:
            return
        self._links.remove(link)
        if why:
            self.did[f"connections {why}"] += 1
        link.late.clear()
        for end in (link.client, link.server):
            self._of.pop(end, None)
            self._selector.unregister(end)
        link.client.close()
        if lingers:
            self._lingering.append((time.monotonic() + _LINGER_S, link.server))
        else:
            link.server.close()
