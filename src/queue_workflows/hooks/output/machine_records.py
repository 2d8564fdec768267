"""What hooks report of their machine: facts about it, and programs that they found or installed on it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from queue_workflows.config import HOOKS_QUEUE
from queue_workflows.hooks.files import Digests, digest_of
from queue_workflows.hooks.output.record_types import RecordContext
from queue_workflows.repositories.hooks.binaries import BINARY_MISSING, BinaryRepository, Installed, hold_key
from queue_workflows.repositories.jobs.nodes import NodeJobRepository
from queue_workflows.repositories.workers.machines import MachineRepository

# What handlers of one output know of each other: its `Checksums`.
CHECKSUMS: Final = "checksums"
# Of the programs that an output names, how many bytes are read.
MOST_SUMMED: Final = 1 << 30


def report_machine(record: dict[str, Any], ctx: RecordContext) -> None:
    """Facts about the machine that the hook ran on, whatever label the record has."""
    facts = record.get("facts", {})
    if not isinstance(facts, dict):
        raise ValueError("`facts` is an object")
    MachineRepository(ctx.conn).seen(ctx.host_label, facts)


class Checksums:
    """Of programs that a hook's output names: made before anything of it is stored, of so many bytes in all.

    The transaction that stores records must not wait for a disk.
    """

    def __init__(self, digests: Digests | None = None, *, most: int = MOST_SUMMED) -> None:
        self._digests = digests or Digests()
        self._left = most
        self._known: dict[str, str | None] = {}

    def add(self, record: dict[str, Any]) -> None:
        """Look at the file that a record names, once."""
        abspath = record.get("abspath")
        if not isinstance(abspath, str) or not os.path.isabs(abspath) or abspath in self._known:
            return
        with suppress(OSError, ValueError):
            digest, size = digest_of(Path(abspath), self._digests, self._left)
            self._known[abspath] = digest
            self._left -= size if digest else 0

    def of(self, abspath: str) -> str | None:
        """That of a file; None for one that was too large, or could not be read."""
        return self._known.get(abspath)


def report_binary(record: dict[str, Any], ctx: RecordContext) -> None:
    """A program of this machine; jobs that waited for it go on. One without a path is asked for."""
    if record.get("abspath") in (None, ""):
        _want(record, ctx)
        return
    sums = ctx.known.setdefault(CHECKSUMS, Checksums())
    sums.add(record)
    found = installed_of(record, sums)
    if found.sha256 is None:
        ctx.warnings[ctx.line_no] = (
            f"Binary: {found.abspath:.300} has no checksum: it cannot be read, or the programs that its hook"
            f" names are more than {MOST_SUMMED >> 20:,} MiB in all"
        )
    machine_id = MachineRepository(ctx.conn).seen(ctx.host_label)
    BinaryRepository(ctx.conn).report(machine_id, found)
    promote_waiting(NodeJobRepository(ctx.conn), ctx.host_label, found.name)


def _want(record: dict[str, Any], ctx: RecordContext) -> None:
    """A program that is needed here: the next hook that needs it has it installed."""
    name, providers = record.get("name"), record.get("bin_providers", record.get("binproviders"))
    if not isinstance(name, str) or not name:
        raise ValueError(f"`name` is {name!r:.80}, which is no name")
    if isinstance(providers, list):
        providers = ",".join(map(str, providers))
    overrides = record.get("overrides") or {}
    if not isinstance(providers, str | None) or not isinstance(overrides, dict):
        raise ValueError("`bin_providers` is a list or a text, and `overrides` an object")
    if record.get("min_version") is not None:
        ctx.warnings[ctx.line_no] = (
            f"Binary: {name:.100} is asked for in any version: a `min_version` is kept of what plugins say in"
            " `binaries.jsonl` and `required_binaries` alone"
        )
    machine_id = MachineRepository(ctx.conn).seen(ctx.host_label)
    BinaryRepository(ctx.conn).want(machine_id, name, bin_providers=providers, overrides=overrides)


def promote_waiting(jobs: NodeJobRepository, host_label: str, name: str) -> None:
    """Let the hooks go on that waited for a program on a machine."""
    jobs.promote_held(BINARY_MISSING, [hold_key(host_label, name)], queue=HOOKS_QUEUE)


def installed_of(record: dict[str, Any], sums: Checksums, *, name: str | None = None) -> Installed:
    """A record as the program that it names, which is there and can be run; the checksum is our own."""
    said, abspath = record.get("name"), record.get("abspath")
    if not isinstance(said, str) or not said or (name is not None and said != name):
        raise ValueError(f"`name` is {said!r:.80}" + (f", not {name!r}" if name else ", which is no name"))
    if not isinstance(abspath, str) or not os.path.isabs(abspath):
        raise ValueError(f"`abspath` is {abspath!r:.200}, which is no absolute path")
    if not is_program(abspath):
        raise ValueError(f"{abspath} is no file that this user can run")
    version = record.get("version")
    provider = record.get("provider", record.get("binprovider"))
    return Installed(
        name=said,
        abspath=abspath,
        version=version[:100] if isinstance(version, str) and version else None,
        sha256=sums.of(abspath),
        provider=provider if isinstance(provider, str) and provider else None,
    )


def is_program(abspath: str) -> bool:
    """Whether it is a file that this user can run."""
    return os.path.isfile(abspath) and os.access(abspath, os.X_OK)
