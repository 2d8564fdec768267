"""Schedules, programs, the audit log, and what the doctor finds."""

from __future__ import annotations

from queue_workflows.repositories.schedules.schedules import state_of
from queue_workflows.views import audit as audit_view
from queue_workflows.views import doctor as doctor_view
from queue_workflows.views.hooks import binaries as binaries_view
from queue_workflows.views.schedules import listing, preview
from queue_workflows.web.database.last_report import KEPT_FOR_S
from queue_workflows.web.page import ROWS, Look, Shown, href

_MOST_SCHEDULES = 500
_MOST_TICKS = 100


def schedules(look: Look) -> Shown:
    """Every schedule with its last tick and its next one."""
    found = listing.schedules(look.conn, limit=_MOST_SCHEDULES, after=look.word("after") or None)
    return Shown(
        title="Schedules",
        template="schedules.html",
        command=listing.command_of(),
        data={
            "found": [(one, state_of(one)) for one in found],
            "further": href(look.prefix + "/schedules", after=found[-1].name)
            if len(found) == _MOST_SCHEDULES
            else None,
        },
        json=listing.json_of(found),
    )


def schedule(look: Look) -> Shown:
    """One schedule and its next ticks."""
    name = look.parts["schedule"]
    count = look.number("count", preview.USUAL, most=_MOST_TICKS)
    found = listing.schedule(look.conn, name)
    coming = preview.preview_of_schedule(look.conn, name, count=count)
    return Shown(
        title=name,
        template="schedule.html",
        command=preview.command_of(coming, count=count),
        data={
            "one": found,
            "state": state_of(found),
            "coming": coming,
            "args": look.redaction.shown("payload", found.args),
            "told": listing.json_of([found])[0],
        },
        json=preview.json_of(coming),
    )


def binaries(look: Look) -> Shown:
    """The programs that plugins need, on each machine."""
    host = look.word("host") or None
    found = binaries_view.binaries(look.conn, host_label=host)
    return Shown(
        title="Programs",
        template="binaries.html",
        command=binaries_view.command_of(host_label=host),
        data={"found": found, "host": host},
        json=binaries_view.json_of(found),
    )


def audit(look: Look) -> Shown:
    """What operators did, the latest first."""
    before = look.number("before", 0, least=0, most=2**62) or None
    actor, action, target = (look.word(name) or None for name in ("actor", "action", "target"))
    limit = look.number("limit", ROWS)
    page = audit_view.audit(look.conn, actor=actor, action=action, target=target, before=before, limit=limit)
    asked = {"actor": actor, "action": action, "target": target}
    return Shown(
        title="Audit log",
        template="audit.html",
        command=audit_view.command_of(**asked, before=before, limit=limit),
        data={
            "entries": audit_view.json_of(page),
            "asked": asked,
            "further": href(look.prefix + "/audit", **asked, before=page.next) if page.next else None,
        },
        json=audit_view.json_of(page),
        is_live=before is None,
    )


def doctor(look: Look) -> Shown:
    """What is the matter with the database and with this machine, as of a short while ago."""
    if look.doctor is None:
        raise RuntimeError("this page is served by an app, which has a doctor")
    dated = look.doctor()
    report = dated.report
    return Shown(
        title="Doctor",
        template="doctor.html",
        command=doctor_view.command_of(),
        data={
            "report": report,
            "dated": dated,
            "kept_for_s": KEPT_FOR_S,
            "told": doctor_view.json_of(report),
        },
        json=doctor_view.json_of(report),
        is_live=False,
    )
