"""The programs that plugins need, as found or installed on each machine."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from queue_workflows.repositories.hooks.binaries import BinaryRepository
from queue_workflows.repositories.sql.connection import Handle

if TYPE_CHECKING:
    from queue_workflows.models import Binary

_SHOWN: Final = (
    *("status", "abspath", "version", "sha256", "provider", "bin_providers", "overrides"),
    *("error", "failures", "claimed_by", "retry_at", "updated_at"),
)


def binaries(conn: Handle, *, host_label: str | None = None) -> Sequence[tuple[str, Binary]]:
    """Each program with its machine, of all machines or of one."""
    return BinaryRepository(conn).of_hosts(host_label)


def json_of(found: Iterable[tuple[str, Binary]]) -> list[dict[str, Any]]:
    """What `qwf binaries list --json` prints."""
    return [
        {"host_label": host, "binary": one.name} | {name: getattr(one, name) for name in _SHOWN}
        for host, one in found
    ]


def command_of(*, host_label: str | None = None) -> str:
    """The command that lists them."""
    only = [] if host_label is None else ["--host-label", host_label]
    return shlex.join(["qwf", "binaries", "list", *only])
