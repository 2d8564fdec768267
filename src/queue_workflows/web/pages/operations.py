"""Schedules, programs, the audit log, and what the doctor finds."""

from __future__ import annotations

from queue_workflows.views import audit as audit_view
from queue_workflows.views import doctor as doctor_view
from queue_workflows.views.hooks import binaries as binaries_view
from queue_workflows.views.schedules import listing, preview
from queue_workflows.web.pages.page import ROWS, Look, Shown
