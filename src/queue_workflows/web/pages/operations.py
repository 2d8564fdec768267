"""Schedules, programs, the audit log, and what the doctor finds."""

from __future__ import annotations

