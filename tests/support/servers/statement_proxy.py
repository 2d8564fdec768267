"""A proxy that understands Postgres's protocol well enough to hold up one statement at a chosen moment.

    worker ──Parse Bind Execute Sync──> proxy ──> server
                                          │
       UNSENT        nothing of the statement has reached the server
       UNCOMMITTED   the server has run it, its transaction is open: all but the Sync was passed on
       UNREAD        it is committed, and the answer has not reached the worker

What is held up stays so until the test delivers or drops it, whether the worker still lives or not.
"""

from __future__ import annotations

import re
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Self

from psycopg.conninfo import conninfo_to_dict, make_conninfo

FLUSH = b"H\x00\x00\x00\x04"
# What belongs to a statement and is kept together until its Sync.
PARTS = b"PBDEC"


class Moment(Enum):
    """Where a statement is held up."""

    UNSENT = "unsent"
    UNCOMMITTED = "uncommitted"
    UNREAD = "unread"


@dataclass
class Trap:
    """Holds up the next of these statements."""

    statements: frozenset[str]
    moment: Moment
    _sprung: threading.Event = field(default_factory=threading.Event)
    _decided: threading.Event = field(default_factory=threading.Event)
    _delivers: bool = False
    _hang_up: Callable[[], None] | None = None
    _caught: frozenset[str] = frozenset()

    def sprung(self, within_s: float = 150) -> None:
        """Wait until a statement is held up."""
        assert self._sprung.wait(within_s), f"none of them came by: {self.statements}"

    @property
    def has_sprung(self) -> bool:
        return self._sprung.is_set()

    def has_caught(self, *statements: str) -> bool:
        """Whether what it holds up is one of these."""
        return not self._caught.isdisjoint(map(_without_parameters, statements))

    def deliver(self) -> None:
        """Let what is held up arrive after all."""
        self._delivers = True
        self._decided.set()

    def drop(self) -> None:
        """Cut the connection; what did not arrive never will."""
        self._decided.set()

    def cut_off(self) -> None:
        """Let the asker lose its line, while what it asked is still on the way."""
        assert self._hang_up is not None, "nothing is held up"
        self._hang_up()

    def caught(self, statements: set[str]) -> None:
        """Called by the connection: what it is about to hold up."""
        self._caught = frozenset(statements)

    def hold(self, hang_up: Callable[[], None]) -> bool:
        """Called by the connection: tell the test, and wait for its word; whether to deliver."""
        self._hang_up = hang_up
        self._sprung.set()
        self._decided.wait()
        return self._delivers


