"""How tests try examples: the same ones every time, however slow the machine is."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

PATIENT = settings(deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
