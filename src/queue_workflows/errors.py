"""Every error of the package: one tree, each leaf with its exit code and the data a caller may branch on.

The exit codes are a contract with supervisors and shells; the table in docs/exit-codes.md lists them.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from errno import E2BIG, EAGAIN, EMFILE, ENFILE, ENOEXEC, ENOMEM
from os import strerror
from typing import Any, ClassVar, NamedTuple, Self


class ExitCode(IntEnum):
    """What a process of ours says when it ends; each code carries the sentence that the docs print."""

    meaning: str

    def __new__(cls, value: int, meaning: str) -> Self:
        code = int.__new__(cls, value)
        code._value_ = value
        code.meaning = meaning
        return code

    DONE = 0, "Done."
    FAILED = 1, "The outcome that was asked about is a failure, or something unforeseen went wrong."
    USAGE = 2, "The command line or a payload is wrong; nothing was changed, or the message says what was."
    UNREACHABLE = 69, "The database cannot be reached, or takes no writes."
    DEADLINE = 73, "What was waited for did not happen before the deadline."
    WALL_CLOCK = 75, "A job ran longer than it may; the worker ended itself, and the job counts a failure."
    STALL = 76, "A job stopped making progress; the worker ended itself, and the job counts a failure."
    STOPPED = 77, "The operator switched this worker off, and it runs with `--exit-when-off`."
    CONFIGURATION = 78, "A setting, a file, the host app's wiring or the database's access rules are wrong."
    SCHEMA = 79, "The database's schema is behind or ahead of this code."
    LEASE_LOST = 80, "Another attempt owns the job now; nothing was written."
    INTERRUPTED = 130, "Interrupted (SIGINT, Ctrl-C)."
    PIPE_CLOSED = 141, "Whoever read the output went away, as `head` does."
    TERMINATED = 143, "Terminated (SIGTERM)."


class QwfError(Exception):
    """Base of all our errors: one line of message, what to do about it, and the exit code it ends with."""

    exit_code: ExitCode = ExitCode.FAILED

    def __init__(self, message: str, *, advice: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.message} — {self.advice}" if self.advice else self.message


class ConfigurationError(QwfError):
    """A setting, a file or the wiring of the host app is wrong."""

    exit_code = ExitCode.CONFIGURATION


class NoDevices(QwfError):
    """No GPU can be given to a worker; what only a changed machine or command mends ends with 78, else 1."""

    def __init__(self, message: str, *, advice: str, is_lasting: bool = False) -> None:
        super().__init__(message, advice=advice)
        if is_lasting:
            self.exit_code = ExitCode.CONFIGURATION


class PayloadError(QwfError, ValueError):
    """A JSON payload that Postgres or another reader could not take; `path` names the offending place."""

    exit_code = ExitCode.USAGE

    def __init__(self, message: str, *, path: str = "$", advice: str | None = None) -> None:
        super().__init__(message, advice=advice)
        self.path = path


class LineRefused(QwfError):
    """A line of a file that is to be imported cannot be; `line` is its number."""

    exit_code = ExitCode.USAGE

    def __init__(self, line: int, said: str, *, advice: str | None = None) -> None:
        super().__init__(f"line {line}: {said}", advice=advice)
        self.line = line


class ImportStopped(QwfError):
    """An import ended early, with the exit code of what ended it; `line` is the last that is committed."""

    def __init__(self, message: str, *, line: int, exit_code: ExitCode, advice: str | None = None) -> None:
        super().__init__(message, advice=advice)
        self.line, self.exit_code = line, exit_code


class IllegalTransition(QwfError):
    """A status change that the table in `states.py` does not allow."""

    def __init__(self, family: str, old: str, new: str) -> None:
        super().__init__(f"{family}: {old} -> {new} is not a legal transition")
        self.family, self.old, self.new = family, old, new


class DatabaseError(QwfError):
    """Something about the database connection or server, rather than about a statement."""

    exit_code = ExitCode.UNREACHABLE


class DatabaseUnreachable(DatabaseError):
    """No server answers, or it stopped answering."""


class ReadOnlyServer(DatabaseError):
    """The server answers but takes no writes: a standby, or a read-only database."""


class AccessRefused(DatabaseError):
    """The server refuses this user, password, database or operation."""

    exit_code = ExitCode.CONFIGURATION


class UnsupportedServer(DatabaseError):
    """What answers is no Postgres, or one older than we support."""

    exit_code = ExitCode.CONFIGURATION


class EmbeddedServerError(DatabaseError):
    """The embedded Postgres could not be prepared or started."""


class EmbeddedSetupError(EmbeddedServerError):
    """The embedded Postgres is not there, or cannot work with this directory, account or these programs."""

    exit_code = ExitCode.CONFIGURATION


class SchemaError(QwfError):
    """The database's schema and this code do not fit together."""

    exit_code = ExitCode.SCHEMA


