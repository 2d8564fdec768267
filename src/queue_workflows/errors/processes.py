"""What keeps a process of ours from running, or from running others."""

from __future__ import annotations

from errno import E2BIG, EAGAIN, EMFILE, ENFILE, ENOEXEC, ENOMEM
from os import strerror

from queue_workflows.errors.base import ExitCode, QwfError


class LockHeld(QwfError):
    """A lock of this machine was not to be had in time."""

    exit_code = ExitCode.DEADLINE

    def __init__(self, name: str, holder: str, waited_s: float) -> None:
        super().__init__(
            f"the lock {name!r} was not to be had in {waited_s:.1f} s: {holder} holds it",
            advice="`lslocks` shows which process holds what; end its holder, or wait longer",
        )
        self.name, self.holder, self.waited_s = name, holder, waited_s


class LockUnusable(QwfError):
    """A lock of this machine cannot be taken by anybody: its name, file or directory is wrong."""

    exit_code = ExitCode.CONFIGURATION

    def __init__(self, name: str, why: str, *, advice: str | None = None) -> None:
        super().__init__(
            f"the lock {name!r} cannot be taken: {why}",
            advice=advice
            or "locks live in a directory of this machine where this user may write: QWF_LOCK_DIR",
        )
        self.name, self.why = name, why


class NoDevices(QwfError):
    """No GPU can be given to a worker; what only a changed machine or command mends ends with 78, else 1."""

    def __init__(self, message: str, *, advice: str, is_lasting: bool = False) -> None:
        super().__init__(message, advice=advice)
        if is_lasting:
            self.exit_code = ExitCode.CONFIGURATION


class Orphaned(QwfError):
    """The process that started this one is gone, so nobody would end or replace it: it does not run."""

    exit_code = ExitCode.TERMINATED

    def __init__(self, launcher_pid: int | None, parent_pid: int) -> None:
        launcher = "the process" if launcher_pid is None else f"process {launcher_pid}"
        super().__init__(
            f"{launcher}, which started this one, is gone; its parent is {parent_pid} now",
            advice="start it from a process that stays, or with `--detach`, in Python harden(detach=True)"
            if launcher_pid is None
            else f"start it again; QWF_LAUNCHER_PID={launcher_pid} must not be set by hand",
        )
        self.launcher_pid, self.parent_pid = launcher_pid, parent_pid


class SpawnRefused(QwfError):
    """A command cannot be started here: `about` is the program or directory that the system refused."""

    exit_code = ExitCode.CONFIGURATION

    def __init__(self, program: str, number: int, about: str) -> None:
        what = about or program
        super().__init__(f"{program} cannot be started: {what}: {_refusal(number)}", advice=_cure(number))
        self.program, self.number, self.about = program, number, what


def _refusal(number: int) -> str:
    return "no program, and without a first line such as #!/bin/sh" if number == ENOEXEC else strerror(number)


def _cure(number: int) -> str:
    if number == E2BIG:
        return "hand long inputs over in files"
    if number in (EAGAIN, ENOMEM, EMFILE, ENFILE):
        return "this machine has too many processes, open files, or too little memory"
    return "install what is missing, or correct its path or rights"


class ProcessLost(QwfError):
    """The process that saw to a command was killed, and the command with it; how it ended is unknown."""

    def __init__(self, program: str) -> None:
        super().__init__(
            f"{program}: the process that kept it was killed, and it with it",
            advice="see whether this machine was short of memory; it can be tried again",
        )
        self.program = program
