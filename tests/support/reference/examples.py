"""How tests try examples: the same ones every time, however slow the machine is."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# Of a run with all its tests, which tries as many as Hypothesis does.
_OF_A_WHOLE_RUN = 100


def examples(count: int) -> int:
    """How many examples to try: so many in a whole run, and fewer where what is slow is left out."""
    return max(1, count * settings.default.max_examples // _OF_A_WHOLE_RUN)


PATIENT = settings(deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
