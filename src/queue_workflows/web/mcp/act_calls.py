"""Acts as tools, each allowed by its name: looked at first, then done, as the page does it.

A program presses no button, so there is no mark of a preview: `dry_run` is the look, and without it what
cannot be done is refused by the look that comes first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from queue_workflows.errors import ConfigurationError
from queue_workflows.settings import Settings
from queue_workflows.web.access.redaction import Redaction
from queue_workflows.web.access.requests import RequestRefused
from queue_workflows.web.access.users import Users
from queue_workflows.web.acts.act import LONGEST_REASON, LONGEST_TARGET, MOST_TARGETS, Act, Asked, By, Preview
from queue_workflows.web.acts.all import ACTS
from queue_workflows.web.acts.form import LONGEST_FILTER, asked_for
from queue_workflows.web.acts.told import preview_json, redacted_lines, redacted_preview
from queue_workflows.web.acts.under_way import ActsUnderWay, UnderWay, watch
from queue_workflows.web.database.readers import Readers
from queue_workflows.web.database.writers import Writers
from queue_workflows.web.mcp.tools import schema_of, text
from queue_workflows.web.rendering import texts

_log = logging.getLogger(__name__)

# A bulk act goes on behind an answer that says how far it is.
WAITED_FOR_S: Final = 30.0
LONGEST_FIELD: Final = 65_536
MOST_FIELDS: Final = 50


@dataclass(frozen=True)
class ActTool:
    """An act as a tool."""

    act: Act

    @property
    def name(self) -> str:
        """The act's name, with what the protocol's clients take for a name."""
        return self.act.name.replace(".", "_")

    @property
    def description(self) -> str:
        """What it does."""
        grave = " It stops or undoes something." if self.act.is_grave else ""
        return (
            f"{self.act.label} ({self.act.name}): changes the database, on your user's account in the audit "
            f"log.{grave} With dry_run it only says what it would be, and which fields it takes. More than "
            "one thing, or a filter, needs a reason."
        )

    @property
    def schema(self) -> dict[str, Any]:
        """The arguments."""
        most = MOST_TARGETS if self.act.takes_many else 1
        arguments: dict[str, Any] = {
            "targets": {
                "type": "array",
                "items": {"type": "string", "minLength": 1, "maxLength": LONGEST_TARGET},
                "minItems": 1,
                "maxItems": most,
                "description": (
                    "What it is about, by name: a job as ingest:7, a run's whole id, a queue, HOST QUEUE for "
                    "workers, a run's id and a node for its answer."
                ),
            },
            "reason": text("Why, for the audit log and for colleagues.", LONGEST_REASON),
            "fields": {
                "type": "object",
                "additionalProperties": {"type": "string", "maxLength": LONGEST_FIELD},
                "maxProperties": MOST_FIELDS,
                "description": "What else it takes, by name; dry_run says which.",
            },
            "dry_run": {"type": "boolean", "default": False, "description": "Change nothing; say it only."},
        }
        if self.act.filter is not None:
            arguments["where"] = text("Instead of targets: all that match this filter.", LONGEST_FILTER)
        return schema_of(arguments, ())


class ActCalls:
    """Does what was allowed, on a user's account."""

    def __init__(
        self,
        allowed: Collection[str],
        readers: Readers,
        writers: Writers,
        users: Users,
        *,
        redaction: Redaction,
        settings: Callable[[], Settings],
        waited_for_s: float = WAITED_FOR_S,
    ) -> None:
        self._readers = readers
        self._writers = writers
        self._users = users
        self._redaction = redaction
        self._settings = settings
        self._waited_for_s = waited_for_s
        self._under_way = ActsUnderWay()
        self.tools = {tool.name: tool for tool in map(ActTool, allowed_acts(allowed))}

    async def call(self, user: str, tool: ActTool, given: Mapping[str, Any]) -> dict[str, Any]:
        """What it would be, or what became of it."""
        act = tool.act
        asked = asked_for(act, given.get("targets", ()), given.get("where"), given.get("fields", {}))
        for target in asked.authorized_targets:
            if not await self._users.may(user, act.name, target):
                _log.warning("refused %s to %r by a program: %s", act.name, user, texts.ACT_DENIED)
                raise RequestRefused(403, texts.ACT_DENIED, advice=f"{act.name} {target}")
        settings = self._settings()
        seen = await self._readers.ask(lambda conn: act.preview(conn, asked, settings))
        preview = redacted_preview(seen, self._redaction)
        if given.get("dry_run"):
            return preview_json(preview)
        reason = given.get("reason", "").strip()
        _check(preview, asked, reason)
        self._under_way.check_room()
        begun = self._under_way.begin(
            user, act.name, preview.headline, back=preview.back, foreseen=preview.count
        )
        by = By(f"{user} via mcp", reason or None)

        def perform(conn: psycopg.Connection[Any]) -> None:
            begun.go(lambda: act.perform(conn, asked, by, settings), self._writers.is_ending)

        future = self._writers.begin(perform)
        watch(begun, future)
        await asyncio.wait([asyncio.wrap_future(future)], timeout=self._waited_for_s)
        return self._became(begun)

    def _became(self, begun: UnderWay) -> dict[str, Any]:
        stopped = begun.stopped
        if stopped is not None and not begun.total:
            raise RequestRefused(
                stopped.status, self._redaction.shown("error", stopped.title), advice=stopped.advice
            )
        return {
            "headline": begun.headline,
            "became": dict(begun.became),
            "lines": [
                {"name": line.name, "said": line.said}
                for line in redacted_lines(begun.lines, self._redaction)
            ],
            "is_over": begun.is_over,
            "stopped_by": None if stopped is None else self._redaction.shown("error", stopped.title),
        }


def allowed_acts(names: Collection[str]) -> list[Act]:
    """The acts of these names, or `ConfigurationError` with those that there are."""
    for name in names:
        if name not in ACTS:
            raise ConfigurationError(f"there is no act {name!r:.80}", advice=f"one of {', '.join(ACTS)}")
    return [ACTS[name] for name in dict.fromkeys(names)]


def _check(preview: Preview, asked: Asked, reason: str) -> None:
    """Refuse what a preview's button would not be there for."""
    flaws = [
        f"fields.{one.name}: {one.flaw or 'is needed'}"
        for one in preview.fields
        if one.flaw or (one.is_needed and not one.value)
    ]
    if flaws:
        raise RequestRefused(422, "Not done: " + "; ".join(flaws), advice="dry_run says what it takes")
    if not preview.is_ready:
        raise RequestRefused(
            409, f"Not done: {preview.headline}", advice=" ".join(preview.notes) or "dry_run says why"
        )
    if asked.is_bulk and not reason:
        raise RequestRefused(422, "Not done: say why, by reason; it is about more than one thing")