class SchemaBehind(SchemaError):
    """The schema is older than the code needs, or absent; `chain` is the chain that it is about."""

    def __init__(
        self, current: str | None, needed: str, *, advice: str | None = None, chain: str = "engine"
    ) -> None:
        super().__init__(
            f"{_schema_of(chain)} is at {current or 'nothing'}, this needs {needed}",
            advice=advice or f"run `qwf db upgrade{'' if chain == 'engine' else f' --chain {chain}'}`",
        )
        self.current, self.needed, self.chain = current, needed, chain


class SchemaAhead(SchemaError):
    """The schema is at a revision that this code has never heard of."""

    def __init__(
        self, current: str, newest_known: str, *, advice: str | None = None, chain: str = "engine"
    ) -> None:
        super().__init__(
            f"{_schema_of(chain)} is at {current}, this code knows revisions up to {newest_known}",
            advice=advice
            or "install a newer queue-workflows, or downgrade the schema with the version that made it",
        )
        self.current, self.newest_known, self.chain = current, newest_known, chain


def _schema_of(chain: str) -> str:
    """The engine's schema is the one that people mean; another chain is named."""
    return "the database schema" if chain == "engine" else f"the schema of the {chain} chain"


class SchemaDrift(SchemaError):
    """The schema differs from what its revision says it is; `differences` lists how."""

    def __init__(self, message: str, differences: list[str], *, advice: str | None = None) -> None:
        super().__init__(message, advice=advice)
        self.differences = differences


class MigrationRefused(SchemaError):
    """A migration that would harm something was not started."""


class UnknownRevision(QwfError):
    """A revision was asked for that the chain does not have."""

    exit_code = ExitCode.USAGE

    def __init__(self, asked: str, newest_known: str, *, advice: str | None = None) -> None:
        super().__init__(
            f"there is no revision {asked!r}; the newest is {newest_known}",
            advice=advice or "`qwf db history` lists them",
        )
        self.asked, self.newest_known = asked, newest_known


class RevisionOutOfReach(QwfError):
    """A revision that is there, and to which no upgrade or downgrade leads from where the chain stands."""

    exit_code = ExitCode.USAGE

    def __init__(self, asked: str, direction: str, start: str, *, advice: str | None = None) -> None:
        super().__init__(
            f"{'an' if direction == 'upgrade' else 'a'} {direction} from {start} does not lead to {asked!r}",
            advice=advice or "`qwf db history` lists the revisions, oldest first",
        )
        self.asked, self.direction, self.start = asked, direction, start


class MigrationBlocked(QwfError):
    """A lock that a migration needs was not to be had in time, or a statement of it took too long."""

    exit_code = ExitCode.DEADLINE


class NodeModuleError(QwfError):
    """A node module that is there cannot be used; the cause is chained."""

    def __init__(self, message: str, *, module: str, advice: str | None = None) -> None:
        super().__init__(message, advice=advice)
        self.module = module


class ModelLoadFailed(QwfError):
    """A model that a job needs could not be loaded; the cause is chained."""

    def __init__(self, model: str, said: str) -> None:
        super().__init__(f"the model {model!r} could not be loaded: {said}")
        self.model = model


class InvokeContextError(QwfError):
    """What the host app put around its jobs failed, rather than the job; the cause is chained."""


class Problem(NamedTuple):
    """One thing that is wrong with a workflow document, and where."""

    said: str
    node: str | None = None
    field: str | None = None
    line: int | None = None
    file: str | None = None

    def __str__(self) -> str:
        place = self.file or "the document"
        if self.line is not None:
            place += f":{self.line}" if self.file else f", line {self.line}"
        inside = [f"node {self.node!r}"] if self.node is not None else []
        if self.field:
            inside.append(f"field {self.field}")
        return f"{place}: {', '.join(inside)}{': ' if inside else ''}{self.said}"


