"""What a hook needs before it runs: its plugin's programs, found or installed on this machine.

A worker that meets a hook without its program installs that there and then, in the hook's own time. While
another worker of this machine does, or where nobody could, the hook is put on hold and goes on as soon as the
program is there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import psycopg

from queue_workflows.hooks.output.machine_records import is_program
from queue_workflows.hooks.plugins.needs import Need, need_of, needs_below
from queue_workflows.hooks.programs.install import Installation, InstallationLost, Installer
from queue_workflows.hooks.script.lifecycle import bring_to_its_end
from queue_workflows.hooks.script.process import HookStop
from queue_workflows.repositories.hooks.binaries import (
    BinaryFence,
    BinaryRepository,
    hold_key,
)
from queue_workflows.states import BinaryStatus

if TYPE_CHECKING:
    from queue_workflows.models import Binary

# When a hook that waits is looked at again, if nobody promotes it before.
LOOK_AGAIN_S: Final = 60.0
# How often a worker that waits for another's installation looks at it.
_LOOK_S: Final = 0.5

# What the user set a variable to, if anything.
Chosen: TypeAlias = "Callable[[str], str | None]"
OnWait: TypeAlias = "Callable[[str], None]"


@dataclass(frozen=True, slots=True)
class Prepared:
    """Whether a hook can run, with `env`; if not, what it is put on hold for, or skipped, and why."""

    env: dict[str, str] = field(default_factory=dict)
    hold_key: str | None = None
    skip: str | None = None
    why: str | None = None

    @property
    def is_ready(self) -> bool:
        """Whether all that it needs is there."""
        return self.hold_key is None and self.skip is None


def ensure(
    needs: Iterable[Need],
    workshop: Installer,
    *,
    chosen: Chosen | None = None,
    stop: HookStop | None = None,
    at_once: bool = False,
    on_wait: OnWait | None = None,
) -> Prepared:
    """Have these programs on this machine; the first that cannot be had is the answer.

    `chosen` says of a variable what the user set it to, which is not looked for. `at_once` tries again what
    failed a moment ago. With `on_wait` it waits for an installation by another worker, and says so first.
    """
    env: dict[str, str] = {}
    left: list[Need] = []
    for need in needs:
        path = None if chosen is None else chosen(need.variable)
        if path is None:
            left.append(need)
        else:
            env[need.variable] = path
    for need, known in zip(left, _known(left, workshop), strict=True):
        path, why = _in_place(need, known), None
        if path is None:
            path, why = _have(need, workshop, stop or HookStop(), known, at_once=at_once, on_wait=on_wait)
        if path is not None:
            env[need.variable] = path
            continue
        if need.is_skipped_without and why is not None:
            return Prepared(env, skip=f"{need.name} is missing on {workshop.host_label}: {why}")
        said = f"{need.name}: {why or 'it is being installed'}"
        return Prepared(env, hold_key=hold_key(workshop.host_label, need.name), why=said)
    return Prepared(env)


def _known(needs: Sequence[Need], workshop: Installer) -> list[Binary | None]:
    """What is known of them on this machine, in one question: mostly they are all there."""
    if not needs:
        return []
    names = [need.name for need in needs]
    found = workshop.ask(lambda conn: BinaryRepository(conn).named(workshop.machine_id, names))
    return [found.get(name) for name in names]


def _in_place(need: Need, known: Binary | None) -> str | None:
    """Where a program is, if it is where it was installed, and new enough.

    Whatever its row says by now: one that is too old for another plugin is as good as before for this one.
    """
    if known is None or known.abspath is None or need.is_old(known.version):
        return None
    return known.abspath if is_program(known.abspath) else None


def _have(
    need: Need,
    workshop: Installer,
    stop: HookStop,
    known: Binary | None,
    *,
    at_once: bool,
    on_wait: OnWait | None,
) -> tuple[str | None, str | None]:
    """Where a program is that was not there; or why it is missing; neither while somebody installs it."""
    if not need.is_exact:
        others = needs_below(workshop.hook_dirs).get(need.name)
        need = need if others is None else need.or_by([others])
        asked = asked_for(known) if known is not None and known.status == BinaryStatus.QUEUED else None
        need = need if asked is None else need.or_by([asked])
    known, fence = workshop.ask(partial(_claim, need, workshop, known, at_once))
    if fence is None and on_wait is not None:
        known, fence = _wait(need, workshop, known, on_wait)
    if fence is not None:
        try:
            found = bring_to_its_end(Installation(need, fence, workshop, stop))
        except InstallationLost:
            return None, None
        if found is not None:
            return found.abspath, None
        (again,) = _known([need], workshop)
        return None, reason_of(again or known)
    is_open = known.status in (BinaryStatus.RUNNING, BinaryStatus.QUEUED)
    return _in_place(need, known), None if is_open else reason_of(known)


def asked_for(known: Binary) -> Need | None:
    """A program that is to be had, as its row says: so did a hook's record that named it without a path.

    None where that is no name of a program, or names what is no provider: a record may say anything.
    """
    try:
        return need_of(known.name, known.bin_providers, known.overrides)
    except ValueError:
        return None


def _claim(
    need: Need,
    workshop: Installer,
    known: Binary | None,
    at_once: bool,
    conn: psycopg.Connection[Any],
) -> tuple[Binary, BinaryFence | None]:
    """The row of a program that is missing, and the right to install it unless somebody else does."""
    binaries, providers = BinaryRepository(conn), ",".join(need.providers)
    if known is not None and known.status == BinaryStatus.INSTALLED:
        binaries.gone(known, _why_not(need, known))
    binaries.want(workshop.machine_id, need.name, bin_providers=providers, overrides=need.overrides)
    known = binaries.named(workshop.machine_id, [need.name])[need.name]
    fence = binaries.claim(
        known.id,
        claimed_by=workshop.claimed_by,
        lease_s=workshop.lease_s,
        at_once=at_once,
        bin_providers=providers,
        overrides=need.overrides,
    )
    return known, fence


def _why_not(need: Need, known: Binary) -> str:
    """Why a program that was installed will not do."""
    if need.is_old(known.version):
        is_now = known.version or "of no known version"
        return f"{known.abspath} is {is_now}, and {need.min_version} is needed"
    return f"{known.abspath} is no program any more"


def _wait(
    need: Need, workshop: Installer, known: Binary, on_wait: OnWait
) -> tuple[Binary, BinaryFence | None]:
    """Wait until the worker that installs it has ended or died: then it may be ours."""
    fence = None
    if known.status == BinaryStatus.RUNNING:
        on_wait(f"{need.name}: {reason_of(known)}")
    while fence is None and known.status in (BinaryStatus.RUNNING, BinaryStatus.QUEUED):
        time.sleep(_LOOK_S)
        # What has just failed is not tried again by a worker that waited for it.
        known, fence = workshop.ask(partial(_claim, need, workshop, known, False))
    return known, fence


def reason_of(binary: Binary) -> str:
    """Why a program is not there, in words."""
    if binary.status == BinaryStatus.RUNNING:
        return f"{binary.claimed_by} installs it"
    return binary.error or "nobody has installed it yet"
