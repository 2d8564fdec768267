"""What becomes of jobs and runs, for callers that wait for them or work on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from queue_workflows.errors.base import ExitCode, PayloadError, QwfError


class LineRefused(QwfError):
    """A line of a file that is to be imported cannot be; `is_last` says that nothing can follow."""

    exit_code = ExitCode.USAGE

    def __init__(self, line: int, said: str, *, advice: str | None = None, is_last: bool = False) -> None:
        super().__init__(f"line {line}: {said}", advice=advice)
        self.line, self.is_last = line, is_last


class ImportStopped(QwfError):
    """An import ended early, with the exit code of what ended it; `line` is the last that is committed."""

    def __init__(self, message: str, *, line: int, exit_code: ExitCode, advice: str | None = None) -> None:
        super().__init__(message, advice=advice)
        self.line, self.exit_code = line, exit_code


class FilterRefused(QwfError):
    """A filter of jobs or runs cannot be read; `word` is what is wrong with it, `possible` what it may be."""

    exit_code = ExitCode.USAGE

    def __init__(self, said: str, *, word: str, possible: Sequence[str] = ()) -> None:
        listed = f": one of {', '.join(possible)}" if possible else ""
        super().__init__(f"{said}{listed}")
        self.word, self.possible = word, tuple(possible)


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


class UnknownWorker(QwfError):
    """A worker was asked about that is not there: it never beat, or was forgotten after its end."""

    exit_code = ExitCode.USAGE

    def __init__(self, worker_id: str) -> None:
        super().__init__(
            f"there is no worker {worker_id!r:.200}", advice="`qwf workers list --all` lists them"
        )
        self.worker_id = worker_id


class UnknownHost(QwfError):
    """A host was asked about of which no worker, no supervisor and no quarantine is known."""

    exit_code = ExitCode.USAGE

    def __init__(self, host_label: str) -> None:
        super().__init__(
            f"there is no host {host_label!r:.80}",
            advice="`qwf workers list --all` and `qwf hw --all` have them",
        )
        self.host_label = host_label


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
            advice=f"open one for all of them, ctx.limit({every}), or those first that sort first by name",
        )
        self.wanted, self.held = tuple(wanted), tuple(held)


class UnusableRow(PayloadError):
    """A row holds what no worker can handle, in the column that `path` names; its job fails for good."""

    def __init__(self, column: str, said: str) -> None:
        super().__init__(
            f"its row cannot be used, column {column}: {said}",
            path=column,
            advice="enqueue the job anew with a value that the column may hold",
        )
