"""`qwf run-job`: any command, kept within a deadline, and what it owns within its life."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from queue_workflows.cli.shared.seconds import Duration
from queue_workflows.errors import ConfigurationError, LockHeld
from queue_workflows.host.kernel import IS_LINUX
from queue_workflows.host.locks.lock import FIRST_LOOK_S, HostLock
from queue_workflows.host.processes.tree_below import sees_us


def shares_option(_ctx: click.Context, _param: click.Parameter, values: Sequence[str]) -> dict[str, Path]:
    """What several `--share` name."""
    found: dict[str, Path] = {}
    for value in values:
        name, equals, path = value.partition("=")
        if not (name and equals and path):
            raise click.BadParameter(f"{value!r} is not of the form NAME=PATH")
        if name in found:
            raise click.BadParameter(f"{name!r} is shared twice")
        found[name] = Path(path)
    return found


@click.command("run-job", context_settings={"allow_interspersed_args": False})
@click.option(
    "--deadline",
    type=Duration(none=True),
    default="60m",
    show_default=True,
    help="How long the command may take: 90s, 60m, 1h30m, or none. After it the status is 73.",
)
@click.option(
    "--grace",
    type=Duration(zero=True),
    default="10s",
    show_default=True,
    help="How long it may take to end after SIGTERM; then comes SIGKILL.",
)
@click.option(
    "--lock",
    "locks",
    multiple=True,
    metavar="NAME",
    help="Hold this lock of this machine until all of the command is gone; may be given several times.",
)
@click.option(
    "--wait",
    type=Duration(zero=True),
    default=None,
    help="How long to wait for all the locks, 0 for not at all; by default as the deadline. Then it is 73.",
)
@click.option("--workspace", "run", metavar="RUN", help="Give it this run's workspace, in QWF_WORKSPACE.")
@click.option(
    "--share",
    "shares",
    callback=shares_option,
    multiple=True,
    metavar="NAME=PATH",
    help="A link of this name in the workspace, to what it shares with others; may be given several times.",
)
@click.option("--in-workspace", is_flag=True, help="Start the command in the workspace.")
@click.option(
    "--detach", is_flag=True, help="Let it run on when the process that starts it ends, as a shell."
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run_job(
    *,
    deadline: float | None,
    grace: float,
    locks: tuple[str, ...],
    wait: float | None,
    run: str | None,
    shares: dict[str, Path],
    in_workspace: bool,
    detach: bool,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND as a hardened job: qwf run-job --deadline 60m -- COMMAND …

    It ends with the command's own status (128 and the signal's number if one ended it), with 73 after the
    deadline, 127 if there is no such command, and 126 if it is no program. Signals go to the command. However
    either of them ends, nothing of what the command started is left, and the locks are free only then. When
    what started it ends, as a shell that is killed, it ends too, unless it is to --detach. No database is
    needed.
    """
    from queue_workflows.host.commands.run_job_warden import RunTerms, become, clock
    from queue_workflows.host.processes.starter import bound_to_starter

    if run is None and (shares or in_workspace):
        raise click.UsageError("--share and --in-workspace are for a --workspace")
    if not IS_LINUX:
        raise ConfigurationError("run-job needs Linux: its kernel keeps a command's processes together")
    if not sees_us():
        raise ConfigurationError(
            "run-job finds a command's processes in /proc, which is not that of this PID namespace",
            advice="mount it: `mount -t proc proc /proc`, or `unshare --mount-proc`",
        )
    starter_pid = bound_to_starter(detach=detach)
    taken = take_locks(locks, command[0], deadline_s=deadline, wait_s=deadline if wait is None else wait)
    held = [lock.fileno() for lock in taken]
    files = [str(lock.path) for lock in taken]
    if run is not None:
        held.append(_in_workspace(run, shares, goes_there=in_workspace))
    words = f"{deadline:g} s" if deadline is not None else ""
    ends_at = None if deadline is None else clock() + deadline
    become(RunTerms(ends_at, words, grace, held, starter_pid, files), list(command))


def take_locks(
    names: Sequence[str],
    program: str,
    *,
    deadline_s: float | None,
    wait_s: float | None,
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> list[HostLock]:
    """All the locks, held, within one `wait_s` for them together.

    A command that waits for one holds no other: so no two commands wait for each other, and no lock is held
    for longer than the command may take.
    """
    locks = [HostLock(name, deadline_s=deadline_s, note=f"run-job {program}") for name in sorted(set(names))]
    say = {lock: _said_once(lock) for lock in locks}
    began, missing = now(), locks[0] if locks else None
    while missing is not None:
        left_s = None if wait_s is None else max(0.0, began + wait_s - now())
        try:
            missing.acquire(timeout_s=left_s, on_wait=say[missing], sleep=sleep, now=now)
        except LockHeld as held:
            raise LockHeld(held.name, held.holder, now() - began) from None
        missing = next((lock for lock in locks if not (lock.held or lock.try_acquire())), None)
        if missing is not None:
            for lock in locks:
                lock.release()
            sleep(random.uniform(0, FIRST_LOOK_S))  # noqa: S311 - two in step would never have both
    return locks


def _said_once(lock: HostLock) -> Callable[[float], None]:
    said: list[str] = []

    def say(_waited_s: float) -> None:
        if not said:
            said.append(lock.name)
            click.echo(f"qwf: waiting for the lock {lock.name!r}, which {lock.holding()}", err=True)

    return say


def _in_workspace(run: str, shares: dict[str, Path], *, goes_there: bool) -> int:
    """The descriptor that holds it; the command finds it in its environment, and may start in it."""
    from queue_workflows.host.directories.workspaces import workspace

    made = workspace(run, share=shares)
    os.environ.update(made.export())
    if goes_there:
        os.chdir(made.path)
    return made.fileno()
