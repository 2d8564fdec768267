"""How a hook's attempt ended, from its exit and its output: the one place that decides it.

    exit                                  what its last result says         the job
    ────                                  ─────────────────────────         ───────
    status 0                              succeeded, noresults, or nothing  completed
    status 0                              failed                            failed, for good
    status 0                              skipped                           skipped
    status 10                             anything                          skipped
    another status, a signal              anything                          tried again, at last failed
    whatever, after its timeout           anything                          the same
    whatever, told to stop                anything                          the same, or what the stop says
    told to end with its run's last step  as with status 0, whatever its exit; also if about to be told
    a background hook's own timeout       as with status 0, where its plugin says that this is its end
    whatever, its output not written      anything                          tried again: its disk may be full

What it has printed until then is kept in every case, and stands in the result of a job that failed for good.
"""

from __future__ import annotations

import signal
from typing import Any, Final

from queue_workflows.engine.outcomes import Discard, Skip
from queue_workflows.errors import HookFailed
from queue_workflows.hooks.attempt.at_seal import SEALED
from queue_workflows.hooks.attempt.earlier_results import NONE, EarlierResults, joined
from queue_workflows.hooks.output.read import HookOutput
from queue_workflows.hooks.script.process import HookExit
from queue_workflows.repositories.sql.checks import PayloadLimits

# By which a script says that there is nothing to do for it.
SKIPPED_STATUS: Final = 10
_LONGEST: Final = 1_000
_LIMITS: Final = PayloadLimits()


class _SaidFailed(Discard):
    """A failure by its own word, with all that it has come to."""

    def __init__(self, reason: str, result_json: str) -> None:
        super().__init__(reason)
        self.result_json = result_json


class _SaidSkipped(Skip):
    """A hook that finds nothing to do, though an earlier attempt of it has come to something."""

    def __init__(self, reason: str, result_json: str | None) -> None:
        super().__init__(reason)
        self.result_json = result_json


def result_of(
    label: str,
    ended: HookExit,
    output: HookOutput,
    *,
    earlier: EarlierResults = NONE,
    ends_at_timeout: bool = False,
    limits: PayloadLimits = _LIMITS,
) -> dict[str, Any]:
    """What the job returns, with what `earlier` attempts came to.

    Its own timeout is how it is meant to end if `ends_at_timeout`.

    Raises `Skip`, `Discard` for what is final, and `HookFailed` for another try.
    """
    had_its_time = ended.stopped == SEALED or (ends_at_timeout and ended.timed_out)
    # A hook that catches SIGTERM and exits with 0 has been cut short all the same.
    was_cut_short = ended.timed_out or ended.stopped is not None
    is_broken = (ended.code != 0 or was_cut_short) and not had_its_time
    has_succeeded = not is_broken and ended.output_error is None and ended.code != SKIPPED_STATUS
    result = joined(output, earlier, limits, keeps_word=not has_succeeded)
    said = str(result.get("output_str") or "")[:_LONGEST]
    kept = limits.json(result)
    kept_of_others = None if earlier.data is None else kept
    if ended.code == SKIPPED_STATUS and not was_cut_short:
        why = said or f"{label} says that there is nothing to do, by its exit status"
        raise _SaidSkipped(why, kept_of_others)
    if is_broken:
        raise HookFailed(label, _how(ended), ended.stderr_tail, result_json=kept)
    if ended.output_error is not None:
        why = f"what it printed could not be kept: {ended.output_error}"
        raise HookFailed(label, why, ended.stderr_tail, result_json=kept)
    match result.get("status"):
        case "failed":
            raise _SaidFailed(f"{label} says that it failed{f': {said}' if said else ''}", kept)
        case "skipped":
            raise _SaidSkipped(said or f"{label} says that there is nothing to do", kept_of_others)
    return result


def _how(ended: HookExit) -> str:
    if ended.timed_out:
        return f"it took longer than it may, and was ended after {ended.seconds:.1f} s"
    if ended.stopped is not None:
        return f"it was told to stop: {ended.stopped}"
    killed_by = f" {ended.killed_by}" if ended.killed_by else ""
    if ended.signal is not None:
        return f"it was ended by {_signal_name(ended.signal)}{killed_by}"
    return f"exit status {ended.code}{killed_by and f': killed{killed_by}'}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