class _Line:
    """One connection through the proxy: a thread for each direction."""

    def __init__(self, proxy: StatementProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy, self._client, self._server = proxy, client, server
        self._texts: dict[bytes, str] = {}
        # What the statements of the batch say that is being collected: one, or those of a pipeline.
        self._bound: list[str] = []
        self._answers: list[bytes] | None = None
        self._awaited: dict[bytes, threading.Event] = {}
        self.threads = [threading.Thread(target=each, daemon=True) for each in (self._ask, self._answer)]

    def close(self) -> None:
        for end in (self._client, self._server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _hang_up(self) -> None:
        with suppress(OSError):
            self._client.shutdown(socket.SHUT_RDWR)

    def _ask(self) -> None:
        with suppress(OSError, EOFError):
            self._pass_on(self._startup())
            batch: list[bytes] = []
            while True:
                kind, body, raw = _message(self._client)
                self._note(kind, body)
                batch.append(raw)
                if kind[0] in PARTS:
                    continue
                trap = self._proxy.trap_for(self._bound)
                if trap is None:
                    self._pass_on(b"".join(batch))
                elif not self._held(trap, batch):
                    break
                batch, self._bound = [], []
        self.close()

    def _pass_on(self, data: bytes) -> None:
        if not self._proxy.swallowing:
            self._server.sendall(data)

    def _startup(self) -> bytes:
        """The first message, which has no kind."""
        head = _exactly(self._client, 4)
        return head + _exactly(self._client, struct.unpack("!i", head)[0] - 4)

    def _note(self, kind: bytes, body: bytes) -> None:
        """Remember which text a prepared statement has, and which is being executed; a plain one is both."""
        if kind == b"P":
            name, text, _ = body.split(b"\0", 2)
            self._texts[name] = text.decode()
        elif kind == b"B":
            _, name, _ = body.split(b"\0", 2)
            self._bound.append(self._texts.get(name, ""))
        elif kind == b"Q":
            self._bound = [body[:-1].decode()]

    def _held(self, trap: Trap, batch: list[bytes]) -> bool:
        """Spring the trap at its moment; whether the line goes on afterwards."""
        if trap.moment is Moment.UNSENT:
            if not trap.hold(self._hang_up):
                return False
            self._server.sendall(b"".join(batch))
            return True
        self._answers = []
        if trap.moment is Moment.UNCOMMITTED:
            self._send_and_await([*batch[:-1], FLUSH], b"C")
            if not trap.hold(self._hang_up):
                return False
            self._send_and_await(batch[-1:], b"Z")
        else:
            # A pipeline asks for answers without ending anything; the first of them is as good as any.
            self._send_and_await(batch, b"C" if batch[-1] == FLUSH else b"Z")
            if not trap.hold(self._hang_up):
                return False
        answers, self._answers = self._answers, None
        # The worker may be dead, and what it asked has reached the server all the same.
        with suppress(OSError):
            self._client.sendall(b"".join(answers))
        return True

    def _send_and_await(self, messages: list[bytes], kind: bytes) -> None:
        answered = self._awaited[kind] = threading.Event()
        self._server.sendall(b"".join(messages))
        answered.wait()

    def _answer(self) -> None:
        with suppress(OSError, EOFError):
            while True:
                kind, _, raw = _message(self._server)
                kept = self._answers
                if kept is not None:
                    kept.append(raw)
                elif not self._proxy.swallowing:
                    with suppress(OSError):
                        self._client.sendall(raw)
                if kind in self._awaited:
                    self._awaited.pop(kind).set()
        self.close()


class StatementProxy:
    """Listens on loopback in front of the server of `dsn`."""

    def __init__(self, dsn: str) -> None:
        self._params = conninfo_to_dict(dsn)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._traps: list[Trap] = []
        self._set: list[Trap] = []
        self._passed: Counter[str] = Counter()
        self._lines: list[_Line] = []
        self._refusing = False
        self.swallowing = False
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def dsn(self) -> str:
        """The same database, through here."""
        port = self._listening.getsockname()[1]
        return make_conninfo(
            **{**self._params, "host": "127.0.0.1", "port": port},
            sslmode="disable",
            gssencmode="disable",
        )

    def trap(self, *statements: str, moment: Moment) -> Trap:
        """Set a trap for the next of these statements of the package."""
        trap = Trap(frozenset(map(_without_parameters, statements)), moment)
        with self._lock:
            self._traps.append(trap)
            self._set.append(trap)
        return trap

    def trap_for(self, texts: list[str]) -> Trap | None:
        """The trap that one of these statements walks into, taken away."""
        plain = set(map(_without_parameters, texts))
        with self._lock:
            self._passed.update(plain)
            for trap in self._traps:
                if plain & trap.statements:
                    trap.caught(plain)
                    self._traps.remove(trap)
                    return trap
        return None

    def passed(self, *statements: str) -> int:
        """How often these statements have come by."""
        with self._lock:
            return sum(self._passed[_without_parameters(each)] for each in statements)

    def swallow(self) -> None:
        """From now on a black hole that acknowledges: what arrives is taken in and passed on to nobody."""
        self.swallowing = True

    def recover(self) -> None:
        """Pass on again; lines that lost bytes meanwhile are cut, for nothing can mend them."""
        with self._lock:
            lines, self._lines = self._lines, []
        for line in lines:
            line.close()
        self.swallowing = False

    def refuse(self, refusing: bool = True) -> None:
        """Take no further connection, or take them again; those that are there stay."""
        self._refusing = refusing

    def close(self) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(10)
        for trap in self._set:
            trap.drop()
        self.recover()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                if self._refusing:
                    client.close()
                    continue
                # An answer is passed on in its messages: the last may not wait for word that the first came.
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                line = _Line(self, client, self._connect())
                with self._lock:
                    self._lines.append(line)
                for thread in line.threads:
                    thread.start()

    def _connect(self) -> socket.socket:
        host, port = str(self._params.get("host") or "localhost"), int(self._params.get("port") or 5432)
        if not host.startswith("/"):
            return socket.create_connection((host, port))
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{host}/.s.PGSQL.{port}")
        return server


def _without_parameters(statement: str) -> str:
    """The same text for a constant of ours and for what the driver makes of it."""
    return re.sub(r"%\(\w+\)[sb]|\$\d+", "?", statement).replace("%%", "%").strip()


def _message(source: socket.socket) -> tuple[bytes, bytes, bytes]:
    """The next message: its kind, its body, and all of it."""
    head = _exactly(source, 5)
    body = _exactly(source, struct.unpack("!i", head[1:])[0] - 4)
    return head[:1], body, head + body


def _exactly(source: socket.socket, count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        part = source.recv(count - len(found))
        if not part:
            raise EOFError
        found += part
    return bytes(found)
