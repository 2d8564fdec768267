"""When a failed job runs again: a delay by its failures, with jitter, from nothing but numbers."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from queue_workflows.errors import PayloadError

_log = logging.getLogger(__name__)

LONGEST_BACKOFF_S: Final = 86_400.0
# As far as a float can be doubled without thinking about it.
_DOUBLINGS: Final = 64
_LONGEST_STEP_S: Final = 365 * 86_400.0

# Seconds until the try after so many failures, from 1.
DelayRule: TypeAlias = Callable[[int], float]
# What a task may be registered with: the first delay, which doubles; a delay for each failure; a rule.
TaskBackoff: TypeAlias = float | Sequence[float] | DelayRule


def rule_of(backoff: TaskBackoff) -> DelayRule | None:
    """The rule that a list or a function is, each delay checked; None for a number, which a row can hold."""
    if callable(backoff):
        return backoff
    if not isinstance(backoff, list | tuple):
        _seconds(backoff)
        return None
    if not backoff:
        raise PayloadError("backoff has no delay", path="backoff", advice="give one, or leave it out")
    steps = [_seconds(step) for step in backoff]
    return lambda failures: steps[min(failures, len(steps)) - 1]


def _seconds(value: object) -> float:
    """A delay; `nan` is none, as it is in no range."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _LONGEST_STEP_S:
        return float(value)
    raise PayloadError(
        f"backoff must be seconds, a list of seconds or a function of the failures, not {value!r:.80}",
        path="backoff",
    )


def _no_rule(_task_name: str) -> DelayRule | None:
    return None


@dataclass(frozen=True, slots=True)
class Backoff:
    """The engine's defaults: the first delay, and the share of it that chance adds, the tasks' rules."""

    backoff_s: float = 60.0
    jitter: float = 0.2
    of_task: Callable[[str], DelayRule | None] = _no_rule

    def delay_s(
        self, failures: int, own_backoff_s: float | None, chance: float, task_name: str | None = None
    ) -> float:
        """Seconds until the try after the `failures`-th counted failure; `chance` is from 0 to 1.

        The row's own first delay comes before the task's rule, and that before the default. A first delay
        doubles with each failure, up to a day unless it begins longer. Jitter, a share of the delay, comes on
        top, so that jobs which failed together do not come back together, and none before its backoff.
        """
        delay_s = None if own_backoff_s is not None else self._by_rule(task_name, failures)
        if delay_s is None:
            first = self.backoff_s if own_backoff_s is None else own_backoff_s
            doubled = math.ldexp(first, min(max(failures, 1) - 1, _DOUBLINGS))
            delay_s = min(doubled, max(LONGEST_BACKOFF_S, first))
        return delay_s * (1 + chance * self.jitter)

    def _by_rule(self, task_name: str | None, failures: int) -> float | None:
        """What the task says; a rule that fails must not keep the job's own failure from being stored."""
        rule = None if task_name is None else self.of_task(task_name)
        if rule is None:
            return None
        try:
            return _seconds(rule(max(failures, 1)))
        except Exception as exc:
            said = " ".join(str(exc).split())
            _log.warning("the backoff of %s is left aside: %s: %s", task_name, type(exc).__name__, said)
            return None
