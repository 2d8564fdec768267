"""What a hook needs before it runs: its plugin's programs, found or installed on this machine.

A worker that meets a hook whose program is missing installs it there and then, in the hook's own time. While
another worker of this machine does, or where nobody could, the hook is put on hold and goes on as soon as the
program is there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from queue_workflows.hooks.installing import Installation, Workshop
from queue_workflows.hooks.lifecycle import bring_to_its_end
from queue_workflows.hooks.needs import Need, needs_of
from queue_workflows.hooks.process import HookStop
from queue_workflows.hooks.reported import is_program
from queue_workflows.models import Binary
from queue_workflows.repositories.binaries import BINARY_MISSING, BinaryRepository, hold_key
from queue_workflows.states import BinaryStatus

# When a hook that waits is looked at again, if nobody promotes it before.
LOOK_AGAIN_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Prepared:
    """Whether a hook can run, with `env`; if not, what it is put on hold for, or why it is skipped."""

    env: dict[str, str] = field(default_factory=dict)
    hold_key: str | None = None
    skip: str | None = None
    hold_reason: str = BINARY_MISSING
    delay_s: float = LOOK_AGAIN_S

    @property
    def is_ready(self) -> bool:
        """Whether all that it needs is there."""
        return self.hold_key is None and self.skip is None


def prepare(plugin: Path, workshop: Workshop, *, stop: HookStop | None = None) -> Prepared:
    """See to it that the programs are there that a plugin's directory names."""
    return ensure(needs_of(plugin), workshop, stop=stop)


def ensure(
    needs: Iterable[Need], workshop: Workshop, *, stop: HookStop | None = None, at_once: bool = False
) -> Prepared:
    """Have these programs on this machine; the first that cannot be had is the answer.

    `at_once` tries again what failed a moment ago.
    """
    env: dict[str, str] = {}
    for need in needs:
        abspath, why = _have(need, workshop, stop or HookStop(), at_once)
        if abspath is not None:
            env[need.variable] = abspath
            continue
        if need.is_skipped_without:
            return Prepared(env, skip=f"{need.name} is missing on {workshop.host_label}: {why}")
        return Prepared(env, hold_key=hold_key(workshop.host_label, need.name))
    return Prepared(env)


def _have(need: Need, workshop: Workshop, stop: HookStop, at_once: bool) -> tuple[str | None, str]:
    """Where a program is; None, and why, if it is not there."""
    with workshop.connect() as connection:
        binaries = BinaryRepository(connection)
        known = binaries.named(workshop.machine_id, [need.name]).get(need.name)
        if known is not None and known.status == BinaryStatus.INSTALLED:
            if known.abspath is not None and is_program(known.abspath):
                return known.abspath, ""
            binaries.gone(known)
        binaries.want(
            workshop.machine_id,
            need.name,
            bin_providers=",".join(need.providers),
            overrides=need.overrides,
        )
        known = binaries.named(workshop.machine_id, [need.name])[need.name]
        fence = binaries.claim(
            known.id, claimed_by=workshop.claimed_by, lease_s=workshop.lease_s, at_once=at_once
        )
    if fence is not None:
        found = bring_to_its_end(Installation(need, fence, workshop, stop))
        if found is not None:
            return found.abspath, ""
        with workshop.connect() as connection:
            known = BinaryRepository(connection).named(workshop.machine_id, [need.name])[need.name]
    return None, reason_of(known)


def reason_of(binary: Binary) -> str:
    """Why a program is not there, in words."""
    if binary.status == BinaryStatus.RUNNING:
        return f"{binary.claimed_by} installs it"
    return binary.error or "nobody has installed it yet"
