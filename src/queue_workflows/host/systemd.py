"""What a service manager that asked for it is told: that we are ready, that we live, that we stop.

The protocol is a datagram to the socket that NOTIFY_SOCKET names; podman speaks it too. Without the variable
nobody asked, and nothing is sent.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Self


class ServiceManager:
    """The line to the service manager; `watchdog_s` is how often it wants to hear of us, or None."""

    def __init__(self, address: str | None, watchdog_s: float | None = None) -> None:
        self._address = address
        self.watchdog_s = watchdog_s

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str] = os.environ) -> Self:
        """Take what our service manager said out of the environment: it is not meant for our children."""
        address = environ.pop("NOTIFY_SOCKET", "")
        microseconds = environ.pop("WATCHDOG_USEC", "")
        meant = environ.pop("WATCHDOG_PID", "") or str(os.getpid())
        asked = address and microseconds.isdigit() and meant == str(os.getpid())
        # Twice as often as it is asked for, as the manual advises.
        return cls(address or None, int(microseconds) / 2_000_000 if asked else None)

    def tell(self, *lines: str) -> None:
        """Send `NAME=value` lines; a manager that does not listen is no trouble of ours."""
        if self._address is None:
            return
        # A name in the abstract namespace begins with a zero byte, written as `@`.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line, suppress(OSError):
            line.setblocking(False)
            line.sendto("\n".join(lines).encode(), address)
