"""What operators did, the latest first: the actor, the time, what to, and why."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, Final

from queue_workflows.errors import PayloadError
from queue_workflows.repositories.audit_log import AuditPage, AuditRepository
from queue_workflows.repositories.sql.connection import Handle
from queue_workflows.repositories.sql.families import FAMILIES

if TYPE_CHECKING:
    from queue_workflows.models import AuditLog

USUAL: Final = 50
# What operators call a kind of thing, and what the log does.
_KINDS: Final = {family.name: family.title for family in FAMILIES} | {
    "run": "run",
    "schedule": "schedule",
    "limit": "concurrency_limit",
    "rate": "rate_limit",
    "workers": "worker_control",
    "device": "device",
}
_WORDS: Final = {kind: word for word, kind in _KINDS.items()}
_SHOWN: Final = ("id", "at", "actor", "action")
_REASONS: Final = ("reason", "details")


def audit(
    conn: Handle,
    *,
    actor: str | None = None,
    action: str | None = None,
    target: str | None = None,
    before: int | None = None,
    limit: int = USUAL,
) -> AuditPage:
    """The latest acts that match, before the entry with which the page before ended."""
    subject = None if target is None else subject_of(target)
    return AuditRepository(conn).page(actor=actor, action=action, subject=subject, before=before, limit=limit)


def target_of(entry: AuditLog) -> str:
    """What was acted on, as a target is written: `ingest:7`, `run:0190…`, `workers:* fetch`."""
    return f"{_WORDS.get(entry.subject_kind, entry.subject_kind)}:{entry.subject_id}"


def subject_of(target: str) -> tuple[str, str]:
    """The kind and the id under which the log has a target."""
    word, colon, name = target.partition(":")
    if not colon or not name or word not in _KINDS:
        known = ", ".join(f"{word}:…" for word in _KINDS)
        raise PayloadError(f"{target!r:.80} is no target", path="target", advice=f"write one of {known}")
    return _KINDS[word], name


def json_of(page: AuditPage) -> list[dict[str, Any]]:
    """What `qwf audit --json` prints."""
    return [
        {name: getattr(one, name) for name in _SHOWN}
        | {"target": target_of(one)}
        | {name: getattr(one, name) for name in _REASONS}
        for one in page.entries
    ]


def command_of(
    *,
    actor: str | None = None,
    action: str | None = None,
    target: str | None = None,
    before: int | None = None,
    limit: int = USUAL,
) -> str:
    """The command that shows that page."""
    words = ["qwf", "audit"]
    for option, value in (("--actor", actor), ("--action", action), ("--target", target)):
        words += [option, value] if value is not None else []
    words += ["--before", str(before)] if before is not None else []
    words += ["--limit", str(limit)] if limit != USUAL else []
    return shlex.join(words)