class DocumentError(QwfError):
    """A workflow document is wrong; `problems` are all that was found, the message has the first few."""

    exit_code = ExitCode.CONFIGURATION

    def __init__(self, problems: Sequence[Problem], *, advice: str | None = None) -> None:
        shown = [str(problem) for problem in problems[:3]]
        if len(problems) > len(shown):
            shown.append(f"and {len(problems) - len(shown):,} more, which `qwf run check` lists")
        super().__init__("; ".join(shown), advice=advice)
        self.problems = tuple(problems)


class HookError(QwfError):
    """Hooks cannot be found, told apart, or run; `problems` are all that was found, file by file."""

    exit_code = ExitCode.CONFIGURATION

    def __init__(self, *problems: str, advice: str | None = None) -> None:
        super().__init__("; ".join(problems), advice=advice)
        self.problems = problems


class PluginConfigError(HookError):
    """A plugin's `config.json`, or a value that is set for it, is wrong; `key` is the one it is about."""

    def __init__(self, plugin: str, said: str, *, key: str | None = None, advice: str | None = None) -> None:
        about = f"plugin {plugin}, {key}: " if key else f"plugin {plugin}: "
        super().__init__(about + said, advice=advice or f"correct the config.json of {plugin}")
        self.plugin, self.key = plugin, key


class HookFailed(QwfError):
    """A hook's attempt failed so that it is to be tried again; `printed` is the end of what it said of it."""

    def __init__(self, hook: str, how: str, printed: str) -> None:
        lines = [line.strip() for line in printed.splitlines() if line.strip()]
        super().__init__(f"{hook}: {how}{f': {lines[-1][:1000]}' if lines else ''}")
        self.hook, self.how, self.printed = hook, how, printed


class UnknownWorkflow(QwfError):
    """Nobody has a workflow of this name."""

    exit_code = ExitCode.USAGE

    def __init__(self, name: str, *, advice: str | None = None) -> None:
        super().__init__(f"there is no workflow {name!r}", advice=advice)
        self.name = name


class RefError(QwfError):
    """A reference of a node cannot be resolved: `where` is its place, `there` what is at hand instead."""

    def __init__(
        self,
        said: str,
        *,
        where: str,
        path: str | None = None,
        there: str | None = None,
        advice: str | None = None,
    ) -> None:
        shown = f"{where}: {f'`{path}`: ' if path else ''}{said}{f'; {there}' if there else ''}"
        super().__init__(shown, advice=advice)
        self.where, self.path, self.there = where, path, there


class UnknownJob(QwfError):
    """A job was asked about that is not there: it never was, is not committed yet, or was pruned."""

    exit_code = ExitCode.USAGE

    def __init__(self, job: str) -> None:
        super().__init__(f"there is no job {job}", advice="it never was, is not committed yet, or was pruned")
        self.job = job


class UnknownSchedule(QwfError):
    """A schedule was asked about that is not there."""

    exit_code = ExitCode.USAGE

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no schedule {name!r:.80}", advice="`qwf schedule list` lists them")
        self.name = name


class UnknownRun(QwfError):
    """A run was asked about that is not there: it never was, is not committed yet, or was pruned."""

    exit_code = ExitCode.USAGE

    def __init__(self, run: object) -> None:
        super().__init__(f"there is no run {run}", advice="it never was, is not committed yet, or was pruned")
        self.run = str(run)


class UnknownNode(QwfError):
    """A run was asked about a node that its document does not have."""

    exit_code = ExitCode.USAGE

    def __init__(self, run: object, node: str) -> None:
        super().__init__(
            f"run {run} has no node {node!r:.80}", advice=f"`qwf run show {run}` lists its nodes"
        )
        self.run, self.node = str(run), node


class RunRefused(QwfError):
    """What was asked of a run does not go with its `status`, or its node's; nothing was changed."""

    def __init__(self, run: object, message: str, *, status: str, advice: str | None = None) -> None:
        super().__init__(message, advice=advice)
        self.run, self.status = str(run), status


class JobNotCompleted(QwfError):
    """A job that somebody waited for is over and has no result; `error` is its last entry, if it has one."""

    def __init__(self, job: str, error: dict[str, Any] | None) -> None:
        super().__init__(f"{job} {self.became}{_last_words(error)}")
        self.job, self.error = job, error

    became: ClassVar[str] = "is over"


class JobFailed(JobNotCompleted):
    """It failed, and will not be tried again by itself."""

    became = "failed"


class JobCancelled(JobNotCompleted):
    """Somebody cancelled it."""

    became = "was cancelled"


class RunNotCompleted(QwfError):
    """A run that somebody waited for is over and has no outputs; `error` says what ended it, if known."""

    def __init__(self, run: str, error: dict[str, Any] | None) -> None:
        super().__init__(f"{run} {self.became}{_last_words(error)}", advice=f"`qwf explain {run}`")
        self.run, self.error = run, error

    became: ClassVar[str] = "is over"


class RunFailed(RunNotCompleted):
    """A node of it failed."""

    became = "failed"


class RunCancelled(RunNotCompleted):
    """Somebody cancelled it."""

    became = "was cancelled"


def _last_words(error: dict[str, Any] | None) -> str:
    """What an entry of `errors`, or a run's error, adds to a sentence."""
    if error is None:
        return ""
    said = str(error.get("message") or error.get("kind") or "")
    where = f"node {error['node']}: " if error.get("node") else ""
    kind = f"{error['type']}: " if error.get("type") else ""
    return f": {where}{kind}{said}" if said else ""


class WaitTimeout(QwfError, TimeoutError):
    """A job or run is not over yet; it goes on all the same. `status` is None while the database is away."""

    exit_code = ExitCode.DEADLINE

    def __init__(self, job: str, waited_s: float, status: str | None) -> None:
        state = f"it is {status}" if status else "the database is away"
        super().__init__(
            f"{job} was not over within {waited_s:.1f} s: {state}", advice=f"`qwf explain {job}`"
        )
        self.job, self.status = job, status


class LeaseLost(QwfError):
    """A fenced write met no row: another attempt owns the job now, so the work stops and writes nothing."""

    exit_code = ExitCode.LEASE_LOST

    def __init__(self, family: str, job_id: int, attempt: int) -> None:
        super().__init__(f"{family} {job_id}: attempt {attempt} no longer holds the lease")
        self.family, self.job_id, self.attempt = family, job_id, attempt


class UnknownRate(QwfError):
    """A rate was asked for that nobody set, neither an operator nor the code that asks."""

    exit_code = ExitCode.CONFIGURATION

    def __init__(self, key: str) -> None:
        super().__init__(
            f"nobody said how fast {key!r} may be used",
            advice=f"say it in code, ctx.rate({key!r}, per_s=5), or live, `qwf limits set {key} --rate 5/s`",
        )
        self.key = key


class CostAboveBurst(QwfError):
    """More tokens were asked for at once than the bucket can ever hold."""

    exit_code = ExitCode.CONFIGURATION

    def __init__(self, key: str, cost: float, burst: float) -> None:
        super().__init__(
            f"{cost:g} tokens of {key!r} are more than its bucket ever holds, {burst:g}",
            advice="raise its burst, or take less at once",
        )
        self.key, self.cost, self.burst = key, cost, burst


class WindowOrder(QwfError):
    """A window was opened inside another, against the order that keeps two jobs from a deadlock."""

    def __init__(self, wanted: Sequence[str], held: Sequence[str]) -> None:
        every, inner, outer = (
            ", ".join(repr(key) for key in keys) for keys in (sorted({*wanted, *held}), wanted, held)
        )
        super().__init__(
            f"a window for {inner} cannot be opened inside one for {outer}: "
            "another job may do it the other way round, and both would wait for ever",
            advice=f"open one for all of them, ctx.limit({every}), or those first whose names sort first",
        )
        self.wanted, self.held = tuple(wanted), tuple(held)


class Orphaned(QwfError):
    """The process that started this one is gone, so nobody would end or replace it: it does not run."""

    exit_code = ExitCode.TERMINATED

    def __init__(self, launcher_pid: int, parent_pid: int) -> None:
        super().__init__(
            f"process {launcher_pid}, which started this one, is gone; its parent is {parent_pid} now",
            advice=f"start it again; QWF_LAUNCHER_PID={launcher_pid} must not be set by hand",
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
